"""A TaskSchedule says what a fused kernel does: tensor-core work, stores and the waits between them, task by task for each producer.

Where a `Schedule` has all producers do the same, here each producer has a list of its own. A *task* waits for an event (or for none),
computes, stores, and then signals an event (or none). An *event* has happened when all tasks that signal it have done so. A wave whose
Linear-2 tiles wait for all its Linear-1 tiles, a tile that waits for its own block, and no dependencies at all differ in the events only.

Two forms of execution:

``single``
    one role: a task's stores end before the producer's next task begins;
``ping_pong``
    two roles of `warps` warps take the producer's tasks in turn. The tensor cores belong to one task at a time, in the list's order: a
    task begins when the one before it has computed, while that one's role still stores.

What a task pays to publish:

``relaxed``
    the signal follows the stores without order: its cost is that of one atomic. Nothing that it announces may be read by others;
``release.gpu``, ``release.sys``
    the signal waits until what the SM has stored before is visible at that scope, the remote backlog included (results/h200-x2/fences).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.io.short_repr import short_repr
from xstage_bench.schedule.bursts import MAX_BURST_BYTES, resolve_smids
from xstage_bench.schedule.flavour import FLAVOURS

Form = Literal["single", "ping_pong"]
FORMS: tuple[str, ...] = get_args(Form)
Publish = Literal["relaxed", "release.gpu", "release.sys"]
PUBLISHES: tuple[str, ...] = get_args(Publish)
IntArray = NDArray[np.int64]
#: In `waits_for` and `signals`: no event.
NONE = -1
MAX_TASK_WARPS = 8  # of one role: two of them are an SM's 16 warps
MAX_TASKS = 1 << 22
MAX_COMPUTE_CYCLES = 1 << 31
COLUMNS = ("producer", "compute_cycles", "bytes", "remote_bytes", "waits_for", "signals", "phase")


@dataclass(frozen=True, slots=True, eq=False)
class TaskSchedule:
    """Compute and stores with dependencies. All arrays have one entry per task, in the order in which each producer executes its own.

    Parameters
    ----------
    producers : int or tuple of int
        A count K, spread evenly over the smids, or the smids themselves, ascending and distinct.
    producer : ndarray of int
        Which producer executes the task, 0 to K - 1, ascending.
    compute_cycles : ndarray of int
        Tensor-core work before the stores, in cycles of the SM clock; 0 is none.
    bytes : ndarray of int
        Stored after it by the task's warps together; a multiple of ``warps`` times what a warp-store writes.
    remote_bytes : ndarray of int
        How many of them go to `destination`, in whole warp-stores spread evenly over the task's; the rest stays in the source's memory.
    waits_for, signals : ndarray of int
        Event numbers from 0, or -1.
    phase : ndarray of int
        Index into `phases`: a label for tables and time lines, without effect on the execution.
    phases : tuple of str
    warps : int
        Storing warps of each role, 1 to 8.
    form : {'single', 'ping_pong'}
    publish : {'relaxed', 'release.gpu', 'release.sys'}
    source, destination : int
        GPU indices.
    both_ways : bool
        The destination executes the same schedule towards the source at the same time.
    flavour : str
        A name of `flavour.FLAVOURS`.
    name : str

    Raises
    ------
    UsageError
        A field is out of range, an event is waited for and never signalled, or the tasks would wait for each other for ever; the message
        names the task.
    """

    __repr__ = short_repr

    producers: int | tuple[int, ...]
    producer: IntArray
    compute_cycles: IntArray
    bytes: IntArray
    remote_bytes: IntArray
    waits_for: IntArray
    signals: IntArray
    phase: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    phases: tuple[str, ...] = ("task",)
    warps: int = 4
    form: Form = "ping_pong"
    publish: Publish = "release.gpu"
    source: int = 0
    destination: int = 1
    both_ways: bool = False
    flavour: str = "st.v4"
    name: str = ""

    def __post_init__(self) -> None:
        if not np.size(self.phase):
            object.__setattr__(self, "phase", np.zeros(np.size(self.producer), dtype=np.int64))
        for column in COLUMNS:
            given = np.asarray(getattr(self, column))
            if given.size and not np.array_equal(given, given.astype(np.int64)):
                raise UsageError(f"column '{column}' has entries that are no whole numbers", "cycles, bytes and events are whole numbers")
            values = given.astype(np.int64)
            values.setflags(write=False)
            object.__setattr__(self, column, values)
        _check_header(self)
        _check_tasks(self)
        stuck = stuck_task(self)
        if stuck is not None:
            raise UsageError(
                f"{_where(self, stuck)} waits for event {self.waits_for[stuck]}, which tasks signal that themselves wait for this one",
                "move the signalling tasks before it in their producers' lists",
            )

    @property
    def task_count(self) -> int:
        """Number of tasks of all producers."""
        return int(self.producer.size)

    @property
    def producer_count(self) -> int:
        """K, the number of producers."""
        return self.producers if isinstance(self.producers, int) else len(self.producers)

    @property
    def event_count(self) -> int:
        """Events are numbered from 0 to this, exclusive."""
        return int(max(self.waits_for.max(initial=NONE), self.signals.max(initial=NONE))) + 1

    @property
    def first(self) -> IntArray:
        """Tasks of producer p are ``first[p]:first[p + 1]``; shape (K + 1,)."""
        return np.searchsorted(self.producer, np.arange(self.producer_count + 1)).astype(np.int64)

    @property
    def signals_of_event(self) -> IntArray:
        """How many tasks signal each event; shape (events,)."""
        return np.bincount(self.signals[self.signals >= 0], minlength=self.event_count).astype(np.int64)

    @property
    def volume_bytes(self) -> int:
        """Bytes that cross to the destination, all tasks together."""
        return int(self.remote_bytes.sum())

    @property
    def warp_store_bytes(self) -> int:
        """Bytes that one warp-store writes."""
        return FLAVOURS[self.flavour].warp_store_bytes

    def smids(self, available: Sequence[int]) -> IntArray:
        """Resolve the producers to smids of the source GPU; see `schedule.resolve_smids`."""
        return resolve_smids(self.producers, self.source, available)

    def without_stores(self) -> TaskSchedule:
        """Return the same work and dependencies with nothing stored: the time that stores are judged against."""
        nothing = np.zeros(self.task_count, dtype=np.int64)
        return replace(self, bytes=nothing, remote_bytes=nothing)

    def local(self) -> TaskSchedule:
        """Return the same schedule with every byte kept in the source's memory."""
        return replace(self, remote_bytes=np.zeros(self.task_count, dtype=np.int64))

    def key(self) -> str:
        """Return 16 hex digits that identify what is executed; labels do not enter."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(repr([getattr(self, f.name) for f in fields(self) if f.name not in (*COLUMNS, "phases", "name")]).encode())
        for column in COLUMNS[:-1]:
            digest.update(getattr(self, column).astype("<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class TaskTrace:
    """One execution of a TaskSchedule. Times are ns after the common start; arrays of shape (tasks,).

    Parameters
    ----------
    schedule : TaskSchedule
    smids : ndarray of int, shape (K,)
    start_ns : ndarray of float
        The task has its turn at the tensor cores and the event that it waits for has happened.
    compute_end_ns, store_end_ns, signal_end_ns : ndarray of float
        Tensor-core work done; last store issued; event signalled. NaN where the task has no such part.
    total_ns : float
        When the last task has ended: what a kernel's own time line shows. Stores may still be under way.
    visible_ns : float
        When a system-scope fence of every producer has returned after its last task.
    sm_clock_mhz : float
        Measured around the execution.
    status : {'ok', 'warmup', 'throttled', 'timeout', 'corrupt'}
    detail : str
        The reason when status is not ``ok``.
    """

    __repr__ = short_repr

    schedule: TaskSchedule
    smids: IntArray
    start_ns: NDArray[np.float64]
    compute_end_ns: NDArray[np.float64]
    store_end_ns: NDArray[np.float64]
    signal_end_ns: NDArray[np.float64]
    total_ns: float
    visible_ns: float
    sm_clock_mhz: float
    status: str = "ok"
    detail: str = ""


def stuck_task(schedule: TaskSchedule) -> int | None:
    """Return a task that can never begin, or None: executes the dependencies alone, without times.

    Notes
    -----
    A producer begins its tasks in order in both forms, so a task can begin when all before it in its list have ended and its event has
    happened. That is enough for safety in ``ping_pong`` too, where a task may begin earlier.
    """
    first, missing = schedule.first, schedule.signals_of_event.copy()
    waits, signals = schedule.waits_for.tolist(), schedule.signals.tolist()
    at = first[:-1].tolist()
    end = first[1:].tolist()
    blocked: dict[int, list[int]] = {}
    ready = deque(range(len(at)))
    while ready:
        p = ready.popleft()
        while at[p] < end[p]:
            task = at[p]
            if waits[task] >= 0 and missing[waits[task]] > 0:
                blocked.setdefault(waits[task], []).append(p)
                break
            at[p] += 1
            event = signals[task]
            if event >= 0:
                missing[event] -= 1
                if missing[event] == 0:
                    ready.extend(blocked.pop(event, ()))
    return next((at[p] for p in range(len(at)) if at[p] < end[p]), None)


def _where(s: TaskSchedule, task: int) -> str:
    return f"task {task} (producer {s.producer[task]}, its task {task - int(s.first[s.producer[task]])})"


def _check_header(s: TaskSchedule) -> None:
    if s.form not in FORMS:
        raise UsageError(f"unknown form '{s.form}'", f"use one of: {', '.join(FORMS)}")
    if s.publish not in PUBLISHES:
        raise UsageError(f"unknown publish '{s.publish}'", f"use one of: {', '.join(PUBLISHES)}")
    if s.flavour not in FLAVOURS:
        raise UsageError(f"unknown flavour '{s.flavour}'", f"use one of: {', '.join(FLAVOURS)}")
    if not 1 <= s.warps <= MAX_TASK_WARPS:
        raise UsageError(f"warps is {s.warps}, must be 1 to {MAX_TASK_WARPS}", "change 'warps'")
    if s.source < 0 or s.destination < 0:
        raise UsageError(f"source {s.source} and destination {s.destination} must not be negative", "GPU indices start at 0")
    if s.both_ways and s.source == s.destination:
        raise UsageError("both_ways needs two GPUs", "give another destination")
    if isinstance(s.producers, int):
        if s.producers < 1:
            raise UsageError(f"producers is {s.producers}, must be at least 1", "give a count of SMs, or a list of smids")
    elif not s.producers or any(p < 0 for p in s.producers) or list(s.producers) != sorted(set(s.producers)):
        raise UsageError("the list of producer smids must be ascending, distinct and not empty", "for example [0, 2, 4]")


def _check_tasks(s: TaskSchedule) -> None:
    if not 1 <= s.task_count <= MAX_TASKS:
        raise UsageError(f"a task schedule has 1 to {MAX_TASKS} tasks, this one {s.task_count}", "split it")
    unit, store = s.warps * s.warp_store_bytes, s.warp_store_bytes
    sizes: dict[str, Any] = {column: getattr(s, column).size for column in COLUMNS}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"columns differ in length: {sizes}", "one entry per task in each column")
    rules = (
        ("producer is not ascending", np.diff(s.producer, prepend=0) < 0, "sort the tasks by producer, keeping each one's order"),
        ("producer out of range", (s.producer < 0) | (s.producer >= s.producer_count), f"0 to {s.producer_count - 1}"),
        ("compute_cycles out of range", (s.compute_cycles < 0) | (s.compute_cycles > MAX_COMPUTE_CYCLES), f"0 to {MAX_COMPUTE_CYCLES}"),
        ("bytes out of range", (s.bytes < 0) | (s.bytes > MAX_BURST_BYTES), f"0 to {MAX_BURST_BYTES}"),
        (
            "bytes is not whole warp-stores of all warps",
            s.bytes % unit != 0,
            f"a multiple of {unit} ({s.warps} warps x {store} B of {s.flavour})",
        ),
        ("remote_bytes out of range", (s.remote_bytes < 0) | (s.remote_bytes > s.bytes), "0 to the task's bytes"),
        ("remote_bytes is not whole warp-stores", s.remote_bytes % store != 0, f"a multiple of {store}"),
        ("waits_for or signals below -1", (s.waits_for < NONE) | (s.signals < NONE), "events are numbered from 0; -1 is none"),
        ("phase out of range", (s.phase < 0) | (s.phase >= len(s.phases)), f"0 to {len(s.phases) - 1}"),
    )
    for what, wrong, hint in rules:
        if wrong.any():
            raise UsageError(f"task {int(np.flatnonzero(wrong)[0])}: {what}", hint)
    waited = s.waits_for[s.waits_for >= 0]
    never = waited[s.signals_of_event[waited] == 0]
    if never.size:
        task = int(np.flatnonzero(s.waits_for == never[0])[0])
        raise UsageError(f"{_where(s, task)} waits for event {never[0]}, which no task signals", "let a task signal it, or wait for -1")
