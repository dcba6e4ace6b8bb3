"""Store time line of one burst that stays below the knee and of one that goes beyond it, stamped store by store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import FITTED, Absent, FigureSpec, label, new_figure, series_style

from ._common import Array, pair_label, slowest_first, stores_per_warp

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from xstage_bench.model.document import BurstGap, Model, PairModel, Validation
    from xstage_bench.record.reader import Run

#: A burst counts as after the onset from this many knees on: just beyond it little can be seen.
WELL_BEYOND = 1.5


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw progress of the warps (left) and the time each further store took (right)."""
    traces = run.traces()
    if traces.empty:
        return Absent("no store-by-store traces were recorded")
    chosen = _choose(traces, run.samples(), model)
    if chosen is None:
        return Absent("no trace belongs to a pair and (K, W) with a fitted knee, so before and after onset cannot be told apart")
    fitted, entry, bursts = chosen

    figure = new_figure(7.2, 3.6)
    left, right = figure.subplots(1, 2)
    count = 0
    for i, (name, size, stamps) in enumerate(bursts):
        _draw_burst(left, right, i, f"{name} ({size / 1e3:.3g} kB per SM)", stamps / model.sm_clock_mhz)
        count += stamps.size
    knee = entry.knee_bytes
    if knee.value is not None:
        at = float(stores_per_warp(knee.value, entry.warps, fitted.flavour))
        left.axhline(at, color=FITTED, linewidth=1.2, linestyle="--", label="knee of the law")
        right.axvline(at, color=FITTED, linewidth=1.2, linestyle="--")
        if knee.low is not None and knee.high is not None:
            low, high = stores_per_warp([knee.low, knee.high], entry.warps, fitted.flavour)
            left.axhspan(low, high, color=FITTED, alpha=0.15, linewidth=0)
            right.axvspan(low, high, color=FITTED, alpha=0.15, linewidth=0)
    left.set(xlim=(0, None), ylim=(0, None), xlabel="time after the producer's start (µs)", ylabel="warp-stores issued, per warp")
    right.set(xlim=(0, None), ylim=(0, None), xlabel="warp-store of the burst, per warp", ylabel="time since the store before (µs)")
    left.legend(loc="lower right")
    heading = f"One burst, store by store: {entry.producers} SMs × {entry.warps} warps, {pair_label(fitted.pair)}"
    paced = np.nanmedian(np.diff(bursts[-1][2], axis=1), axis=0) / model.sm_clock_mhz * 1e3
    at_knee = 0 if knee.value is None else int(stores_per_warp(knee.value, entry.warps, fitted.flavour))
    if 1 < at_knee < paced.size - 1:
        first, later = float(np.mean(paced[: at_knee // 2])), float(np.mean(paced[at_knee:]))
        heading = f"After about {at_knee} stores per warp the next one takes {later:.3g} ns, not {first:.3g}, {pair_label(fitted.pair)}"
    label(figure, run, f"n = {count} stamps; line: median over warps, band: 10–90 %", heading)
    return figure


def _choose(traces: pd.DataFrame, samples: pd.DataFrame, model: Model) -> tuple[PairModel, BurstGap, list[tuple[str, int, Array]]] | None:
    """Return the model entry of the most producers traced, and one burst on each side of its knee: name, bytes, cycles (warps, stores)."""
    facts = samples[samples["burst"] == 0].drop_duplicates(["schedule", "source", "destination"])
    known = traces[["schedule", "source", "destination"]].drop_duplicates().merge(facts, on=["schedule", "source", "destination"])
    for fitted in slowest_first(model):
        source, _, destination = fitted.pair.partition(">")
        mine = known[(known["source"] == int(source)) & (known["destination"] == int(destination)) & (known["flavour"] == fitted.flavour)]
        for producers, warps in sorted({(int(k), int(w)) for k, w in zip(mine["producers"], mine["warps"], strict=True)}, reverse=True):
            some, entry = mine[(mine["producers"] == producers) & (mine["warps"] == warps)], fitted.find(producers, warps)
            if entry is None or entry.knee_bytes.value is None:
                continue
            below = some[some["bytes"] <= entry.knee_bytes.value].sort_values(["bytes", "schedule"])
            beyond = some[some["bytes"] >= WELL_BEYOND * entry.knee_bytes.value].sort_values(["bytes", "schedule"])
            rows = [("before onset", below.iloc[-1])] if len(below) else []
            rows += [("after onset", beyond.iloc[-1])] if len(beyond) else []
            if len(beyond):
                return fitted, entry, [(name, int(row["bytes"]), _stamps(traces, row)) for name, row in rows]
    return None


def _stamps(traces: pd.DataFrame, row: pd.Series) -> Array:
    mine = traces[
        (traces["schedule"] == row["schedule"]) & (traces["source"] == row["source"]) & (traces["destination"] == row["destination"])
    ]
    table = mine.pivot_table(index=["smid", "warp"], columns="store", values="cycles", aggfunc="first").sort_index(axis=1)
    return np.asarray(table, dtype=np.float64)


def _draw_burst(left: Axes, right: Axes, i: int, name: str, stamps_us: Array) -> None:
    look = {k: v for k, v in series_style(i).items() if k != "marker"}
    issued = np.arange(1, stamps_us.shape[1] + 1)
    low, middle, high = np.nanquantile(stamps_us, [0.1, 0.5, 0.9], axis=0)
    left.fill_betweenx(issued, low, high, color=look["color"], alpha=0.2, linewidth=0)
    left.plot(middle, issued, **look, marker="o", markevery=[-1], markersize=5, label=name)
    if stamps_us.shape[1] < 2:
        return
    low, middle, high = np.nanquantile(np.diff(stamps_us, axis=1), [0.1, 0.5, 0.9], axis=0)
    right.fill_between(issued[1:], low, high, color=look["color"], alpha=0.2, linewidth=0)
    right.plot(issued[1:], middle, **look)


FIGURE = FigureSpec(
    name="timeline",
    title="Store time line of one burst, before and after onset",
    caption=(
        "Left: how far the warps have got. A burst below the knee rises at the free issue rate to its end; a larger one follows "
        "it until about Q bytes are outstanding (orange, with its interval) and then advances only as fast as the link drains. "
        "Right: the same as time per store. Stamping each store adds to its cost, so read shapes here and values elsewhere."
    ),
    draw=draw,
    order=40,
)
