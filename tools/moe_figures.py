"""Draw docs/images/moe.png from the document of `xstage fused moe --suite`, and print the table of stalls of docs/moe.md.

python tools/moe_figures.py MOE.json [PICTURE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import numpy as np

from xstage_bench.fused.moe.stalls import CLOSE_US, pairs_of
from xstage_bench.fused.moe.suite import best_wave
from xstage_bench.fused.moe.summary import summarise
from xstage_bench.plot_style import COLOURS, matplotlib_settings, new_figure, style
from xstage_bench.record.json_file import read_json

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "moe.png"
#: Geomean over the paper's 84 configurations, on its own GPU.
PUBLISHED_GEOMEAN = 1.18
NS_OF_US = 1e3
ORDERS = ("wave", "chosen")


def main(path: str, picture: str = str(PICTURE)) -> None:
    """Read the document, write the figure, print the table."""
    document = read_json(Path(path), dict[str, Any])
    rows = document["rows"]
    with matplotlib_settings(style()):
        figure = new_figure(12.5, 7.2)
        panels = figure.subplots(2, 3).ravel()
        _gains(panels[0], summarise(document)["rows"])
        _bound(panels[1], summarise(document)["rows"])
        _totals(panels[2], rows)
        _both_orders(panels[3], rows, lambda one: float(one["measured_us"]), "stall of the tensor cores per Linear-2 tile, us")
        _both_orders(panels[4], rows, lambda one: float(one["store_span_us"]["median"]), "store span of a Linear-2 tile (median), us")
        _stalls(panels[5], rows)
        figure.text(0.01, 0.01, _foot(document), fontsize=7, color="0.35")
        figure.savefig(picture, dpi=110)
    print(f"{picture}\n")
    _table(rows)


def _foot(document: dict[str, Any]) -> str:
    seen = document["environment"]
    gpus = sorted({str(gpu["name"]) for gpu in seen["gpus"]})
    emulated = ", ranks emulated for the sender" if any(row["emulated"] for row in document["rows"]) else ""
    where = f"{len(seen['gpus'])} x {' + '.join(gpus)}, driver {(seen['nvml'] or {}).get('driver')}, {seen['captured'][:10]}"
    return f"measured, {where}{emulated}; {len(document['rows'])} rows"


def _groups(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Colour, name and rows of each type and width of a result row."""
    keys = sorted({(row["combine"], row["dtype"]) for row in rows})
    return [
        (COLOURS[i], f"{dtype}, {combine} rows", [row for row in rows if (row["combine"], row["dtype"]) == (combine, dtype)])
        for i, (combine, dtype) in enumerate(keys)
    ]


def _gains(axes: Any, rows: list[dict[str, Any]]) -> None:
    for colour, name, mine in _groups(rows):
        gains = sorted((row["gain"] for row in mine), reverse=True)
        at = np.linspace(0, 100, len(gains))
        axes.plot(at, gains, ".-", color=colour, label=f"{name}: geomean {np.exp(np.mean(np.log(gains))):.3f}")
    axes.axhline(1, color="0.6", linewidth=0.7)
    axes.axhline(PUBLISHED_GEOMEAN, color="0.6", linewidth=0.7, linestyle=":", label="published geomean, another GPU")
    axes.set(xlabel="% of the configurations, best first", ylabel="Expert-Wave (its best N) / model's order", title="Speed-up")
    axes.legend()


def _bound(axes: Any, rows: list[dict[str, Any]]) -> None:
    for key, name, mark, colour in (("wave_us", "waves", "^", COLOURS[3]), ("interleaved_us", "model's order", "o", COLOURS[0])):
        x = [row["drain_us"] / row["alone_us"] for row in rows]
        axes.plot(x, [row[key] / row["bound_us"] for row in rows], mark, color=colour, fillstyle="none", label=name)
    axes.axhline(1, color="0.6", linewidth=0.7)
    axes.axvline(1, color="0.6", linewidth=0.7)
    axes.set(xscale="log", xlabel="V/R over the same tiles alone", ylabel="time / max(alone, V/R)", title="Distance from the bound")
    axes.legend()


def _totals(axes: Any, rows: list[dict[str, Any]]) -> None:
    off = []
    for which, name, mark, colour in (("wave", "waves", "^", COLOURS[3]), ("chosen", "model's order", "o", COLOURS[0])):
        points = [point for row in rows if (point := _total(row, which)) is not None]
        off += [abs(predicted / us - 1) for us, predicted in points]
        if points:
            us, predicted = np.array(points).T
            axes.plot(us, 100 * (predicted / us - 1), mark, color=colour, fillstyle="none", label=name)
    axes.axhline(0, color="0.6", linewidth=0.7)
    said = f"; median {100 * np.median(off):.1f} %" if off else ""
    axes.set(xscale="log", xlabel="measured, us", ylabel="predicted is off by, %", title=f"Time of the layer{said}")
    if off:
        axes.legend()


def _total(row: dict[str, Any], which: str) -> tuple[float, float] | None:
    """Measured and predicted time, us; None where nothing was predicted for what was measured."""
    variant = "chosen" if which == "chosen" else best_wave(row)
    predicted = row["predicted_ns"].get(row["chosen"] if which == "chosen" else variant.replace(" ", "-"))
    return None if predicted is None else (row["variants"][variant]["arrived_us"]["value"], predicted / NS_OF_US)


def _both_orders(axes: Any, rows: list[dict[str, Any]], read: Callable[[dict[str, Any]], float], what: str) -> None:
    most, stamped = 1.0, [row for row in rows if row.get("stalls")]
    if not stamped:
        axes.set(title=f"{what}: not in this document")
        return
    for colour, name, mine in _groups(stamped):
        wave, chosen = np.array([[read(row["stalls"][which]) for which in ORDERS] for row in mine]).T
        axes.plot(wave, chosen, "o", color=colour, fillstyle="none", label=name)
        most = max(most, wave.max(), chosen.max())
    axes.plot([0, most], [0, most], color="0.6", linewidth=0.7)
    axes.set(xlabel="waves", ylabel="model's order", title=what[0].upper() + what[1:])
    axes.legend()


def _stalls(axes: Any, rows: list[dict[str, Any]]) -> None:
    close, most, least = [], 1.0, 0.0
    for colour, name, mine in _groups(rows):
        points = [pair for row in mine for pair in pairs_of(row)]
        if points:
            measured, predicted = np.array(points).T
            axes.plot(measured, predicted, "o", color=colour, fillstyle="none", label=name)
            close += (abs(measured - predicted) <= CLOSE_US).tolist()
            most, least = max(most, measured.max(), predicted.max()), min(least, measured.min(), predicted.min())
    line = np.array([least, most])
    axes.fill_between(line, line - CLOSE_US, line + CLOSE_US, color="0.92", label=f"within {CLOSE_US:g} us")
    axes.plot(line, line, color="0.6", linewidth=0.7)
    said = f": {100 * np.mean(close):.0f} % within {CLOSE_US:g} us" if close else ""
    axes.set(xlabel="measured, us", ylabel="predicted, us", title=f"Stall, predicted{said}")
    axes.legend()


def _table(rows: list[dict[str, Any]], tokens: int = 2048, routing: str = "balanced") -> None:
    """Stalls and store spans under both orders."""
    print(f"{routing} routing, {tokens} tokens a rank; us per Linear-2 tile: waves / model's order (predicted)\n")
    print("| shape | type | result rows | stall | store span, median | p90 | of the stall, within tiles |\n|" + "---|" * 7)
    for row in rows:
        if (row["tokens_per_rank"], row["routing"]) == (tokens, routing) and row.get("stalls"):
            both = [row["stalls"][which] for which in ORDERS]
            stall = " / ".join(
                f"{one['measured_us']:.2f}" + (f" ({one['predicted_us']:.2f})" if one["predicted_us"] is not None else "") for one in both
            )
            spans = [" / ".join(f"{one['store_span_us'][q]:.1f}" for one in both) for q in ("median", "p90")]
            within = " / ".join(f"{one['within_us']:.2f}" for one in both)
            print("| " + " | ".join([row["shape"], row["dtype"], row["combine"], stall, *spans, within]) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
