"""What the instrument itself costs, from bursts without any store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.arrays import IntArray
from xstage_bench.model.cells import by_repetition
from xstage_bench.model.document import TimerFacts
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.resample import Resampled, estimate, resample_medians

if TYPE_CHECKING:
    import pandas as pd

_MIN_DISTINCT = 3


def timer_facts(rows: pd.DataFrame, processes: IntArray, resamples: int, seed: int) -> TimerFacts | None:
    """Cost of the clock reads, of a fence with nothing outstanding, and the tick of %globaltimer.

    Parameters
    ----------
    rows : DataFrame
        Valid rows; the tick is the greatest common divisor of all their makespans, which are differences of the timer.
    processes : ndarray of int
    resamples, seed : int

    Returns
    -------
    TimerFacts or None
        None when no empty burst was measured.
    """
    empty = rows[(rows["probe"] == "timer") & (rows["bytes"] == 0)]
    if not len(empty):
        return None

    def fact(column: str) -> Estimate:
        if column not in empty:
            return Estimate.missing("not recorded", column)
        measured = empty[np.isfinite(empty[column].to_numpy(dtype=np.float64))]
        if not len(measured):
            return Estimate.missing("no empty burst recorded it", column)
        _, (values,) = by_repetition(measured, np.zeros(len(measured), dtype=np.int64), (column,), processes)
        centre, draws, apart = resample_medians(values, resamples, np.random.default_rng([seed, 4]))
        return estimate(Resampled(float(centre[0]), draws[:, 0], apart[:, 0], values.shape[1]), statistic=column)

    return TimerFacts(
        clock_read_cycles=fact("issue_mean_cycles"),
        empty_fence_cycles=fact("drain_mean_cycles"),
        globaltimer_tick_ns=_tick(rows),
        issued_read_cycles=fact("issued_mean_cycles"),
    )


def _tick(rows: pd.DataFrame) -> Estimate:
    if "makespan_ns" not in rows:
        return Estimate.missing("not recorded", "makespan_ns")
    makespan = rows["makespan_ns"].to_numpy(dtype=np.float64)
    whole = np.unique(np.rint(makespan[np.isfinite(makespan) & (makespan > 0)]).astype(np.int64))
    if whole.size < _MIN_DISTINCT:
        return Estimate.missing("too few distinct times to see the tick", "makespan_ns")
    tick = float(np.gcd.reduce(whole))
    return Estimate(value=tick, standard_error=0.0, low=tick, high=tick, statistic="makespan_ns")
