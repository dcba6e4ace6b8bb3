"""The same tasks in another order, in smaller bursts, or with producers set apart: what an advice may change about a TaskSchedule.

A *storing* task sends bytes to the destination, a *quiet* one sends none. Every change keeps each producer's work, its bytes and its
events; one that the dependencies forbid gives None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.schedule.tasks import NONE, TaskSchedule

DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Reordering:
    """What is done to a schedule, in this order; the default is nothing.

    Parameters
    ----------
    parts : int
        Each storing task becomes so many of equal size: smaller tiles, smaller bursts.
    lead : float or None
        Storing tasks are spread evenly between the quiet ones, each at least so many quiet tasks of a producer behind those that it waits
        for. None keeps the order.
    stagger_cycles : int
        The last producer begins so much later than the first, those between in proportion.
    """

    parts: int = 1
    lead: float | None = None
    stagger_cycles: int = 0

    def words(self) -> str:
        """Say it in a few words."""
        said = []
        if self.parts > 1:
            said.append(f"storing tasks in {self.parts} parts")
        if self.lead is not None:
            said.append(f"interleaved, lead {self.lead:g}")
        if self.stagger_cycles:
            said.append(f"producers {self.stagger_cycles} cycles apart in all")
        return ", ".join(said) or "as it is"


def apply(recipe: Reordering, schedule: TaskSchedule) -> TaskSchedule | None:
    """Return the changed schedule, or None where its dependencies forbid the order or a part would be no whole warp-store."""
    changed: TaskSchedule | None = schedule
    if recipe.parts > 1:
        changed = split(schedule, recipe.parts)
    if changed is not None and recipe.lead is not None:
        changed = interleave(changed, recipe.lead)
    if changed is not None and recipe.stagger_cycles:
        changed = stagger(changed, recipe.stagger_cycles)
    return changed


def interleave(schedule: TaskSchedule, lead: float) -> TaskSchedule | None:
    """Spread the storing tasks evenly between the quiet ones.

    Both kinds keep their own order. With x the number of quiet tasks before a task in its producer, and n1, n2 how many of each kind
    the producer has, storing task i of a producer is placed at::

        x_i = max(x_(i-1) + n1 / n2, need_i + lead)

    where `need` is the largest x of the tasks that signal what it waits for. So a storing task has as much quiet work before it as
    there is for each, and what it waits for was placed `lead` tasks earlier: no producer should have to wait.

    Parameters
    ----------
    schedule : TaskSchedule
    lead : float
        In quiet tasks of a producer.

    Returns
    -------
    TaskSchedule or None
        None when the tasks would wait for each other for ever.
    """
    s = schedule
    storing = s.remote_bytes > 0
    quiet = ~storing
    turn = _turn_within(s, quiet)
    place = turn + s.producer / s.producer_count  # of quiet tasks; the fraction sets producers apart and makes the order common to all
    need = np.full(max(s.event_count, 1), -np.inf)
    np.maximum.at(need, s.signals[quiet & (s.signals >= 0)], place[quiet & (s.signals >= 0)])
    after = np.where(s.waits_for >= 0, need[np.maximum(s.waits_for, 0)], -np.inf)
    for p in range(s.producer_count):
        mine = np.arange(s.first[p], s.first[p + 1])
        mine = mine[storing[mine]]
        if mine.size:
            share = (s.first[p + 1] - s.first[p] - mine.size) / mine.size
            # The recursion in closed form: x_i - i share is the largest so far of need_i + lead - i share.
            step = np.arange(mine.size) * share
            place[mine] = np.maximum.accumulate(np.maximum(after[mine] + lead, step) - step) + step
    # Storing tasks at the same place come after the quiet ones that they wait for.
    order = np.lexsort((storing, place, s.producer))
    try:
        return replace(s, **{column: getattr(s, column)[order] for column in _PER_TASK})
    except UsageError:
        return None


_PER_TASK = ("producer", "compute_cycles", "bytes", "remote_bytes", "waits_for", "signals", "phase")


def split(schedule: TaskSchedule, parts: int) -> TaskSchedule | None:
    """Cut every storing task into `parts` of equal size, one after the other.

    The first waits for what the whole waited for, the last signals. None when the bytes cannot be cut into whole warp-stores.
    """
    s = schedule
    storing = s.remote_bytes > 0
    unit, store = s.warps * s.warp_store_bytes, s.warp_store_bytes
    if (s.bytes[storing] // unit < parts).any():
        return None
    count = np.where(storing, parts, 1)
    of = np.repeat(np.arange(s.task_count), count)
    index = np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
    first, last = index == 0, index == count[of] - 1
    size = _share(s.bytes[of] // unit, index, count[of]) * unit
    remote = np.minimum(_share(s.remote_bytes[of] // store, index, count[of]) * store, size)
    if not np.array_equal(np.bincount(of, remote).astype(np.int64), s.remote_bytes):
        return None
    return replace(
        s,
        producer=s.producer[of],
        compute_cycles=_share(s.compute_cycles[of], index, count[of]),
        bytes=size,
        remote_bytes=remote,
        waits_for=np.where(first, s.waits_for[of], NONE),
        signals=np.where(last, s.signals[of], NONE),
        phase=s.phase[of],
    )


def stagger(schedule: TaskSchedule, cycles: int) -> TaskSchedule:
    """Let producer p of K begin ``cycles p / (K - 1)`` later: a task of its own, which computes and stores nothing else."""
    s = schedule
    p = np.arange(s.producer_count)
    delay = np.rint(cycles * p / max(s.producer_count - 1, 1)).astype(np.int64)
    has = np.diff(s.first) > 0
    at, p = s.first[:-1][has], p[has]
    none = np.full(p.size, NONE)
    added = {"producer": p, "compute_cycles": delay[has], "bytes": 0 * p, "remote_bytes": 0 * p, "waits_for": none, "signals": none}
    added["phase"] = np.full(p.size, len(s.phases))
    columns: dict[str, Any] = {name: np.insert(getattr(s, name), at, values) for name, values in added.items()}
    return replace(s, phases=(*s.phases, DELAY), **columns)


def _turn_within(s: TaskSchedule, kind: BoolArray) -> FloatArray:
    """How many tasks of this kind each producer has before each task."""
    before: IntArray = np.cumsum(kind) - kind
    return (before - before[np.minimum(s.first[s.producer], s.task_count - 1)]).astype(np.float64)


def _share(whole: IntArray, index: IntArray, parts: IntArray) -> IntArray:
    """Part `index` of `whole` cut into `parts` that differ by one at most."""
    return np.asarray(whole * (index + 1) // parts - whole * index // parts)
