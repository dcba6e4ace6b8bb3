"""Fluid flows that share ports: what several schedules at once do to each other, for the simulator and for the prediction of scenes.

Each schedule is one flow with a backlog. What it may drain is bounded by its own path, and by ports that all flows through them share
max-min fairly. Producers of a flow are all alike: a burst of V bytes is issued at V/T0 until the outstanding bytes reach Q, from then on
at the rate at which the flow drains. Rates change only when a flow starts, stalls, ends a burst or runs empty, so the course is exact
between events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.schedule.bursts import HOST, Schedule

_TIE = 1e-6  # cycles, and bytes
_LEFT = 1e-3  # bytes of a burst: less is none


@dataclass(frozen=True, slots=True)
class Ports:
    """Capacities in bytes per cycle: of each flow's own path, and of the ports that flows share (a row of `through` per port)."""

    own: Array
    port: Array
    through: Array


def shared_ports(schedules: Sequence[Schedule], own: Array, capacity: Callable[[str, int], float]) -> Ports:
    """Return who shares what: an egress port per source and an ingress port per destination; host memory has a link per GPU.

    Parameters
    ----------
    schedules : sequence of Schedule
    own : ndarray, shape (flows,)
        Bytes per cycle that each flow's own path carries.
    capacity : callable
        ``(kind, gpu) -> bytes per cycle`` of the port ``egress``, ``ingress`` or ``host`` of a GPU.
    """
    used = [
        [] if s.is_local else [("host", s.source)] if s.destination == HOST else [("egress", s.source), ("ingress", s.destination)]
        for s in schedules
    ]
    distinct = list(dict.fromkeys(port for ports in used for port in ports))
    through = np.array([[float(port in ports) for ports in used] for port in distinct]).reshape(len(distinct), len(used))
    return Ports(own, np.array([capacity(*port) for port in distinct]), through)


def max_min(ports: Ports, wanted: Array) -> Array:
    """Share the ports: every flow rises alike until its own path, its demand or a full port holds it.

    Parameters
    ----------
    ports : Ports
    wanted : ndarray, shape (flows,)
        Bytes per cycle that each flow could use; 0 for an idle one.

    Returns
    -------
    ndarray, shape (flows,)
        No port carries more than its capacity, and no flow could have more without another one of at most its rate having less.
    """
    most = np.minimum(wanted, ports.own)
    rate, held = np.zeros(most.size), most <= _TIE
    while not held.all():
        left = ports.port - ports.through @ rate
        rising = ports.through @ ~held
        step = np.min((most - rate)[~held])
        if (rising > 0).any():
            step = min(step, np.min(left[rising > 0] / rising[rising > 0]))
        rate = np.where(held, rate, rate + max(step, 0.0))
        full = (ports.port - ports.through @ rate <= _TIE) & (rising > 0)
        held = held | (rate >= most - _TIE) | (full @ ports.through > 0)
    return rate


@dataclass(slots=True)
class Flow:
    """One schedule under way; cycles and bytes of all its producers together.

    Parameters
    ----------
    schedule : Schedule
    free : ndarray, shape (bursts,)
        T0 of each burst.
    capacity : float
        Q.
    cycles_per_ns : float
        Of the SM clock, for what is timed.
    turnaround, gap_overhead : float
        Least cycles between two bursts, and what a gap costs beside itself.
    """

    schedule: Schedule
    free: Array
    capacity: float
    cycles_per_ns: float
    turnaround: float = 0.0
    gap_overhead: float = 0.0
    size: Array = field(init=False)
    start: Array = field(init=False)
    end: Array = field(init=False)
    next_start: float = field(init=False)
    burst: int = 0
    left: float = 0.0
    backlog: float = 0.0
    issuing: bool = False
    empty_at: float = 0.0

    def __post_init__(self) -> None:
        s = self.schedule
        self.size = np.array([b.bytes for b in s.bursts], dtype=float) * s.producer_count
        self.start, self.end = np.zeros(self.size.size), np.zeros(self.size.size)
        self.next_start = s.bursts[0].start_ns * self.cycles_per_ns if s.start == "timed" else 0.0

    def speed(self) -> float:
        """Bytes per cycle that issuing offers."""
        return float(self.size[self.burst] / max(self.free[self.burst], 1.0)) if self.issuing else 0.0

    def stalled(self) -> bool:
        """Whether issuing waits for the drain."""
        return self.issuing and self.backlog >= self.capacity - _TIE

    def wanted(self) -> float:
        """What it could drain: anything while there is a backlog, else what is being issued."""
        return np.inf if self.backlog > _TIE else self.speed()


def run_flows(flows: Sequence[Flow], ports: Ports) -> None:
    """Run all flows from a common start to their ends; each then holds the start and end of its bursts, and when it ran empty."""
    now = 0.0
    while True:
        rates = max_min(ports, np.array([f.wanted() for f in flows]))
        dt = min((_next(f, r, now) for f, r in zip(flows, rates, strict=True)), default=np.inf)
        if not np.isfinite(dt):
            break
        for flow, rate in zip(flows, rates, strict=True):
            _advance(flow, rate, dt, now)
        now += dt
        for flow in flows:
            _settle(flow, now)


def _admitted(f: Flow, rate: float) -> float:
    return min(f.speed(), rate) if f.stalled() else f.speed()


def _next(f: Flow, rate: float, now: float) -> float:
    """Cycles until this flow's next event."""
    if f.issuing and f.left <= _LEFT:
        return 0.0
    if not f.issuing and f.burst < f.size.size and f.backlog <= _TIE:
        return max(f.next_start - now, 0.0)
    until = np.inf
    speed = _admitted(f, rate)
    if f.issuing:
        until = f.left / speed if speed > 0 else np.inf
        growth = speed - rate
        if growth > 0 and not f.stalled():
            until = min(until, (f.capacity - f.backlog) / growth)
    elif f.burst < f.size.size:
        until = max(f.next_start - now, 0.0)
    if f.backlog > _TIE and rate > speed:
        until = min(until, f.backlog / (rate - speed))
    return until


def _advance(f: Flow, rate: float, dt: float, now: float) -> None:
    admitted = _admitted(f, rate) * dt
    drained = min(rate * dt, f.backlog + admitted)
    f.left = max(0.0, f.left - admitted) if f.issuing else 0.0
    f.backlog = max(0.0, f.backlog + admitted - drained)
    if drained > 0:
        f.empty_at = now + dt


def _settle(f: Flow, now: float) -> None:
    """Begin or end what is due."""
    n = f.size.size
    if f.issuing and f.left <= _LEFT:
        # Whatever the stall, a burst takes at least its free time: rounding of rates must not shorten it.
        f.end[f.burst] = max(now, f.start[f.burst] + f.free[f.burst])
        f.issuing = False
        f.burst += 1
        if f.burst < n:
            s, b = f.schedule, f.schedule.bursts[f.burst]
            if s.start == "timed":
                f.next_start = max(f.end[f.burst - 1] + f.turnaround, b.start_ns * f.cycles_per_ns)
            else:
                f.next_start = f.end[f.burst - 1] + max(f.turnaround, b.gap_cycles + f.gap_overhead)
    if not f.issuing and f.burst < n and f.next_start <= now + _TIE:
        f.start[f.burst], f.issuing, f.left = now, True, f.size[f.burst]
