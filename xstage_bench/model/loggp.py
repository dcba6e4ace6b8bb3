"""LogGP with its numbers fitted as the node model's are: the strongest rival that has no capacity (Alexandrov et al. 1995)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.node.calibrate import ROBUST
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.schedule.bursts import Schedule

#: Where a fit begins: overhead and cost of a store are those of any SM, within a factor of a few.
_START_CYCLES = (50.0, 20.0, 10.0)


@dataclass(frozen=True, slots=True)
class LogGP:
    """A burst costs o + max(g n + h n (W - 1), G V) cycles, for n warp-stores of each of W warps and V bytes of all producers.

    A message pays for its bytes at once: nothing can be outstanding, and nothing is carried over to the next burst.
    """

    overhead_cycles: float
    store_cycles: float
    warp_store_cycles: float
    cycles_per_byte: float

    def issue_cycles(self, schedules: Sequence[Schedule]) -> FloatArray:
        """Predict the issue time of every burst, schedule after schedule; an empty one costs nothing."""
        return self._costs(*_sizes(schedules))

    def _costs(self, stores: FloatArray, warps: FloatArray, volume: FloatArray) -> FloatArray:
        sent = self.store_cycles * stores + self.warp_store_cycles * stores * (warps - 1)
        return np.where(volume > 0, self.overhead_cycles + np.maximum(sent, self.cycles_per_byte * volume), 0.0)


def fit_loggp(data: MeasuredSchedules) -> LogGP:
    """Fit the four numbers to the log of issue times, by the loss of the node model, every schedule with the same weight.

    Raises
    ------
    DataError
        Fewer bursts than numbers.
    """
    from scipy.optimize import least_squares

    stores, warps, volume = _sizes(data.schedules) if data.schedules else (np.zeros(0),) * 3
    keep = (data.issue_cycles > 0) & (volume > 0)
    if keep.sum() < 4:
        raise DataError(f"{keep.sum()} bursts cannot fix the four numbers of LogGP", "measure the probes isolated, periodic, timed")
    stores, warps, volume, issue = stores[keep], warps[keep], volume[keep], data.issue_cycles[keep]
    weight = 1 / np.sqrt(np.diff(data.first)[data.owner][keep])
    large = volume >= np.quantile(volume, 0.9)
    start = np.log([*_START_CYCLES, np.median(issue[large] / volume[large])])

    def residual(x: FloatArray) -> FloatArray:
        return np.asarray((np.log(LogGP(*np.exp(x))._costs(stores, warps, volume)) - np.log(issue)) * weight)

    return LogGP(*(float(v) for v in np.exp(least_squares(residual, start, loss="soft_l1", f_scale=ROBUST).x)))


def _sizes(schedules: Sequence[Schedule]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Stores of each warp, warps, and bytes of all producers, by burst."""
    stores = np.concatenate([s.stores_per_warp() for s in schedules]).astype(np.float64)
    warps = np.concatenate([np.full(len(s.bursts), float(s.warps)) for s in schedules])
    volume = np.concatenate([np.array([b.bytes for b in s.bursts], dtype=np.float64) * s.producer_count for s in schedules])
    return stores, warps, volume
