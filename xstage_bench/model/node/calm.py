"""Schedules in which nothing can stall, found without the event loop: their bursts cost T0 and their producers stay in step.

A unit never gets less of the link than its share when all others are active. If the backlog stays within the capacity even at that least
rate, no unit stalls: a bound that needs one number per schedule, not one per unit. Whoever passes it is predicted exactly; who does not
goes through the event loop.
"""

from __future__ import annotations

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray
from xstage_bench.model.node.fluid import TIMED, FluidColumns, FluidSolution

_CLEAR = 12.0  # blur widths below the threshold at which the mean stall is nothing (exp(-12) of a width)


def calm(rows: FluidColumns) -> tuple[BoolArray, FloatArray, FloatArray, FloatArray]:
    """Return which columns cannot stall, and start, end and backlog of all producers together, shape (N, S), as if none did.

    Parameters
    ----------
    rows : FluidColumns
    """
    has = rows.members > 0
    count = np.maximum(rows.members, 1e-12)
    weight = rows.weight * rows.multiple
    share = weight * rows.link / np.where(has, weight, 0.0).sum(axis=0) / count
    least = np.minimum(np.where(has, share, np.inf).min(axis=0), rows.sm_rate)
    room = np.where(has, rows.capacity / count, np.inf).min(axis=0)
    producers = rows.members.sum(axis=0)
    most = np.minimum(producers * rows.sm_rate, rows.link)
    n, s = rows.load.shape
    start, end, left = np.empty((n, s)), np.empty((n, s)), np.empty((n, s))
    quiet = np.ones(s, dtype=bool)
    begin = np.where(rows.rule == TIMED, rows.deadline[0], 0.0)
    backlog, total = np.zeros(s), np.zeros(s)
    for i in range(n):
        if i:
            timed = np.maximum(end[i - 1] + rows.turnaround, rows.deadline[i])
            free = end[i - 1] + np.maximum(rows.turnaround, rows.gap[i] + rows.gap_overhead)
            begin = np.where(rows.rule == TIMED, timed, free)
            passed = begin - start[i - 1]
            backlog = np.maximum(backlog - least * passed, 0.0)
            total = np.maximum(total - most * passed, 0.0)
        carried = backlog > 0
        now = backlog + rows.load[i]
        # The same threshold as in the event loop: room less what a credit hides, clear of the blur.
        hidden = np.where(carried, np.maximum(least * (rows.credit - rows.free[i]), 0.0) + _CLEAR * rows.blur * backlog, 0.0)
        quiet &= (now + hidden <= room + rows.unheld[i]) | (i >= rows.bursts)
        start[i], end[i] = begin, begin + rows.free[i]
        total = total + rows.load[i] * producers
        left[i] = np.maximum(total - most * rows.free[i], 0.0)
        backlog = now
    return quiet, start, end, left


def calm_solution(rows: FluidColumns, start: FloatArray, end: FloatArray, left: FloatArray) -> FluidSolution:
    """Spread the results of `calm` over units, by their members."""
    shape = (rows.load.shape[0], *rows.members.shape)
    share = rows.members / rows.members.sum(axis=0)
    drained = end + left / rows.link
    return FluidSolution(
        np.broadcast_to(start[:, None], shape),
        np.broadcast_to(end[:, None], shape),
        left[:, None] * share,
        np.broadcast_to(drained[:, None], shape),
    )
