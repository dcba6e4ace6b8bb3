"""Issue time of isolated bursts against their size: free below the knee, drained by the link beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import Absent, FigureSpec, label, new_figure, plain_ticks, series_style

from ._common import Array, bars, interval_bars, isolated_cycles, nearest, pair_label, pick, shown_pair, spread, valid_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from xstage_bench.model.document import BurstGap, Model, PairModel, Validation
    from xstage_bench.record.reader import Run

SHOWN_WARPS = 4
SHOWN_PRODUCERS = 6


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw issue time against burst for several K at one W, and the fitted law's deviation below."""
    rows = valid_rows(run.samples(), "isolated")
    fitted = shown_pair(model, rows)
    if fitted is None:
        return Absent("no valid isolated bursts of a fitted pair were recorded")
    rows = rows[(rows["pair"] == fitted.pair) & (rows["bytes"] > 0) & (rows["flavour"] == fitted.flavour)]
    warps = nearest(rows["warps"], SHOWN_WARPS)
    rows = rows[rows["warps"] == warps]
    table = spread(rows, ["producers", "bytes"], "issue_us")

    figure = new_figure(6.6, 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    worst = 10.0
    for i, producers in enumerate(reversed(pick(table["producers"], SHOWN_PRODUCERS))):
        series = table[table["producers"] == producers]
        worst = max(worst, _draw_series(upper, lower, series, i, fitted.find(producers, warps), fitted, model.sm_clock_mhz))
    upper.set(xscale="log", yscale="log", ylabel="issue time, mean over producers (µs)")
    lower.set(ylabel="law / measured\n− 1 (%)", xlabel=f"burst per producer (kB = 10³ B), W = {warps} warps")
    lower.set_ylim(-1.1 * worst, 1.1 * worst)
    lower.axhline(0, color="0.3", linewidth=0.8)
    lower.axhspan(-5, 5, color="0.93", zorder=0)
    upper.plot([], [], color="0.3", marker="*", markersize=9, markerfacecolor="white", linestyle="-", label="knee, 95 % interval")
    plain_ticks(upper)
    upper.legend(loc="upper left", ncols=1)
    heading = _finding(table[table["producers"] == table["producers"].max()], pair_label(fitted.pair))
    label(figure, run, f"n = {len(rows)} bursts; bars: 10–90 % of repetitions", heading)
    return figure


def _finding(series: pd.DataFrame, pair: str) -> str:
    """Say up to which size a burst of the most SMs is free, and how much longer the next one that was measured at twice the size takes."""
    size, took = (series[name].to_numpy(dtype=np.float64) for name in ("bytes", "middle"))
    per_byte = took / size
    step = np.flatnonzero(per_byte[1:] > 1.3 * np.minimum.accumulate(per_byte)[:-1])
    if not step.size:
        return f"No burst up to {size.max() / 1024:g} KiB per SM is held back, {pair}"
    free = int(step[0])
    twice = min(int(np.searchsorted(size, 2 * size[free])), size.size - 1)
    ratio = took[twice] / took[free]
    return f"{size[free] / 1024:g} KiB per SM is free, {size[twice] / 1024:g} KiB takes {ratio:.3g} times as long, {pair}"


def _draw_series(
    upper: Axes, lower: Axes, series: pd.DataFrame, i: int, entry: BurstGap | None, fitted: PairModel, sm_clock_mhz: float
) -> float:
    """Draw one K; return the largest deviation of its law in per cent, zero without a law."""
    look = series_style(i)
    size = series["bytes"].to_numpy(dtype=np.float64)
    upper.errorbar(size / 1e3, series["middle"], yerr=bars(series), **{**look, "linestyle": "none"}, elinewidth=0.8)
    upper.plot([], [], **look, label=f"K = {series['producers'].iloc[0]}")
    if entry is None:
        return 0.0
    at_points, dense = isolated_cycles(entry, size, fitted.flavour), np.geomspace(size.min(), size.max(), 200)
    curve = isolated_cycles(entry, dense, fitted.flavour)
    if at_points is None or curve is None:
        return 0.0
    upper.plot(dense / 1e3, curve / sm_clock_mhz, color=look["color"], linestyle=look["linestyle"], linewidth=1.0)
    deviation: Array = 100 * (at_points / sm_clock_mhz / series["middle"].to_numpy() - 1)
    lower.plot(size / 1e3, deviation, **{**look, "linewidth": 0.7, "markersize": 3})
    knee = entry.knee_bytes
    at_knee = None if knee.value is None else isolated_cycles(entry, knee.value, fitted.flavour)
    if knee.value is not None and at_knee is not None:
        upper.errorbar(
            [knee.value / 1e3], [float(at_knee) / sm_clock_mhz], xerr=interval_bars([knee]) / 1e3, color=look["color"], marker="*",
            markersize=9, markerfacecolor="white", capsize=3, elinewidth=1.4, zorder=5,
        )  # fmt: skip
    return float(np.abs(deviation).max())


FIGURE = FigureSpec(
    name="issue_time",
    title="Issue time against burst size",
    caption=(
        "Each curve is one number of producing SMs. Below its knee (star, with its interval) a burst costs only its own issue, "
        "T0; beyond it every further byte waits for the link, and the curve turns up to the slope set by the drain rate. Lines "
        "are the fitted law; the lower panel is what it gets wrong, with 5 % shaded."
    ),
    draw=draw,
    order=10,
)
