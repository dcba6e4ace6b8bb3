"""Issue time and period of periodic bursts against the gap between them, over the law max(T0, V/R - G)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import Absent, FigureSpec, label, new_figure, series_style, top_legend

from ._common import bars, drain_ns, free_cycles, isolated_cycles, nearest, pair_label, pick, shown_pair, spread, valid_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run

SHOWN_WARPS = 4
SHOWN_SIZES = 4


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw issue time (left) and period (right) against gap for the most producers measured."""
    rows = valid_rows(run.samples(), "periodic")
    rows = rows[(rows["burst"] > 0) & rows["gap_mean_cycles"].notna()]
    fitted = shown_pair(model, rows)
    if fitted is None:
        return Absent("no valid periodic bursts of a fitted pair were recorded")
    rows = rows[(rows["pair"] == fitted.pair) & (rows["flavour"] == fitted.flavour)]
    producers = int(rows["producers"].max())
    warps = nearest(rows["warps"], SHOWN_WARPS)
    rows = rows[(rows["producers"] == producers) & (rows["warps"] == warps)]
    rows = rows.assign(period_us=rows["issue_us"] + rows["gap_mean_cycles"] / rows["sm_clock_mhz"])
    measured_gap = rows.groupby(["bytes", "gap_cycles"])["gap_mean_cycles"].transform("median").clip(lower=0)
    rows = rows.assign(gap_us=measured_gap / model.sm_clock_mhz)
    entry = fitted.find(producers, warps)

    figure = new_figure(7.2, 3.9, legend_rows=1)
    left, right = figure.subplots(1, 2)
    dense = np.concatenate([[0.0], np.geomspace(0.02, max(1.0, float(rows["gap_us"].max())), 600)])
    for i, size in enumerate(pick(rows["bytes"], SHOWN_SIZES)):
        look, some = series_style(i), rows[rows["bytes"] == size]
        for axes, column in ((left, "issue_us"), (right, "period_us")):
            table = spread(some, ["gap_us"], column)
            axes.errorbar(table["gap_us"], table["middle"], yerr=bars(table), **{**look, "linestyle": "none"}, elinewidth=0.8)
        left.plot([], [], **look, label=f"{size / 1e3:.3g} kB/SM")
        free, drain = (None, None) if entry is None else (free_cycles(entry, size, fitted.flavour), drain_ns(entry, size))
        if free is None or drain is None:
            continue
        t0_us, drain_us = float(free) / model.sm_clock_mhz, float(drain) / 1e3
        line = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.0}
        left.plot(dense, np.maximum(t0_us, drain_us - dense), **line)
        right.plot(dense, np.maximum(t0_us + dense, drain_us), **line)
        alone = isolated_cycles(entry, size, fitted.flavour) if entry is not None else None
        if alone is not None and float(alone) > 1.1 * float(free):
            left.axhline(float(alone) / model.sm_clock_mhz, color=look["color"], linewidth=0.8, linestyle=(0, (1, 2)))
    shown = [t for size in pick(rows["bytes"], SHOWN_SIZES) if entry is not None and (t := drain_ns(entry, size)) is not None]
    widest = 1.6 * max((float(t) for t in shown), default=1e3 * float(dense[-1])) / 1e3
    for axes, name in ((left, "issue time (µs)"), (right, "period = issue + gap (µs)")):
        for i, t in enumerate(shown):
            axes.axvline(float(t) / 1e3, color=series_style(i)["color"], linewidth=0.7, linestyle=(0, (1, 3)))
        axes.set(xlim=(-0.02 * widest, widest), ylim=(0, 1.7 * widest), xlabel="gap between bursts G (µs); dotted: V/R", ylabel=name)
    left.set_ylim(0, 0.75 * widest)
    left.set_title("max(T0, V/R − G)", fontsize=8, loc="right", color="0.3")
    right.set_title("max(T0 + G, V/R)", fontsize=8, loc="right", color="0.3")
    left.plot([], [], color="0.3", linewidth=0.8, linestyle=(0, (1, 2)), label="alone: (V − Q)/R")
    top_legend(figure, left, SHOWN_SIZES + 1)
    heading = f"A gap hides the drain one for one, {producers} SMs × {warps} warps, {pair_label(fitted.pair)}"
    middle = max((s for s in pick(rows["bytes"], SHOWN_SIZES) if entry and s <= (entry.knee_bytes.value or np.inf)), default=None)
    if shown and entry is not None and middle is not None:
        free, drain = free_cycles(entry, middle, fitted.flavour), drain_ns(entry, middle)
        if free is not None and drain is not None:
            enough = max(0.0, float(drain) / 1e3 - float(free) / model.sm_clock_mhz)
            heading = f"Bursts of {middle / 1024:g} KiB per SM are free from a gap of {enough:.2g} µs, {pair_label(fitted.pair)}"
    label(figure, run, f"n = {len(rows)} bursts (first after idle left out); bars: 10–90 %", heading)
    return figure


FIGURE = FigureSpec(
    name="gap",
    title="Issue time and period against the gap",
    caption=(
        "Left: with no gap a burst costs as long as its bytes take to drain, V/R; useful work in the gap hides that time one "
        "for one, until only the issue T0 is left. Right: the period stays at V/R until the gap exceeds it, so gaps shorter "
        "than that are free. A burst larger than Q stalls even alone (dotted). Lines are the law with T0, R and Q from the "
        "model, not a fit to these points."
    ),
    draw=draw,
    order=20,
)
