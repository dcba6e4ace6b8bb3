"""Draw the figure of docs/visibility.md: ``python tools/visibility_figure.py FILE.json OUT.svg [PAIR]``.

Left: bytes issued and visible against time, one warp on all SMs. Right: bytes under way in the plateau against the number of SMs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from xstage_bench.io.json_file import read_json
from xstage_bench.show.figures import new_figure

Row = dict[str, Any]


def draw(document: dict[str, Any], pair: str) -> Figure:
    """Draw one pair of the document of ``xstage visibility``."""
    rows = [r for r in document["rows"] if r["part"] == "curve" and r["pair"] == pair and r["warps"] == 1]
    most = max(r["producers"] for r in rows)
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    full = [r for r in rows if r["producers"] == most and r["process"] == 0]
    for i, row in enumerate(r for r in full if r["bytes"] in (16 << 10, 64 << 10)):
        at = np.array(row["at_ns"]) / 1e3
        name = f"{row['bytes'] >> 10} KiB per SM"
        left.plot(at, np.array(row["issued_bytes"]) / 1e6, color=f"C{i}", linestyle="--", label=f"issued, {name}")
        left.plot(at, np.array(row["visible_bytes"]) / 1e6, color=f"C{i}", label=f"visible, {name}")
    left.set(xlabel="time after the common start (µs)", ylabel="bytes of all SMs (MB)", title=f"{most} SMs, {pair}: mean of 24 repetitions")
    left.legend(fontsize=7)
    for i, size in enumerate(sorted({r["bytes"] for r in rows})):
        at_size = [r for r in rows if r["bytes"] == size]
        counts = sorted({r["producers"] for r in at_size})
        peaks = [np.mean([r["peak_bytes"]["median"] for r in at_size if r["producers"] == k]) / 1e6 for k in counts]
        right.plot(counts, peaks, "o-", color=f"C{i}", label=f"{size >> 10} KiB per SM")
    right.set(xlabel="storing SMs", ylabel="most bytes under way (MB)", title="issued and not yet visible")
    right.legend(fontsize=7)
    when = document["created"][:10]
    figure.suptitle(f"{document['node']['gpus'][0]['name']}, measured {when}, 3 processes", fontsize=9)
    return figure


if __name__ == "__main__":
    draw(read_json(Path(sys.argv[1]), dict[str, Any]), sys.argv[3] if len(sys.argv) > 3 else "0>1").savefig(sys.argv[2])
