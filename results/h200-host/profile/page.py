"""Tables of a profile that stores to host memory: ``xstage profile --peer host`` (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.model.run_fit import find_model
from xstage_bench.record.reader import load_run

WARPS, PAIR = 4, "0>-1"
FENCED = (8192, 24576, 65536)


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    return {"when": origin(read_json(folder / "manifest.json", dict[str, Any])), "law": law(folder), "fences": fences(folder)}


def law(folder: Path) -> str:
    """T0, R and Q by number of SMs."""
    pair = find_model(folder).find(PAIR)
    assert pair is not None
    head = ("SMs", "T0 of 32 KiB, cycles", "R, GB/s", "Q in all, kB", "Q per SM, kB")
    lines = []
    for e in (e for e in pair.burst_gap if e.warps == WARPS):
        held = interval(e.capacity_bytes, 0, 1e3), interval(e.capacity_bytes_per_producer, 1, 1e3)
        lines.append((e.producers, interval(e.t0_cycles), interval(e.drain_gb_per_s, 1), *held))
    return table(head, lines)


def fences(folder: Path) -> str:
    """Issue time, and the fence after it, of all SMs."""
    rows = load_run(folder).samples()
    rows = rows[(rows["probe"] == "isolated") & (rows["destination"] == -1) & (rows["warps"] == WARPS) & (rows["status"] == "ok")]
    rows = rows[rows["producers"] == rows["producers"].max()]
    us = rows.assign(issue=rows["issue_mean_cycles"] / rows["sm_clock_mhz"], fence=rows["drain_mean_cycles"] / rows["sm_clock_mhz"])
    typical = us.groupby("bytes")[["issue", "fence"]].median()
    near = [int(min(typical.index, key=lambda size: abs(size - wanted))) for wanted in FENCED]
    lines = [(number(size / 1024, 0), number(typical["issue"][size], 1), number(typical["fence"][size], 1)) for size in dict.fromkeys(near)]
    return table(("KiB per SM", "issue, us", "fence after it, us"), lines)


if __name__ == "__main__":
    main(__file__, tables)
