"""TaskSchedules on the simulator: every SM by itself, store by store, in short steps of time.

What the SMs may drain comes from the tree of arbiters, as for bursts (`arbiter`); what a task's stores cost when nothing holds them back
from the issue port (`port`). In between, each step of `STEP` cycles lets every SM admit whole warp-stores while it has room: what it may
have outstanding, less what it has admitted and does not yet know to be drained. The two roles of an SM take turns store by store. A
release waits until the SM knows that all its stores have drained; at system scope, until those of all SMs have.

Nothing here is shared with the predictor of `model/tasks`, so that one can be judged by the other (docs/simulator.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.sim.arbiter import Array, rates
from xstage_bench.device.sim.core import Conditions, places
from xstage_bench.device.sim.port import issue_cycles
from xstage_bench.device.sim.presets import Preset
from xstage_bench.schedule.tasks import NONE, TaskSchedule

IntArray = NDArray[np.int64]
STEP = 64.0  # cycles; at a full link an SM of 132 drains a store in about six
#: Cycles from an event's last signal until a waiting SM's poll has seen it: a trip to the L2 and one back.
POLL_CYCLES = 700.0
#: Cycles in which the tensor cores change hands.
TURN_CYCLES = 60.0
_UNSHARED = 1e9
# What a role is doing.
_WAITING, _COMPUTING, _STORING, _RELEASING, _DONE = range(5)


@dataclass(frozen=True, slots=True)
class TaskCourse:
    """The noiseless course of a TaskSchedule, cycles after its start; NaN where a task has no such part."""

    smids: IntArray
    start: Array
    computed: Array
    stored: Array
    signalled: Array
    visible: float

    def end(self) -> float:
        """When the last task has ended."""
        return float(np.nanmax([self.computed, self.stored, self.signalled]))


def course_of(preset: Preset, schedule: TaskSchedule, conditions: Conditions) -> TaskCourse:
    """Execute a schedule step by step."""
    run = _Run.of(preset, schedule, conditions)
    while not run.finished():
        run.step()
    last = run.drained_at + preset.fence.remote
    return TaskCourse(run.smids, run.start, run.computed, run.stored, run.signalled, max(last, run.now))


@dataclass(slots=True)
class _Run:
    """Where everything is: arrays over SMs (K,), over SMs and their roles (K, 2), and over tasks (T,)."""

    preset: Preset
    schedule: TaskSchedule
    smids: IntArray
    place: IntArray
    free: Array
    stores: IntArray
    remote: IntArray
    link: float
    start: Array
    computed: Array
    stored: Array
    signalled: Array
    happened: Array
    missing: IntArray
    task: IntArray
    doing: IntArray
    turn_at: Array
    turn: IntArray
    ready: Array
    sent: IntArray
    admitted: Array
    drained: Array
    news: Array
    capacity: Array
    target: Array
    order: IntArray
    now: float = 0.0
    level: float = 0.0
    drained_at: float = 0.0
    known_rates: dict[tuple[bytes, bool], Array] = field(default_factory=dict)

    @classmethod
    def of(cls, preset: Preset, s: TaskSchedule, conditions: Conditions) -> _Run:
        smids = s.smids(preset.smids)
        place = places(preset.groups, smids)
        k, t, roles = smids.size, s.task_count, 2 if s.form == "ping_pong" else 1
        stores = s.bytes // s.warp_store_bytes
        local = s.source == s.destination
        remote = np.zeros_like(stores) if local else s.remote_bytes // s.warp_store_bytes
        first = s.first
        task = np.full((k, 2), -1, dtype=np.int64)
        for r in range(roles):
            task[:, r] = np.where(first[:-1] + r < first[1:], first[:-1] + r, -1)
        return cls(
            preset=preset,
            schedule=s,
            smids=smids,
            place=place,
            free=issue_cycles(preset.port, s.warps, stores // s.warps),
            stores=stores,
            remote=remote,
            link=preset.link_gb_per_s * conditions.link * 1e3 / (preset.sm_clock_mhz * conditions.clock),
            start=np.full(t, np.nan),
            computed=np.full(t, np.nan),
            stored=np.full(t, np.nan),
            signalled=np.full(t, np.nan),
            happened=np.zeros(max(s.event_count, 1)),
            missing=np.append(s.signals_of_event, 0),
            task=task,
            doing=np.where(task >= 0, _WAITING, _DONE),
            turn_at=np.zeros(k),
            turn=first[:-1].copy(),
            ready=np.zeros((k, 2)),
            sent=np.zeros((k, 2), dtype=np.int64),
            admitted=np.zeros(k),
            drained=np.zeros(k),
            news=np.zeros((max(1, round(preset.credit / STEP)), k)),
            capacity=np.where(place[2], preset.capacity_both_bytes, preset.capacity_alone_bytes) * conditions.capacity,
            target=np.zeros((k, 2)),
            order=np.arange(2),
        )

    def finished(self) -> bool:
        return bool((self.doing == _DONE).all())

    def step(self) -> None:
        """Move on by `STEP`, or to the next end of compute where nothing else goes on."""
        self.begin()
        busy = ((self.doing == _STORING) | (self.doing == _RELEASING)).any() or (self.admitted > self.news[0]).any()
        ends = np.where(self.doing == _COMPUTING, self.ready, np.inf).min()
        dt = STEP if busy or not np.isfinite(ends) else max(STEP, float(np.ceil((ends - self.now) / STEP)) * STEP)
        self.drain(dt)
        self.now += dt
        self.end_compute()
        self.admit(dt)
        self.end_release()

    def begin(self) -> None:
        """Tasks whose turn it is and whose event has been seen start: at the moment itself, not at the step's end."""
        s = self.schedule
        for p, r in np.argwhere(self.doing == _WAITING):
            t = self.task[p, r]
            event = s.waits_for[t]
            if self.turn[p] != t or (event != NONE and self.missing[event] > 0):
                continue
            seen = self.happened[event] + POLL_CYCLES if event != NONE else 0.0
            at = max(self.turn_at[p], self.ready[p, r], seen)
            self.start[t] = at
            self.ready[p, r] = self.computed[t] = at + s.compute_cycles[t]
            self.doing[p, r] = _COMPUTING

    def end_compute(self) -> None:
        for p, r in np.argwhere((self.doing == _COMPUTING) & (self.ready <= self.now)):
            t = self.task[p, r]
            if self.schedule.form == "ping_pong":
                self.turn[p], self.turn_at[p] = t + 1, self.computed[t] + TURN_CYCLES
            self.sent[p, r] = 0
            if self.stores[t]:
                self.doing[p, r] = _STORING
            else:
                self.release(p, r, self.computed[t])

    def drain(self, dt: float) -> None:
        """Let the link take what the tree of arbiters gives each SM."""
        buffer = self.preset.link_buffer_bytes
        left = self.admitted - self.drained
        active = left > 0
        if active.any():
            moved = np.minimum(self.rates(active, full=False) * dt, left)
            room = buffer - self.level + self.link * dt
            if moved.sum() > room:
                # The buffer before the link fills within this step: from then on the link sets the rates.
                part = max(buffer - self.level, 0.0) / max(moved.sum() - self.link * dt, 1.0)
                moved = np.minimum(moved * part + self.rates(active, full=True) * dt * (1 - part), left)
            self.drained += moved
            self.level = min(max(self.level + moved.sum() - self.link * dt, 0.0), buffer)
            self.drained_at = self.now + dt + self.level / self.link
        else:
            self.level = max(self.level - self.link * dt, 0.0)
        # What an SM knows is a credit old.
        for _ in range(min(round(dt / STEP), len(self.news))):
            self.news[:-1] = self.news[1:]
            self.news[-1] = self.drained

    def rates(self, active: NDArray[np.bool_], full: bool) -> Array:
        """What each SM drains while these are active; asked at every step, and most steps have the active SMs of one before."""
        key = (active.tobytes(), full)
        if key not in self.known_rates:
            self.known_rates[key] = self.arbitrated(active, full)
        return self.known_rates[key]

    def arbitrated(self, active: NDArray[np.bool_], full: bool) -> Array:
        p = self.preset
        members = np.zeros((len(p.groups), max(map(len, p.groups)), 2, 1))
        np.add.at(members, (*self.place[:, active], 0), 1.0)
        bound = np.array([self.link if full else _UNSHARED])
        each = rates(members > 0, members, bound, np.array([p.sm_bytes_per_cycle]), np.array([_UNSHARED]))
        return np.asarray(np.where(active, each[(*self.place, 0)], 0.0))

    def admit(self, dt: float) -> None:
        """Storing roles admit whole warp-stores: as many as the port has let through by now, and as there is room for the remote ones."""
        storing = self.doing == _STORING
        if not storing.any():
            return
        t = np.where(storing, self.task, 0)
        share = np.clip((self.now - self.computed[t]) / np.maximum(self.free[t], 1.0), 0.0, 1.0)
        wanted = np.where(storing, np.floor(self.remote[t] * share + 1e-9).astype(np.int64) - self.sent, 0)
        size = self.schedule.warp_store_bytes
        room = np.maximum(np.floor((self.capacity - (self.admitted - self.news[0])) / size).astype(np.int64), 0)
        got = np.zeros_like(wanted)
        a, b = self.order
        got[:, a] = np.minimum(wanted[:, a], (room + 1) // 2)
        got[:, b] = np.minimum(wanted[:, b], room - got[:, a])
        got[:, a] += np.minimum(wanted[:, a] - got[:, a], room - got.sum(axis=1))
        self.order = self.order[::-1]
        self.sent += got
        self.admitted += got.sum(axis=1) * size
        for p, r in np.argwhere(storing & (self.sent >= self.remote[t]) & (self.now >= self.computed[t] + self.free[t])):
            # At the moment itself where only the port held it, else within this step.
            at = max(self.computed[t[p, r]] + self.free[t[p, r]], self.now - dt)
            self.stored[t[p, r]] = at
            self.release(p, r, at)

    def release(self, p: int, r: int, at: float) -> None:
        """A task's stores are issued: end it, or begin what publishes it."""
        s = self.schedule
        if s.signals[self.task[p, r]] == NONE:
            self.end(p, r, at)
            return
        self.doing[p, r] = _RELEASING
        self.ready[p, r] = at
        self.target[p, r] = self.admitted[p] if s.publish == "release.gpu" else self.admitted.sum() if s.publish == "release.sys" else 0.0

    def end_release(self) -> None:
        s, fence = self.schedule, self.preset.fence
        trip = {"relaxed": 0.0, "release.gpu": fence.empty, "release.sys": fence.remote}[s.publish]
        # A scope's bytes have left the link: at system scope all that were admitted by then, else the SM's, and what is before the link.
        gone = np.full(self.drained.shape, self.drained.sum() - self.level) if s.publish == "release.sys" else self.drained
        behind = self.level / self.link if s.publish == "release.gpu" else 0.0
        for p, r in np.argwhere((self.doing == _RELEASING) & (gone[:, None] >= self.target - 1e-6)):
            waited = self.now > self.ready[p, r] + STEP and self.target[p, r] > 0
            at = (self.now + behind if waited else self.ready[p, r]) + trip
            t = self.task[p, r]
            self.signalled[t] = at
            event = s.signals[t]
            self.missing[event] -= 1
            self.happened[event] = max(self.happened[event], at)
            self.end(p, r, at)

    def end(self, p: int, r: int, at: float) -> None:
        """A task has ended: its role goes on to its next."""
        t = self.task[p, r]
        stride = 1
        if self.schedule.form == "single":
            self.turn[p], self.turn_at[p] = t + 1, at + TURN_CYCLES
        else:
            stride = 2
        following = t + stride
        self.ready[p, r] = at
        more = following < self.schedule.first[p + 1]
        self.task[p, r] = following if more else -1
        self.doing[p, r] = _WAITING if more else _DONE
