"""The pacer of ``cuda/xstage_pacer.cuh`` in Python: would a burst stall, by each producer's own estimate of its backlog?

For schedulers on the host, and to judge the pacer on recorded runs; a test compiles the C++ and compares both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.machine.gpus import Default
from xstage_bench.model.arrays import BoolArray, FloatArray
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.stage import Stage

#: Times T0, and these cycles of barriers and questions: from there on `Pacer.settle` takes a burst for a stalled one.
STALL_SEEN, OVERHEAD_CYCLES = 1.3, 400.0
#: Of Q, what a burst that did not stall leaves at most.
LEFT_AT_MOST = 0.8
_PICKED = "picked on recorded producers of 2 x H200, 2026-11-29 (results/h200-x2/pacer)"
#: The same for documents of what the pacer decided. ``cuda/xstage_pacer.cuh`` has the same values; a test compares both.
TUNED: tuple[Default, ...] = (
    Default(name="pacer: stalled from", value=STALL_SEEN, unit="T0", source=_PICKED),
    Default(name="pacer: overhead", value=OVERHEAD_CYCLES, unit="cycles", source=_PICKED),
    Default(name="pacer: left at most", value=LEFT_AT_MOST, unit="of Q", source=_PICKED),
)


class Pacer:
    """The estimates of some producers; all arrays have shape (producers,), times are SM cycles on each producer's own clock.

    Parameters
    ----------
    stage : Stage
        Of the producers that store at the same time.
    now : array_like
        Nothing is outstanding at this time.
    free_scale : float
        How many times the stage's T0 a burst takes in the kernel's own loop when nothing holds it back.
    """

    def __init__(self, stage: Stage, now: ArrayLike, free_scale: float = 1.0) -> None:
        self._stage, self._free_scale = stage, free_scale
        self._drained_at = np.asarray(now, dtype=np.float64).copy()
        self._begun, self._free = self._drained_at.copy(), 0.0

    def room_cycles(self, burst_bytes: float) -> float:
        """Return how far ahead of the clock the estimate may be for this burst not to stall: (Q + 1.1 T0 R - V)/R."""
        s = self._stage
        if s.stalled_gb_per_s is None:
            return np.inf
        issued = STALLED * s.free_cycles(burst_bytes) * s.stalled_gb_per_s * 1e3 / s.sm_clock_mhz
        return ((s.stalled_capacity_bytes or 0.0) + issued - burst_bytes * s.producers) / s.bytes_per_cycle

    def would_stall(self, burst_bytes: float, now: ArrayLike) -> BoolArray:
        """Answer for each producer."""
        room = self.room_cycles(burst_bytes)
        return np.asarray((room < 0) | (self._drained_at - np.asarray(now) > room))

    def better_later(self, burst_bytes: float, now: ArrayLike) -> BoolArray:
        """Whether the burst would stall less if it came later: one that never fits stalls least on a drained stage."""
        return np.asarray(self._drained_at - np.asarray(now) > max(self.room_cycles(burst_bytes), 0.0))

    def note(self, burst_bytes: float, now: ArrayLike) -> None:
        """Take a burst that begins now."""
        s, at = self._stage, np.asarray(now, dtype=np.float64)
        self._drained_at = np.maximum(self._drained_at, at) + burst_bytes * s.producers / s.bytes_per_cycle
        self._begun, self._free = at, STALL_SEEN * self._free_scale * s.free_cycles(burst_bytes) + OVERHEAD_CYCLES

    def settle(self, now: ArrayLike) -> None:
        """Correct the estimate after a burst's last store: one that stalled has filled Q, one that did not has left room."""
        s, at = self._stage, np.asarray(now, dtype=np.float64)
        full = 0.0 if s.stalled_gb_per_s is None else (s.stalled_capacity_bytes or 0.0) / s.bytes_per_cycle
        left = np.minimum(self._drained_at, at + LEFT_AT_MOST * full)
        self._drained_at = np.where(at - self._begun > self._free, at + full, left)


def answers(
    stage: Stage, sizes: Sequence[int], start_cycles: FloatArray, end_cycles: FloatArray, *, settle: bool = True, isolated: bool = False
) -> BoolArray:
    """Return what a pacer would have said before each burst of a recorded execution.

    Parameters
    ----------
    stage : Stage
    sizes : sequence of int, length N
        Bytes per producer of each burst.
    start_cycles, end_cycles : ndarray, shape (N, K)
    settle : bool
        Whether the producers correct their estimates after each burst.
    isolated : bool
        Each burst finds a drained stage.

    Returns
    -------
    ndarray of bool, shape (N, K)
    """
    pacer, out = Pacer(stage, start_cycles[0]), np.zeros(start_cycles.shape, dtype=bool)
    for i, (size, start, end) in enumerate(zip(sizes, start_cycles, end_cycles, strict=True)):
        if isolated:
            pacer = Pacer(stage, start)
        out[i] = pacer.would_stall(size, start)
        pacer.note(size, start)
        if settle:
            pacer.settle(end)
    return out
