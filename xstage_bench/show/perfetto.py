"""Time lines for https://ui.perfetto.dev and chrome://tracing: producers, the link, and how much is outstanding.

The format is the Trace Event Format's JSON object: ``traceEvents`` with complete events (``ph`` X), counters (C) and names of tracks (M).
Times are µs, as the format wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from xstage_bench.io.atomic import write_bytes
from xstage_bench.schedule.tasks import TaskTrace

if TYPE_CHECKING:
    from xstage_bench.model.prediction import PredictedSchedule
    from xstage_bench.model.tasks.predict import TaskPrediction

FloatArray = NDArray[np.float64]
Event = dict[str, Any]
_US = 1e-3
#: Tracks of one process that are not producers come after all of these.
_LINK, _MEAN = 1_000_000, 0


def task_events(found: TaskPrediction | TaskTrace, pid: int = 1, label: str = "") -> list[Event]:
    """Return the events of one prediction or execution of tasks.

    Parameters
    ----------
    found : TaskPrediction or TaskTrace
    pid : int
        Of this time line: one process in the viewer, so that several can stand beside each other.
    label : str
        Of the process. An execution does not know whether it was measured or simulated: say it here.

    Returns
    -------
    list of dict
        A track per role of each producer with the slices compute, store and signal; of a prediction also the link's track (when anything is
        under way) and the counter `backlog_bytes`.
    """
    s = found.schedule
    roles = 2 if s.form == "ping_pong" else 1
    role = (np.arange(s.task_count) - s.first[s.producer]) % roles
    track = s.producer * roles + role
    kind = "executed" if isinstance(found, TaskTrace) else "predicted"
    events = [_name("process_name", pid, 0, label or f"{s.name or s.key()} ({kind})")]
    for p, smid in enumerate(found.smids.tolist()):
        for r in range(roles):
            name = f"SM {smid}" + (f" role {r}" if roles > 1 else "")
            events.append(_name("thread_name", pid, p * roles + r, name))
    after = np.where(np.isfinite(found.store_end_ns), found.store_end_ns, found.compute_end_ns)
    parts = (
        ("compute", found.start_ns, found.compute_end_ns),
        ("store", found.compute_end_ns, found.store_end_ns),
        ("signal", after, found.signal_end_ns),
    )
    for name, begin, end in parts:
        for t in np.flatnonzero(end > begin).tolist():
            args = {"task": t, "phase": s.phases[s.phase[t]], "bytes": int(s.bytes[t]), "remote_bytes": int(s.remote_bytes[t])}
            title = name if len(s.phases) == 1 else f"{s.phases[s.phase[t]]}: {name}"
            events.append(_slice(pid, int(track[t]), title, name, float(begin[t]), float(end[t]), args))
    if not isinstance(found, TaskTrace):
        sent = s.remote_bytes > 0
        events += _link_events(pid, found.compute_end_ns[sent], found.visible_ns[sent], found.store_end_ns[sent], found.backlog_bytes[sent])
    return events


def burst_events(found: PredictedSchedule, pid: int = 1, label: str = "") -> list[Event]:
    """Return the events of a predicted schedule of bursts: one track for the mean over producers, the link's, and the backlog."""
    events = [
        _name("process_name", pid, 0, label or f"pair {found.pair} (predicted)"),
        _name("thread_name", pid, _MEAN, "producers (mean)"),
    ]
    free = np.minimum(found.t0_cycles, found.issue_cycles) * 1e3 / found.sm_clock_mhz
    for i, (begin, end) in enumerate(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)):
        split = begin + float(free[i])
        args = {"burst": i, "regime": found.regime[i], "backlog_bytes": float(found.backlog_bytes[i])}
        events.append(_slice(pid, _MEAN, f"burst {i}", "issue", begin, split, args))
        if end > split:
            events.append(_slice(pid, _MEAN, f"burst {i}: stall", "stall", split, end, args))
    return events + _link_events(pid, found.start_ns, found.visible_ns, found.end_ns, found.backlog_bytes)


def write_trace(path: Path, events: Iterable[Event]) -> None:
    """Write a trace file; strict JSON, atomically."""
    write_bytes(path, encode_trace(events))


def encode_trace(events: Iterable[Event]) -> bytes:
    """Return the bytes of a trace file."""
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": list(events)}) + b"\n"


def under_way(begin: FloatArray, end: FloatArray) -> Iterator[tuple[float, float]]:
    """Merge intervals that overlap, in order of time."""
    order = np.argsort(begin, kind="stable")
    first = last = None
    for b, e in zip(begin[order].tolist(), end[order].tolist(), strict=True):
        if first is None or last is None or b > last:
            if first is not None and last is not None:
                yield first, last
            first, last = b, e
        else:
            last = max(last, e)
    if first is not None and last is not None:
        yield first, last


def _link_events(pid: int, begin: FloatArray, seen: FloatArray, issued: FloatArray, backlog: FloatArray) -> list[Event]:
    if not begin.size:
        return []
    events = [_name("thread_name", pid, _LINK, "link")]
    points = list(zip(issued.tolist(), backlog.tolist(), strict=True))
    for b, e in under_way(begin, seen):
        events.append(_slice(pid, _LINK, "stores under way", "link", b, e, {}))
        points += [(b, 0.0), (e, 0.0)]
    return events + [_counter(pid, at, value) for at, value in sorted(points)]


def _slice(pid: int, tid: int, name: str, category: str, begin_ns: float, end_ns: float, args: Event) -> Event:
    at = {"ts": begin_ns * _US, "dur": (end_ns - begin_ns) * _US}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, **at, "args": args}


def _counter(pid: int, at_ns: float, backlog_bytes: float) -> Event:
    return {"ph": "C", "pid": pid, "tid": _LINK, "name": "backlog_bytes", "ts": at_ns * _US, "args": {"bytes": backlog_bytes}}


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def all_events(found: Sequence[TaskPrediction | TaskTrace | PredictedSchedule]) -> list[Event]:
    """Return the events of several time lines, each a process of its own."""
    from xstage_bench.model.tasks.predict import TaskPrediction

    events: list[Event] = []
    for i, one in enumerate(found):
        events += task_events(one, i + 1) if isinstance(one, TaskTrace | TaskPrediction) else burst_events(one, i + 1)
    return events
