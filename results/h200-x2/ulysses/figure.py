"""Figure of fused attention: time, cost of the All-to-All, one SM's time line, residual predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.kernels.attention.document import read_folder
from xstage_bench.kernels.attention.summary import summarise
from xstage_bench.show.style import COLOURS, matplotlib_settings, new_figure, style

#: Twelve heads a rank at several lengths, and the case whose time line is shown.
SWEPT = {"heads": 24, "head_dim": 128, "sp": 2}
SHOWN = {"shape": "keye-vl-2-8192", "sp": 8}
#: Above, clocks move more than the residual.
SHORT_US = 2000


def draw(folder: Path, out: Path) -> None:
    """Read the documents and write the figure."""
    document, pairs = read_folder(folder)
    rows = summarise(document, pairs)["rows"]
    with matplotlib_settings(style()):
        figure = new_figure(10.5, 6.6)
        (times, cost), (bursts, residual) = figure.subplots(2, 2)
        _times(times, rows)
        _cost(cost, rows)
        _bursts(bursts, document, pairs)
        _residual(residual, document)
        gpus = " + ".join(sorted({gpu["name"] for gpu in document["gpus"]}))
        dates = sorted({found["created"][:10] for found in (document, pairs) if found})
        where = f"{len(document['gpus'])} x {gpus}, driver {document['driver']}, {' and '.join(dates)}"
        foot = f"measured, {where}; medians of interleaved rounds; SP4 and SP8 emulated for the sender"
        figure.text(0.01, 0.01, foot, fontsize=7, color="0.35")
        figure.savefig(out / "ulysses.png", dpi=80, metadata={"Software": None})


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
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="us", title="Time against sequence length: 12 heads a rank, SP2")
    seq = [r["seq"] for r in swept]
    axes.set_xticks(seq, [str(n) for n in seq], rotation=45)
    axes.set_xticks([], minor=True)
    axes.legend()


def _cost(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Of every case with enough rounds for an interval, within rounds: what it costs is less than what clocks move between rounds."""
    sure = [r for r in rows if r["fused_over_alone"]["low"] is not None]
    for key, name, mark, colour in (
        ("serial_nccl", "then NCCL and permutation", "^", COLOURS[1]),
        ("serial_push", "then push kernel", "s", COLOURS[2]),
    ):
        found = [
            (r["alone_us"], 100 * (ratio["value"] - 1)) for r in sure if (ratio := r["over_alone"].get(key)) and ratio["low"] is not None
        ]
        axes.plot(*zip(*found, strict=True), mark, color=colour, fillstyle="none", markersize=4, alpha=0.6, label=name)
    for sp, colour in ((2, COLOURS[0]), (4, COLOURS[3]), (8, COLOURS[4])):
        some = [r for r in sure if r["sp"] == sp]
        value, low, high = (np.array([100 * (r["fused_over_alone"][k] - 1) for r in some]) for k in ("value", "low", "high"))
        ends = [value - low, high - value]
        axes.errorbar(
            [r["alone_us"] for r in some], value, ends, fmt="o", color=colour, markersize=4, linewidth=0.8, label=f"fused, SP{sp}"
        )
    axes.axhline(0, color="0.6", linewidth=0.7)
    axes.axhline(100 / 0.95 - 100, color="0.6", linewidth=0.7, linestyle="--")
    axes.set(
        xscale="log",
        xlabel="attention alone, us",
        ylabel="% over attention alone",
        title="What the All-to-All costs: every case, 95 % intervals",
    )
    axes.set_yscale("symlog", linthresh=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(-15, 200)
    axes.legend(ncols=2)


def _bursts(axes: Any, document: dict[str, Any], pairs: dict[str, Any] | None) -> None:
    """Bulk stores of the main document; 16-byte stores of the pairs, since their stamps in the main one waited for sleeping links."""
    (row,) = _matching(document["rows"], SHOWN)
    again = _matching(pairs["rows"], SHOWN) if pairs else []
    stamped = {"st.v4": again[0] if again else None, "bulk": row}
    lanes = [(store, which) for store, found in stamped.items() if found for which in ("alone", "fused")]
    for y, (store, which) in enumerate(lanes):
        for group in range(stamped[store]["builds"][store]["consumers"]):
            for begin, computed, stored in np.array(stamped[store]["tiles"][store]["time_line"][which]["ns"])[:, group] / 1e3:
                at = y + 0.22 - 0.4 * group
                axes.barh(at, computed - begin, left=begin, height=0.3, color=COLOURS[5])
                axes.barh(at, stored - computed, left=computed, height=0.3, color=COLOURS[1])
    axes.set_yticks(range(len(lanes)), [f"{store}, {'local' if which == 'alone' else which}" for store, which in lanes])
    axes.invert_yaxis()
    axes.grid(False)
    axes.set(
        xlabel="us after the kernel's first tile began",
        title="One SM's warpgroups, 8192 rows, SP8: computing (grey), storing (dark)",
    )


def _residual(axes: Any, document: dict[str, Any]) -> None:
    most = 1.0
    for i, store in enumerate(("st.v4", "bulk")):
        alone = "alone" if store == "st.v4" else f"alone {store}"
        points = []
        for row in document["rows"]:
            samples = {name: np.array(us) for name, us in row["samples_us"].items()}
            if store in row["builds"] and row["times_us"][alone]["value"] < SHORT_US:
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
