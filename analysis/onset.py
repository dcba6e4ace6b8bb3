"""Backpressure-onset map: bursts on a common deadline, stalled or not, against burst size and period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import FITTED, Absent, FigureSpec, label, new_figure, plain_ticks, top_legend

from ._common import drain_ns, free_cycles, pair_label, shown_pair, valid_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, PairModel, Validation
    from xstage_bench.record.reader import Run

STALLED_ABOVE = 1.1
COLOUR_TOP = 30.0


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw the map (left) and the same points against period over V/R (right)."""
    rows = valid_rows(run.samples(), "timed")
    rows = rows[rows["bursts"] > 1]
    fitted = shown_pair(model, rows)
    if fitted is None:
        return Absent("no valid timed bursts of a fitted pair were recorded")
    rows = rows[(rows["pair"] == fitted.pair) & (rows["flavour"] == fitted.flavour)]
    points = onset_points(rows, fitted, model.sm_clock_mhz)
    points = points[points["producers"] == points["producers"].max()] if len(points) else points
    if not len(points):
        return Absent("T0 and R of the producers in the timed probe were not identified, so there is no boundary to draw")
    producers = int(points["producers"].iloc[0])

    from matplotlib.colors import LogNorm

    figure = new_figure(7.4, 4.0, legend_rows=2)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    norm = LogNorm(1.0, COLOUR_TOP)
    stalled = points["stall"] >= STALLED_ABOVE
    beyond = points["bytes"] > points["knee_bytes"]
    for axes, x, y in ((left, points["bytes"] / 1e3, points["period_us"]), (right, points["load"], points["stall"])):
        axes.scatter(x[~stalled], y[~stalled], marker="o", s=20, facecolors="white", edgecolors="0.2", linewidths=0.9, zorder=3)
        for which, marker in ((stalled & ~beyond, "s"), (stalled & beyond, "D")):
            image = axes.scatter(
                x[which], y[which], marker=marker, s=18, c=points["stall"][which], cmap="YlOrBr", norm=norm, edgecolors="0.2",
                linewidths=0.4, zorder=3,
            )  # fmt: skip
    knee = float(points["knee_bytes"].median())
    size = np.geomspace(points["bytes"].min() / 1.2, min(points["bytes"].max() * 1.2, knee), 50)
    rate = float((producers * points["bytes"] / points["drain_us"]).median())
    left.plot(size / 1e3, producers * size / rate, color=FITTED, linewidth=1.5, label="predicted onset: period = V/R", zorder=2)
    if np.isfinite(knee) and beyond.any():
        top = 1.5 * float(points["period_us"].max())
        edge = {"color": FITTED, "linewidth": 1.5, "linestyle": "--", "label": "predicted: one burst exceeds Q"}
        left.plot([knee / 1e3] * 2, [producers * knee / rate, top], **edge)
    left.scatter([], [], marker="o", s=20, facecolors="white", edgecolors="0.2", label=f"no stall (below {STALLED_ABOVE} T0)")
    left.scatter([], [], marker="s", s=18, color="#cc7a29", edgecolors="0.2", linewidths=0.4, label="stall")
    if beyond.any():
        left.scatter([], [], marker="D", s=18, color="#cc7a29", edgecolors="0.2", linewidths=0.4, label="stall, burst exceeds Q")
    left.set(xscale="log", yscale="log", xlabel="burst per producer (kB)", ylabel="period between deadlines (µs)")
    plain_ticks(left)
    top_legend(figure, left, 3)
    right.axvline(1.0, color=FITTED, linewidth=1.5, zorder=2)
    right.axhline(STALLED_ABOVE, color="0.5", linewidth=0.8, linestyle=":")
    right.set(xscale="log", yscale="log", xlabel="period / (V/R)", ylabel="issue time / T0, last half of the bursts")
    plain_ticks(right, "y")
    right.xaxis.set_major_locator(_fixed([0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0]))
    right.xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_locator(_fixed([]))
    figure.colorbar(image, ax=right, label="issue time / T0", extend="max", shrink=0.9)
    told = (beyond | (points["load"] < 1)) == stalled
    heading = (
        f"V/R and Q tell which of {len(points)} schedules stall in {100 * told.mean():.0f} %, {producers} SMs, {pair_label(fitted.pair)}"
    )
    label(figure, run, f"n = {len(points)} schedules, {int(points['n'].sum())} bursts", heading)
    return figure


def onset_points(rows: pd.DataFrame, fitted: PairModel, sm_clock_mhz: float) -> pd.DataFrame:
    """Reduce timed schedules to one point each: period, T0 and V/R by the model, stall = issue / T0 over the last half of its bursts.

    The last half, as a backlog that grows by a little each burst stalls only after many of them.
    """
    import pandas as pd

    found = []
    for key, some in rows.groupby("schedule", sort=True):
        sizes = some["bytes"].unique()
        entry = fitted.find(int(some["producers"].iloc[0]), int(some["warps"].iloc[0]))
        if entry is None or len(sizes) != 1:
            continue
        free, drain = free_cycles(entry, sizes[0], fitted.flavour), drain_ns(entry, sizes[0])
        starts = some.groupby("burst")["start_ns"].first().sort_index()
        period_us = float(starts.iloc[-1] - starts.iloc[0]) / (len(starts) - 1) / 1e3 if len(starts) > 1 else 0.0
        if free is None or drain is None or period_us <= 0:
            continue
        late = some[some["burst"] >= some["bursts"] // 2]
        point = {
            "schedule": key, "producers": entry.producers, "warps": entry.warps, "bytes": int(sizes[0]), "period_us": period_us,
            "drain_us": float(drain) / 1e3, "knee_bytes": np.inf if entry.knee_bytes.value is None else entry.knee_bytes.value,
            "stall": float(late["issue_us"].median()) / (float(free) / sm_clock_mhz), "n": len(late),
        }  # fmt: skip
        found.append(point)
    columns = ["schedule", "producers", "warps", "bytes", "period_us", "drain_us", "knee_bytes", "stall", "n"]
    table = pd.DataFrame(found, columns=columns)
    return table.assign(load=table["period_us"] / table["drain_us"])


def _fixed(ticks: list[float]) -> object:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(ticks)


FIGURE = FigureSpec(
    name="onset",
    title="Backpressure-onset map",
    caption=(
        "Every point is a schedule of equal bursts on a fixed deadline. Above the orange line, period = V/R, the link drains a "
        "burst before the next and issue is free (circles); below it the backlog grows from burst to burst until issue stalls "
        "(squares, darker is worse). A burst beyond the knee exceeds Q by itself and stalls at any period (diamonds). Both "
        "lines are predicted from T0, R and Q of other probes."
    ),
    draw=draw,
    order=30,
)
