"""Figure of the fused MoE layer: gains, distance from the bound, predictions, stalls; of moe.json.gz and forecast.json.gz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.io.json_file import read_json
from xstage_bench.kernels.moe.stalls import CLOSE_US
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.show.style import COLOURS, matplotlib_settings, new_figure, style

#: Geomean over the paper's 84 configurations, on its own GPU.
PUBLISHED_GEOMEAN = 1.18
ORDERS = ("wave", "chosen")
#: What the parts of a row's key say.
KEY = ("shape", "dtype", "routing", "tokens", "combine")


def draw(folder: Path, out: Path) -> None:
    """Read the documents, write the figure."""
    document, predicted = (read_json(folder / f"{name}.json.gz", dict[str, Any]) for name in ("moe", "forecast"))
    rows, found = document["rows"], summarise(document)["rows"]
    with matplotlib_settings(style()):
        figure = new_figure(12.5, 7.2)
        panels = figure.subplots(2, 3).ravel()
        _gains(panels[0], found)
        _bound(panels[1], found)
        _totals(panels[2], predicted["rows"])
        _both_orders(panels[3], rows, lambda one: float(one["measured_us"]), "stall of the tensor cores per Linear-2 tile, us")
        _both_orders(panels[4], rows, lambda one: float(one["store_span_us"]["median"]), "store span of a Linear-2 tile (median), us")
        _stalls(panels[5], predicted["rows"])
        figure.text(0.01, 0.01, _foot(document), fontsize=7, color="0.35")
        figure.savefig(out / "moe.png", dpi=80, metadata={"Software": None})


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
        axes.plot(at, gains, ".-", color=colour, label=f"{name}: geomean {geometric_mean(gains):.3f}")
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
    """Time of the layer from the tile times as they were read, and given what the same tiles took alone."""
    measured = np.array([row["measured_us"] for row in rows])
    for key, name, mark, colour in (
        ("predicted_us", "from its tile times", ".", "0.7"),
        ("predicted_given_alone_us", "given the tiles alone", "o", COLOURS[0]),
    ):
        off = np.array([row[key] for row in rows]) / measured - 1
        axes.plot(measured, 100 * off, mark, color=colour, fillstyle="none", label=f"{name}: median {100 * np.median(abs(off)):.1f} %")
    axes.axhline(0, color="0.6", linewidth=0.7)
    axes.set(xscale="log", xlabel="measured, us", ylabel="predicted is off by, %", title="Time of the layer, both orders")
    axes.legend()


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


def _pairs(rows: list[dict[str, Any]]) -> NDArray[np.float64]:
    return np.array([[row["stall_measured_us"], row["stall_predicted_us"]] for row in rows])


def _stalls(axes: Any, rows: list[dict[str, Any]]) -> None:
    kinds = [dict(zip(KEY, row["key"].split("|"), strict=True)) | row for row in rows]
    for colour, name, mine in _groups(kinds):
        axes.plot(*_pairs(mine).T, "o", color=colour, fillstyle="none", label=name)
    every = _pairs(kinds)
    close = abs(every[:, 0] - every[:, 1]) <= CLOSE_US
    line = np.array([min(every.min(), 0.0), every.max()])
    axes.fill_between(line, line - CLOSE_US, line + CLOSE_US, color="0.92", label=f"within {CLOSE_US:g} us")
    axes.plot(line, line, color="0.6", linewidth=0.7)
    said = f"{100 * close.mean():.0f} % within {CLOSE_US:g} us"
    axes.set(xlabel="measured, us", ylabel="predicted, us", title=f"Stall, predicted: {said}")
    axes.legend()
