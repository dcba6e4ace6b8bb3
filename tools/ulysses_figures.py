"""Draw docs/images/ulysses.png from a recorded document of `xstage fused ulysses` that has its forecasts.

python tools/ulysses_figures.py [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import numpy as np

from xstage_bench.fused.ulysses_summary import summarise
from xstage_bench.plot_style import COLOURS, matplotlib_settings, new_figure, plain_ticks, style

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "h200-x2" / "ulysses" / "ulysses.json"
SWEPT = "wan-14b-480p"
LINES = (
    ("serial_nccl_us", "then NCCL and permutation", "^--"),
    ("serial_push_us", "then push kernel", "s--"),
    ("serial_copying_sms_us", "beside copying SMs", "D:"),
    ("fused_visible_us", "fused, all arrived", "v-"),
    ("fused_us", "fused, all sent", "o-"),
)


def main() -> None:
    """Read the document and write the figure."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    document = json.loads(path.read_text())
    rows = summarise(document)["rows"]
    with matplotlib_settings(style()):
        figure = new_figure(10.5, 6.6)
        (times, excess), (bursts, residual) = figure.subplots(2, 2)
        _times(times, rows)
        _excess(excess, rows)
        _bursts(bursts, document)
        _residual(residual, document)
        gpus = " + ".join(sorted({gpu["name"] for gpu in document["gpus"]}))
        where = f"{len(document['gpus'])} x {gpus}, driver {document['driver']}, {document['created'][:10]}"
        foot = f"measured, {where}; medians of interleaved rounds"
        figure.text(0.01, 0.01, foot, fontsize=7, color="0.35")
        out = ROOT / "docs" / "images" / "ulysses.png"
        figure.savefig(out, dpi=110)
    print(out)


def _swept(rows: list[dict[str, Any]], sp: int) -> list[dict[str, Any]]:
    return sorted((r for r in rows if r["shape"] == SWEPT and r["sp"] == sp), key=lambda r: r["seq"])


def _times(axes: Any, rows: list[dict[str, Any]]) -> None:
    for sp, fill in ((2, "full"), (8, "none")):
        swept = _swept(rows, sp)
        seq = [r["seq"] for r in swept]
        heads = swept[0]["heads"] // sp
        for key, name, mark, colour in (
            ("serial_nccl_us", "attention, then NCCL", "^--", COLOURS[1]),
            ("cudnn_us", "cuDNN attention alone", "x:", COLOURS[5]),
            ("alone_us", "attention alone", "s-", COLOURS[2]),
            ("fused_us", "fused", "o-", COLOURS[0]),
        ):
            axes.plot(seq, [r[key] for r in swept], mark, color=colour, fillstyle=fill, label=f"{name}, {heads} heads")
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="us", title="Time against sequence length")
    plain_ticks(axes)
    axes.legend(ncols=2, fontsize=6)


def _excess(axes: Any, rows: list[dict[str, Any]]) -> None:
    swept = _swept(rows, 8)
    for i, (key, name, mark) in enumerate(LINES):
        points = [(r["seq"], 100 * (r[key] / r["alone_us"] - 1)) for r in swept if r[key]]
        axes.plot(*zip(*points, strict=True), mark, color=COLOURS[(1, 2, 3, 4, 0)[i]], label=name)
    axes.axhline(0, color="0.6", linewidth=0.7)
    axes.set(
        xscale="log",
        yscale="symlog",
        xlabel="rows",
        ylabel="% over attention alone",
        title="What the All-to-All costs: 5 heads, SP8 emulated",
    )
    axes.set_yscale("symlog", linthresh=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend()


def _bursts(axes: Any, document: dict[str, Any]) -> None:
    row = next(r for r in document["rows"] if r["shape"] == SWEPT and r["seq"] == 8192 and r["sp"] == 8)
    lanes = [(store, which) for store in ("st.v4", "bulk") for which in ("alone", "fused")]
    for y, (store, which) in enumerate(lanes):
        for group in range(row["builds"][store]["consumers"]):
            for begin, computed, stored in np.array(row["tiles"][store]["time_line"][which]["ns"])[:, group] / 1e3:
                at = y + 0.22 - 0.4 * group
                axes.barh(at, computed - begin, left=begin, height=0.3, color=COLOURS[5])
                axes.barh(at, stored - computed, left=computed, height=0.3, color=COLOURS[1])
    axes.set_yticks(range(len(lanes)), [f"{store}, {'local' if which == 'alone' else which}" for store, which in lanes])
    axes.invert_yaxis()
    axes.grid(False)
    axes.set(
        xlabel="us after the kernel's first tile began",
        title="One SM's two warpgroups, 8192 rows, SP8 emulated: computing (grey), storing (dark)",
    )


def _residual(axes: Any, document: dict[str, Any]) -> None:
    most = 1.0
    for i, store in enumerate(("st.v4", "bulk")):
        alone = "alone" if store == "st.v4" else f"alone {store}"
        points = []
        for row in document["rows"]:
            samples = {name: np.array(us) for name, us in row["samples_us"].items()}
            if row["times_us"][alone]["value"] < 2000:  # above, clocks move more than the residual
                points += [
                    (f["residual_us"], float(np.median(samples[f"fused {store} {f['order']}"] - samples[alone])))
                    for f in row["forecast"]
                    if f["store"] == store
                ]
        predicted, measured = np.array(points).T
        axes.plot(predicted, measured, "o^"[i], color=COLOURS[i], label=store, alpha=0.8)
        most = max(most, predicted.max(), measured.max())
    line = np.linspace(0, most * 1.1, 100)
    axes.fill_between(line, np.minimum(0.7 * line, line - 3), np.maximum(1.3 * line, line + 3), color="0.92", label="30 % or 3 us")
    axes.plot(line, line, color="0.5", linewidth=0.8)
    axes.set(xlabel="predicted, us", ylabel="measured, us", title="Fused less alone, every order, attention below 2 ms")
    axes.legend()


if __name__ == "__main__":
    main()
