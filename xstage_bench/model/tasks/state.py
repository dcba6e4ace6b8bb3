"""What the event loop works on: tuples of arrays, or of lists, that both Python and numba can take."""

from __future__ import annotations

from typing import NamedTuple

from xstage_bench.model.arrays import FloatArray, IntArray

#: Interpreted, the loop has lists of these instead: an element of an array costs Python several times as much.
Floats = FloatArray
Ints = IntArray
#: Heap of (time, what happens, task).
Queue = list[tuple[float, int, int]]

#: What a timed event is.
STORE, STORED, LOOK, POLL, CHUNK = 0, 1, 2, 3, 4
#: Places in `State.stage`.
NOW, LEVEL, OUTSTANDING, INFLOW, FULL, STEPS = range(6)
RELAXED, GPU, SYS = 0, 1, 2


class TaskWork(NamedTuple):
    """What is executed, in cycles and bytes; T tasks, K SMs, U units, E events.

    Parameters
    ----------
    first : (K + 1,)
        Tasks of SM p are ``first[p]:first[p + 1]``.
    owner, unit : (T,), (K,)
        SM of each task, unit of each SM.
    compute, free, load : (T,)
        Until the stores begin; issue time of the stores without backpressure, negative for none; bytes to the destination.
    waits, signals : (T,)
        Events, or -1.
    needed : (E,)
        How many tasks signal each event.
    capacity, log_weight : (U,)
        What one SM of the unit may have outstanding; logarithm of the unit's weight at the link.
    lag : int
        A task begins when the task `lag` before it has ended: 1 (single) or 2 (ping_pong).
    publish : int
        RELAXED, GPU or SYS.
    link, sm_rate, buffer, credit, evens_out, blur : float
        As `fluid.FluidColumns`.
    turn, again, signal, wait, trip : float
        From one task's end of compute to the next one's start; from the end of a role's task to the start of its next; cost of a signal
        with nothing outstanding; from an event to the start of a task that waits for it, and the part of it that a look takes.
    fetch : int
        1 where a role has to fetch its next task through the SM's memory pipeline.
    ahead : float
        By how much of its compute a task's operands are asked for before they are needed; 0 where operands are no matter.
    elsewhere : int
        1 where another warp releases: the role goes on, and the event happens when what is then outstanding has drained at those rates.
    passed, reach : float
        What its SM has stored and a read of the copy engine does not wait for; what it takes when there is nothing before it.
    """

    first: Ints
    owner: Ints
    unit: Ints
    compute: Floats
    free: Floats
    load: Floats
    waits: Ints
    signals: Ints
    needed: Ints
    capacity: Floats
    log_weight: Floats
    lag: int
    publish: int
    link: float
    sm_rate: float
    buffer: float
    credit: float
    evens_out: float
    blur: float
    turn: float
    again: float
    signal: float
    wait: float
    trip: float
    fetch: int
    ahead: float
    elsewhere: int
    passed: float
    reach: float


class State(NamedTuple):
    """Where everything is. Two slots for each SM: of its even and its odd tasks.

    Parameters
    ----------
    start, computed, stored, ended, left, drained : (T,)
        Written: times in cycles, NaN where there is no such part; bytes of all SMs outstanding when the task's stores have been issued, and
        when its own will have left the link at the rates of that time.
    ready : (T,)
        When the task's role has it and has seen its event; NaN while that is not known.
    compute_left : (T,)
        Compute that is left, where operands matter.
    next_task : (K,)
        The task that begins next.
    operands_at : (K,)
        Before when the SM's next task cannot begin, for want of operands that were asked for during the one before; NaN while that is not
        known.
    storing_task : (2 K,)
        The task whose stores to the destination the SM has not taken yet, or -1.
    starved_task, asked_at : (K,)
        The task that has asked for operands which wait for those stores, or -1, and when a task has asked last.
    outstanding, caught_up_to, target : (K,)
        Bytes outstanding, the course of the unit up to which that holds, and the course at which something happens to the SM.
    buffer_exit : (K,)
        When the last byte that the SM has drained leaves the buffer before the link.
    room_needed, release_behind : (2 K,)
        Bytes of a burst that wait for room, and bytes that must drain before a release returns; negative for none.
    fetch_behind, read_behind : (2 K,)
        Bytes that must drain before the role has its next task, and before its look at the event gets there; negative for none.
    looking_task : (2 K,)
        The task of `fetch_behind` or `read_behind`.
    slot_task : (2 K,)
        The task of `room_needed` or `release_behind`.
    release_from : (2 K,)
        Before when the release of the slot cannot return, whatever its own SM has outstanding.
    course, rate, nearest_target, weight, stored_since_idle : (U,)
        Course, its rate, the least target of the unit's SMs, weight, bytes per SM since the unit was last idle.
    active_sms, held_sms : (U,)
        SMs with bytes outstanding, and those of them with a burst that waits for room.
    signals_missing, happened_at, first_waiting : (E,)
        Signals to come, time of the last one so far, and a task that waits for the event, or -1.
    next_waiting : (T,)
        The next task that waits for the same event, or -1.
    sms_by_unit : (K,), unit_begin : (U + 1,)
        SMs sorted by unit.
    stage : (6,)
        See NOW and the following.
    """

    start: Floats
    computed: Floats
    stored: Floats
    ended: Floats
    left: Floats
    drained: Floats
    ready: Floats
    compute_left: Floats
    next_task: Ints
    operands_at: Floats
    storing_task: Ints
    starved_task: Ints
    asked_at: Floats
    outstanding: Floats
    caught_up_to: Floats
    target: Floats
    buffer_exit: Floats
    room_needed: Floats
    release_behind: Floats
    fetch_behind: Floats
    read_behind: Floats
    looking_task: Ints
    slot_task: Ints
    release_from: Floats
    course: Floats
    rate: Floats
    nearest_target: Floats
    weight: Floats
    stored_since_idle: Floats
    active_sms: Floats
    held_sms: Floats
    signals_missing: Floats
    happened_at: Floats
    first_waiting: Ints
    next_waiting: Ints
    sms_by_unit: Ints
    unit_begin: Ints
    stage: Floats
