"""What a system-scope fence after a burst costs: it waits for what the burst left in the stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import Absent, FigureSpec, label, new_figure, plain_ticks, series_style, top_legend

from ._common import bars, interval_bars, nearest, pair_label, pick, shown_pair, spread, valid_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run

SHOWN_WARPS = 4
SHOWN_PRODUCERS = 5


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw fence time after isolated bursts against their size, per K, with the empty fence as a line."""
    rows = valid_rows(run.samples(), "isolated")
    rows = rows[rows["drain_mean_cycles"].notna() & (rows["bytes"] > 0)]
    fitted = shown_pair(model, rows)
    if fitted is None:
        return Absent("no fence was timed after isolated bursts of a fitted pair")
    rows = rows[(rows["pair"] == fitted.pair) & (rows["flavour"] == fitted.flavour)]
    warps = nearest(rows["warps"], SHOWN_WARPS)
    rows = rows[rows["warps"] == warps]
    rows = rows.assign(drain_us=rows["drain_mean_cycles"] / rows["sm_clock_mhz"])
    table = spread(rows, ["producers", "bytes"], "drain_us")

    figure = new_figure(6.4, 4.0, legend_rows=2)
    axes = figure.subplots()
    for i, producers in enumerate(reversed(pick(table["producers"], SHOWN_PRODUCERS))):
        series, look = table[table["producers"] == producers], series_style(i)
        axes.errorbar(series["bytes"] / 1e3, series["middle"], yerr=bars(series), **look, elinewidth=0.8, label=f"K = {producers}")
        entry = fitted.find(producers, warps)
        if entry is not None and entry.knee_bytes.value is not None:
            height = float(np.interp(entry.knee_bytes.value, series["bytes"], series["middle"]))
            axes.errorbar(
                [entry.knee_bytes.value / 1e3], [height], xerr=interval_bars([entry.knee_bytes]) / 1e3, color=look["color"], marker="*",
                markersize=9, markerfacecolor="white", capsize=3, elinewidth=1.2, zorder=5,
            )  # fmt: skip
    empty = None if model.timer is None else model.timer.empty_fence_cycles.value
    if empty is not None:
        axes.axhline(empty / model.sm_clock_mhz, color="0.35", linewidth=0.9, linestyle=(0, (6, 2)), label="fence with nothing outstanding")
    axes.plot([], [], color="0.3", marker="*", markersize=9, markerfacecolor="white", linestyle="none", label="knee of the issue time")
    axes.set(xscale="log", yscale="log", xlabel=f"burst per producer (kB), W = {warps} warps", ylabel="system fence after the burst (µs)")
    plain_ticks(axes)
    top_legend(figure, axes, 4)
    heading = f"Fence after one isolated burst, {pair_label(fitted.pair)}"
    label(figure, run, f"n = {len(rows)} bursts; mean over producers, bars: 10–90 %", heading)
    return figure


FIGURE = FigureSpec(
    name="drain",
    title="Fence time after a burst",
    caption=(
        "A fence waits until everything outstanding has arrived. Its cost grows with the burst while the stage fills and levels "
        "off where it is full, near the knee of the issue time (star): a larger burst has already waited for the rest while "
        "issuing."
    ),
    draw=draw,
    order=80,
)
