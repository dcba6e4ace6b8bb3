"""A Schedule of bursts as a TaskSchedule: each burst a task, its gap the work before it."""

from __future__ import annotations

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import HOST, Schedule, require_meeting
from xstage_bench.schedule.tasks import MAX_TASK_WARPS, NONE, TaskSchedule


def tasks_of_bursts(schedule: Schedule, name: str = "") -> TaskSchedule:
    """Return the tasks of a schedule: one role, every byte remote, no dependencies.

    Raises
    ------
    UsageError
        A timed schedule, several isolated bursts, a layout, more than 8 warps, host memory or warps that do not meet: tasks have none
        of these.
    """
    s = schedule
    require_meeting(s)
    if s.start == "timed" or (s.start == "isolated" and len(s.bursts) > 1):
        raise UsageError(f"a schedule with start '{s.start}' has no gaps that work could fill", "use 'free' with gap_cycles")
    if s.layout != "contiguous":
        raise UsageError(f"layout '{s.layout}' in a task schedule", "tasks store contiguously")
    if s.warps > MAX_TASK_WARPS:
        raise UsageError(f"{s.warps} warps in a task schedule", f"a role has at most {MAX_TASK_WARPS}")
    if s.destination == HOST:
        raise UsageError("host memory as the destination of a task schedule", "name a GPU")
    k, size = s.producer_count, [b.bytes for b in s.bursts]
    work = [0, *(b.gap_cycles for b in s.bursts[1:])]
    none = np.full(k * len(size), NONE)
    return TaskSchedule(
        producers=s.producers,
        producer=np.repeat(np.arange(k), len(size)),
        compute_cycles=np.tile(work, k),
        bytes=np.tile(size, k),
        remote_bytes=np.tile(size if s.source != s.destination else [0] * len(size), k),
        waits_for=none,
        signals=none,
        phases=("burst",),
        warps=s.warps,
        form="single",
        source=s.source,
        destination=s.destination,
        flavour=s.flavour,
        name=name,
    )
