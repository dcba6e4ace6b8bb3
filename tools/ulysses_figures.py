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

from xstage_bench.fused.ulysses.summary import summarise
from xstage_bench.plot_style import COLOURS, matplotlib_settings, new_figure, style

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "h200-x2" / "ulysses" / "ulysses.json"
#: Five heads a rank at several lengths, and the case whose time line is shown.
SWEPT = {"shape": "anchor", "heads": 10, "sp": 2}
SHOWN = {"shape": "anchor", "seq": 8192, "sp": 8}
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


def _matching(rows: list[dict[str, Any]], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((r for r in rows if wanted.items() <= r.items()), key=lambda r: r["seq"])


def _times(axes: Any, rows: list[dict[str, Any]]) -> None:
    swept = _matching(rows, SWEPT)
    for key, name, mark, colour in (
        ("serial_nccl_us", "attention, then NCCL and permutation", "^--", COLOURS[1]),
        ("cudnn_us", "cuDNN's attention alone", "x:", COLOURS[5]),
        ("alone_us", "attention alone", "s-", COLOURS[2]),
        ("fused_us", "fused", "o-", COLOURS[0]),
    ):
        axes.plot([r["seq"] for r in swept], [r[key] for r in swept], mark, color=colour, fillstyle="none", label=name)
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="us", title="Time against sequence length: 5 heads a rank, SP2")
    _lengths(axes, swept)
    axes.legend()


def _lengths(axes: Any, swept: list[dict[str, Any]]) -> None:
    seq = [r["seq"] for r in swept]
    axes.set_xticks(seq, [str(n) for n in seq])
    axes.set_xticks([], minor=True)


def _excess(axes: Any, rows: list[dict[str, Any]]) -> None:
    swept = _matching(rows, SWEPT)
    for i, (key, name, mark) in enumerate(LINES):
        # Of the fused the median of ratios within rounds: what it costs is less than what clocks move between rounds.
        ratios = [r["fused_over_alone"]["value"] if key == "fused_us" else r[key] / r["alone_us"] for r in swept]
        points = [(r["seq"], 100 * (ratio - 1)) for r, ratio in zip(swept, ratios, strict=True)]
        axes.plot(*zip(*points, strict=True), mark, color=COLOURS[(1, 2, 3, 4, 0)[i]], label=name)
    axes.axhline(0, color="0.6", linewidth=0.7)
    axes.set(
        xscale="log",
        yscale="symlog",
        xlabel="rows",
        ylabel="% over attention alone",
        title="What the All-to-All costs: 5 heads a rank, SP2",
    )
    axes.set_yscale("symlog", linthresh=2)
    axes.yaxis.set_major_formatter("{x:g}")
    _lengths(axes, swept)
    axes.set_ylim(-1.5, 40)
    axes.legend(ncols=2)


def _bursts(axes: Any, document: dict[str, Any]) -> None:
    (row,) = _matching(document["rows"], SHOWN)
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
