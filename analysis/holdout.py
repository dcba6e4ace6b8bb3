"""Predicted against measured issue time on schedules that no fit has seen, per start rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.errors import XStageError
from xstage_bench.show.figures import FITTED, Absent, FigureSpec, counted, label, new_figure, plain_ticks, top_legend

from ._common import Array, valid_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.model.prediction import Form
    from xstage_bench.record.reader import Run

STALLED_ABOVE = 1.1
BAND = 0.10
NAMES = {"node": "node model", "burst_gap": "Burst-Gap law"}
TITLES = {"isolated": "isolated", "free": "free-running", "timed": "on deadlines"}


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw one panel per start rule and model: each point is one burst of one held-out schedule, median over repetitions."""
    rows = valid_rows(run.samples(), "holdout")
    fitted = any(p.node_basis is not None for p in model.pairs)
    forms: tuple[Form, ...] = ("node", "burst_gap") if fitted else ("burst_gap",)
    points = {form: predicted_points(rows, model, form) for form in forms}
    points = {form: found for form, found in points.items() if len(found)}
    if not points:
        return Absent("no valid held-out schedules of a fitted pair were recorded")

    some = next(iter(points.values()))
    rules = [rule for rule in TITLES if rule in set(some["start"])]
    figure = new_figure(1.0 + 2.35 * max(2, len(rules)), 1.0 + 2.5 * len(points), legend_rows=1)
    grid = figure.subplots(len(points), len(rules), sharex=True, sharey=True, squeeze=False)
    values = np.concatenate([found[["measured_us", "predicted_us"]].to_numpy().ravel() for found in points.values()])
    low, high = values.min() / 1.5, values.max() * 1.5
    for line, (form, found) in zip(grid, points.items(), strict=True):
        for axes, rule in zip(line, rules, strict=True):
            _panel(axes, found[found["start"] == rule], np.array([low, high]))
            axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
            plain_ticks(axes)
        line[0].set_ylabel(f"{NAMES[form]}\npredicted (µs)")
    for axes, rule in zip(grid[0], rules, strict=True):
        axes.set_title(TITLES[rule], fontsize=8.5)
    for axes in grid[-1]:
        axes.set_xlabel("measured issue time (µs)")
    top_legend(figure, grid[0][0], 4)
    schedules = counted(some["schedule"].nunique(), "schedule")
    form = next(iter(points))
    off = (some["predicted_us"] / some["measured_us"] - 1).abs()
    heading = (
        f"The {NAMES[form]} misses unseen bursts by {100 * off.median():.1f} %, one in twenty by more than {100 * off.quantile(0.95):.0f} %"
    )
    label(figure, run, f"n = {counted(len(some), 'burst')} of {schedules}; median of repetitions", heading)
    return figure


def predicted_points(rows: pd.DataFrame, model: Model, form: Form) -> pd.DataFrame:
    """Return one row per pair, schedule and burst: measured and predicted issue time in us, and whether the measured burst stalled."""
    import pandas as pd

    from xstage_bench.model.predict import predict_all
    from xstage_bench.record.reader import schedules_of

    columns = ["schedule", "burst", "start", "measured_us", "predicted_us", "stalled"]
    pairs = [p for p in model.pairs if form == "burst_gap" or p.node_basis is not None]
    rows = rows[rows["pair"].isin({p.pair for p in pairs}) & (rows["bytes"] > 0)] if len(rows) else rows
    if not len(rows):
        return pd.DataFrame(columns=columns)
    measured = rows.groupby(["schedule", "burst"], observed=True)["issue_us"].median()
    schedules = schedules_of(rows)
    found = []
    for pair in pairs:
        mine = {k: s for k, s in schedules.items() if f"{s.source}>{s.destination}" == pair.pair and s.warps_meet}
        try:
            tables = predict_all(model, list(mine.values()), form=form)
        except XStageError:  # nothing was identified for this pair and flavour, so there is nothing to compare with
            continue
        for (key, schedule), table in zip(mine.items(), tables, strict=True):
            cycles, free = table.issue_cycles, table.t0_cycles
            for burst in range(len(schedule.bursts)):
                if (key, burst) in measured.index and np.isfinite(cycles[burst]):
                    us = float(measured[key, burst])
                    stalled = us > STALLED_ABOVE * free[burst] / model.sm_clock_mhz
                    found.append((key, burst, schedule.start, us, cycles[burst] / model.sm_clock_mhz, stalled))
    return pd.DataFrame(found, columns=columns)


def _panel(axes: Axes, points: pd.DataFrame, limits: Array) -> None:
    axes.fill_between(limits, limits * (1 - BAND), limits * (1 + BAND), color="0.72", linewidth=0, label="±10 %", zorder=1)
    axes.plot(limits, limits, color=FITTED, linewidth=0.7, label="predicted = measured", zorder=4)
    stalled = points["stalled"].to_numpy(dtype=bool)
    free, held = points[~stalled], points[stalled]
    look: dict[str, Any] = {"marker": "^", "color": "0.15", "alpha": 0.45, "linewidths": 0, "rasterized": True, "label": "stalled"}
    axes.scatter(held["measured_us"], held["predicted_us"], s=7, **look)
    axes.scatter(
        free["measured_us"], free["predicted_us"], s=8, marker="o", facecolors="none", edgecolors="#1f6f8b", linewidths=0.6, alpha=0.7,
        rasterized=True, label="not stalled",
    )  # fmt: skip
    error = np.abs(points["predicted_us"] / points["measured_us"] - 1)
    text = f"median error {100 * error.median():.1f} %\np90 {100 * error.quantile(0.9):.0f} %\nn = {len(points)}"
    axes.text(
        0.97,
        0.03,
        text,
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=7,
        bbox={"facecolor": "white", "alpha": 0.8, "pad": 1.5, "edgecolor": "none"},
    )


FIGURE = FigureSpec(
    name="holdout",
    title="Predicted against measured on held-out schedules",
    caption=(
        "Every point is a burst of a random schedule that no fit has seen. On the line the prediction is exact, in the grey "
        "band within 10 %. Above: the node model, which carries how far groups of producers have drifted apart. Below: the "
        "three-parameter law. Its points far above the line were predicted to stall and did not: producers that stalled once are "
        "out of step and collide less, "
        "which a model of equal producers cannot see."
    ),
    draw=draw,
    order=60,
)
