"""Many schedules as flat arrays: what `predict_packed` takes, and what reading Schedule objects one by one would cost more than predicting.

One entry per burst, schedule after schedule; one per schedule; and the few distinct sets of producers beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.node.placement import Placement
from xstage_bench.schedule.bursts import MAX_WARPS, START_RULES, Burst, Schedule

#: Values of `PackedSchedules.rule`; those of the last two are `fluid.FREE` and `fluid.TIMED`.
RULES = {name: i for i, name in enumerate(START_RULES)}


@dataclass(frozen=True, slots=True, eq=False)
class PackedSchedules:
    """Schedules of one pair.

    Parameters
    ----------
    first : ndarray of int, shape (schedules + 1,)
        Bursts of schedule i are ``first[i]:first[i + 1]``.
    bytes, gap_cycles, start_ns : ndarray, shape (bursts,)
        As in `Burst`, but floats.
    rule, warps : ndarray of int, shape (schedules,)
        Start rule, an index of `START_RULES`; warps per producer.
    store_bytes : ndarray, shape (schedules,)
        Bytes of a warp-store.
    producers : ndarray of int, shape (schedules,)
        Index into `sets`.
    sets : tuple
        Distinct values of `Schedule.producers`: a count, or smids.
    """

    first: IntArray
    bytes: FloatArray
    gap_cycles: FloatArray
    start_ns: FloatArray
    rule: IntArray
    warps: IntArray
    store_bytes: FloatArray
    producers: IntArray
    sets: tuple[int | tuple[int, ...], ...]

    def __post_init__(self) -> None:
        # The compiled loop checks no bounds: what is wrong must not get there.
        bursts, schedules = self.bytes.size, self.rule.size
        floats = (self.bytes, self.gap_cycles, self.start_ns, self.store_bytes)
        whole = (self.first, self.rule, self.warps, self.producers)
        fit = (
            all(x.dtype == np.float64 and x.flags.c_contiguous and x.ndim == 1 for x in floats)
            and all(x.dtype == np.int64 and x.flags.c_contiguous and x.ndim == 1 for x in whole)
            and self.gap_cycles.size == self.start_ns.size == bursts
            and self.first.size == schedules + 1
            and self.warps.size == self.store_bytes.size == self.producers.size == schedules
        )
        if not fit:
            raise UsageError("packed schedules: arrays of the wrong type or length", "float64 or int64 as documented; see pack()")
        inside = self.first[0] == 0 and self.first[-1] == bursts and bool((np.diff(self.first) > 0).all())
        known = _within(self.rule, 0, len(RULES) - 1) and _within(self.producers, 0, len(self.sets) - 1)
        if not (
            inside
            and known
            and _within(self.warps, 1, MAX_WARPS)
            and all(_within(x, 0, 1e18) for x in floats)
            and _within(self.store_bytes, 1, 1e18)
        ):
            raise UsageError("packed schedules: a value out of its range", "see PackedSchedules for what each array holds")

    @property
    def owner(self) -> IntArray:
        """Schedule of each burst."""
        return np.repeat(np.arange(self.rule.size), np.diff(self.first))

    def by_warps(self) -> tuple[PackedSchedules, IntArray]:
        """Return the same schedules with sets of producers told apart by their warps, and the warps of each set."""
        kinds, index = np.unique(np.stack([self.producers, self.warps]), axis=1, return_inverse=True)
        sets = tuple(self.sets[int(i)] for i in kinds[0])
        return replace(self, producers=np.ascontiguousarray(index.reshape(-1), dtype=np.int64), sets=sets), kinds[1]

    def members(self, placement: Placement) -> IntArray:
        """Return how many producers each unit of the map has, shape (sets, units).

        Raises
        ------
        UsageError
            A set asks for SMs that the map lacks.
        """
        smids = np.array(placement.smids, dtype=np.int64)
        unit = placement.unit_of(smids)
        found = np.zeros((len(self.sets), len(placement.units)), dtype=np.int64)
        for i, producers in enumerate(self.sets):
            asked = Schedule((Burst(0),), producers).smids(cast("Sequence[int]", smids))
            found[i] = np.bincount(unit[np.searchsorted(smids, asked)], minlength=found.shape[1])
        return found


def _within(x: NDArray[Any], low: float, high: float) -> bool:
    """Whether all of x lies in [low, high]; false for NaN."""
    return x.size == 0 or bool(x.min() >= low and x.max() <= high)


def pack(schedules: Sequence[Schedule]) -> PackedSchedules:
    """Return schedules as arrays.

    Parameters
    ----------
    schedules : sequence of Schedule
    """
    lengths = [len(s.bursts) for s in schedules]
    bursts = [b for s in schedules for b in s.bursts]

    def of_bursts(name: str) -> FloatArray:
        return np.fromiter(map(attrgetter(name), bursts), dtype=np.float64, count=len(bursts))

    sets = {producers: i for i, producers in enumerate(dict.fromkeys(s.producers for s in schedules))}
    return PackedSchedules(
        first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        bytes=of_bursts("bytes"),
        gap_cycles=of_bursts("gap_cycles"),
        start_ns=of_bursts("start_ns"),
        rule=np.array([RULES[s.start] for s in schedules], dtype=np.int64),
        warps=np.array([s.warps for s in schedules], dtype=np.int64),
        store_bytes=np.array([s.warp_store_bytes for s in schedules], dtype=np.float64),
        producers=np.array([sets[s.producers] for s in schedules], dtype=np.int64),
        sets=tuple(sets),
    )
