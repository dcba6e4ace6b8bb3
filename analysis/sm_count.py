"""Drain rate R and outstanding capacity Q against the number of producing SMs, the LOCAL control beside the remote pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import Absent, FigureSpec, counted, label, new_figure, series_style

from ._common import interval_bars, pair_label, pick, slowest_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, PairModel, Validation
    from xstage_bench.model.estimate import Estimate
    from xstage_bench.record.reader import Run

SHOWN_WARPS = 5
#: Of the largest rate: from here on the link counts as full.
FULL = 0.97
RATES = (
    ("makespan", "remote, slowest producer of bursts"),
    ("sustained", "remote, one sustained burst"),
    ("zero_gap", "remote, zero-gap periodic"),
)


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw R against K by every statistic (left) and Q per SM against K for every W (right), with intervals."""
    remote = next((p for p in slowest_first(model) if p.drain or p.burst_gap), None)
    if remote is None:
        return Absent("no remote pair was fitted")
    local = next((p for p in model.pairs if p.is_local and p.pair.split(">")[0] == remote.pair.split(">")[0]), None)

    figure = new_figure(7.4, 3.7)
    left, right = figure.subplots(1, 2)
    shown = [_points(left, i, [(d.producers, getattr(d, key)) for d in remote.drain], name) for i, (key, name) in enumerate(RATES)]
    if local is not None:
        best = [(d.producers, d.sustained if d.sustained.value is not None else d.makespan) for d in local.drain]
        shown.append(_points(left, len(RATES), best, "local control"))
    shown.append(_capacities(right, remote))
    if not any(shown):
        return Absent("neither R nor Q was identified for any number of SMs")
    line_rate = run.manifest.node.line_rate(remote.pair)
    if line_rate is not None:
        left.axhline(line_rate, color="0.35", linewidth=0.9, linestyle=(0, (6, 2)))
        where = {"xycoords": ("axes fraction", "data"), "fontsize": 7, "va": "bottom", "color": "0.25"}
        left.annotate(f"line rate {line_rate:.0f}", (0.01, line_rate), **where)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("producing SMs, K")
    top = max([1.0, *(e.value for d in remote.drain for e in (d.makespan, d.sustained) if e.value)])
    left.set(ylabel="drain rate R (GB/s = 10⁹ B/s)", ylim=(0, 1.6 * top))
    right.set(ylabel="outstanding capacity per SM, Q/K (kB)", ylim=(0, None))
    left.legend(loc="upper left" if local is None else "lower right", fontsize=6.5)
    right.legend(loc="lower right")
    repetitions = max((e.repetitions for e in remote.burst_gap), default=0)
    rates = sorted((d.producers, d.makespan.value) for d in remote.drain if d.makespan.value is not None)
    heading = f"Drain rate and capacity against SM count, {pair_label(remote.pair)}"
    if rates:
        top = max(rate for _, rate in rates)
        enough = next(k for k, rate in rates if rate >= FULL * top)
        full = f"{enough} SMs fill the link at {top:.0f} GB/s, more do not store faster"
        heading = (
            f"{full if enough < rates[-1][0] else f'{enough} SMs store {top:.0f} GB/s and do not fill the link'}, {pair_label(remote.pair)}"
        )
    label(figure, run, f"n = {counted(repetitions, 'repetition')}; bars: 95 % interval", heading)
    return figure


def _points(axes: Axes, i: int, values: list[tuple[int, Estimate]], name: str) -> bool:
    """Draw the estimates that have a value; say whether there were any."""
    have = sorted(((k, e) for k, e in values if e.value is not None), key=lambda item: item[0])
    if not have:
        return False
    estimates = [e for _, e in have]
    producers = np.array([k for k, _ in have])
    centre = np.array([e.value for e in estimates], dtype=np.float64)
    axes.errorbar(producers, centre, yerr=interval_bars(estimates), **series_style(i), elinewidth=1.0, capsize=2, label=name)
    return True


def _capacities(axes: Axes, remote: PairModel) -> bool:
    """Draw Q/K of every W, a little apart in K so that the intervals can be told apart."""
    drawn = False
    widths = pick({e.warps for e in remote.burst_gap}, SHOWN_WARPS)
    for i, warps in enumerate(widths):
        entries = [e for e in remote.burst_gap if e.warps == warps and e.capacity_bytes_per_producer.status == "ok"]
        have = [(e.producers, e.capacity_bytes_per_producer) for e in sorted(entries, key=lambda e: e.producers)]
        if not have:
            continue
        at = np.array([k for k, _ in have]) * 1.035 ** (i - (len(widths) - 1) / 2)
        centre = np.array([e.value for _, e in have], dtype=np.float64) / 1e3
        error = interval_bars([e for _, e in have]) / 1e3
        axes.errorbar(at, centre, yerr=error, **series_style(i), elinewidth=1.0, capsize=2, label=f"W = {warps}")
        drawn = True
    if not drawn:
        axes.text(0.5, 0.5, "not identified:\nno burst saturated", transform=axes.transAxes, ha="center", va="center", color="0.3")
        axes.plot([], [], color="none", label=" ")
    return drawn


FIGURE = FigureSpec(
    name="sm_count",
    title="Drain rate and capacity against SM count",
    caption=(
        "Left: where R stops growing with K, the link is full; the same code writing the GPU's own memory (local control) shows "
        "what the SMs could do without it (it leaves the axis). Right: the capacity per SM. Where the points lie level over K and "
        "W, Q belongs to the SM and that of the GPU is K times it. Where nothing saturates there is no Q and no point."
    ),
    draw=draw,
    order=50,
)
