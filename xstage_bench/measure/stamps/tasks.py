"""Parts of producers that need not do the same, to a TaskSchedule, and the TaskTrace of its execution."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.measure.stamps.bursts import BURST, COMPUTE, SIGNAL, WAIT, Parts, parts_of
from xstage_bench.measure.stamps.layout import Stamps
from xstage_bench.schedule.tasks import NONE, Publish, TaskSchedule, TaskTrace


@dataclass(slots=True)
class _Task:
    """Times are SM clocks; `turn` is when the producer was free for it, or its event had happened."""

    producer: int
    turn: int
    waits_for: int = NONE
    signals: int = NONE
    bytes: int = 0
    computed: int | None = None
    stored: int | None = None
    signalled: int | None = None
    spent: int = field(default=0)


def tasks_of(
    stamps: Stamps, source: int = 0, destination: int = 1, flavour: str = "st.v4", publish: Publish = "release.gpu", name: str = ""
) -> tuple[TaskSchedule, TaskTrace]:
    """Return the kernel as tasks: whatever lies between two stamped parts, and compute itself, is a task's compute.

    Parameters
    ----------
    stamps : Stamps
    source, destination : int
    flavour : str
    publish : {'relaxed', 'release.gpu', 'release.sys'}
        How the kernel signals.
    name : str

    Returns
    -------
    TaskSchedule, TaskTrace
        Of the form ``single``: a producer's stores end before its next task begins. All stored bytes are remote.

    Raises
    ------
    DataError
        Nothing was stamped but waits, or what was stamped cannot be executed: an event is waited for and never signalled.
    """
    parts = parts_of(stamps)
    tasks = [t for i, p in enumerate(parts) for t in _tasks(i, p)]
    if not tasks:
        raise DataError("neither a burst nor compute was stamped", "XSTAGE_BEGIN and XSTAGE_BURST_END around the stores")
    try:
        schedule = TaskSchedule(
            producers=tuple(p.smid for p in parts),
            producer=np.array([t.producer for t in tasks]),
            compute_cycles=np.array([max(t.spent, 0) for t in tasks]),
            bytes=np.array([t.bytes for t in tasks]),
            remote_bytes=np.array([t.bytes for t in tasks]),
            waits_for=np.array([t.waits_for for t in tasks]),
            signals=np.array([t.signals for t in tasks]),
            warps=max(p.warps for p in parts),
            form="single",
            publish=publish,
            source=source,
            destination=destination,
            flavour=flavour,
            name=name,
        )
    except UsageError as error:
        raise DataError(f"the stamps describe no tasks: {error.message}", error.hint) from error
    return schedule, _trace(schedule, tasks, parts, stamps.sm_clock_mhz)


def _tasks(producer: int, p: Parts) -> list[_Task]:
    out: list[_Task] = []
    current: _Task | None = None
    free = int(p.start_clock[0])
    for kind, event, size, start, end in zip(p.kind, p.event, p.bytes, p.start_clock.tolist(), p.end_clock.tolist(), strict=True):
        over = current is not None and (current.stored is not None or current.signalled is not None)
        if current is None or kind == WAIT or (kind != SIGNAL and over) or (kind == SIGNAL and current.signalled is not None):
            current = _Task(producer, free)
            out.append(current)
        if kind == WAIT:
            current.waits_for, current.turn = int(event), end
        elif kind == COMPUTE:
            current.computed, current.spent = end, end - current.turn
        elif kind == BURST:
            current.computed, current.spent, current.bytes, current.stored = start, start - current.turn, int(size), end
        else:
            current.signals, current.signalled = int(event), end
        free = end
    return out


def _trace(schedule: TaskSchedule, tasks: list[_Task], parts: list[Parts], mhz: float) -> TaskTrace:
    clock = np.array([parts[t.producer].start_clock[0] for t in tasks], dtype=np.float64)
    at_ns = np.array([parts[t.producer].start_ns[0] for t in tasks]) - min(p.start_ns[0] for p in parts)

    def ns(values: list[int | None]) -> np.ndarray:
        cycles = np.array([np.nan if v is None else float(v) for v in values])
        return np.asarray(at_ns + (cycles - clock) * 1e3 / mhz)

    computed, stored, signalled = (ns([getattr(t, n) for t in tasks]) for n in ("computed", "stored", "signalled"))
    return TaskTrace(
        schedule=schedule,
        smids=np.array([p.smid for p in parts], dtype=np.int64),
        start_ns=ns([t.turn for t in tasks]),
        compute_end_ns=computed,
        store_end_ns=stored,
        signal_end_ns=signalled,
        total_ns=float(np.nanmax([computed, stored, signalled])),
        visible_ns=float("nan"),
        sm_clock_mhz=mhz,
    )
