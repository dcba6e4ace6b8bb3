"""Scenes on the simulator: fluid flows that share ports. Simpler than the model of one pair, for any number of GPUs.

Each schedule is one flow with a backlog. What it may drain is bounded by its SMs (K times one SM's rate), by its pair's link, and by the
egress port of its source and the ingress port of its destination, which all flows through them share max-min fairly. Producers of a flow
are all alike: a burst of V bytes is issued at V/T0 until the outstanding bytes reach Q, from then on at the rate at which the flow
drains. Rates change only when a flow starts, stalls, ends a burst or runs empty, so the course is exact between events.

Left out, beside what docs/simulator.md lists: the tree of arbiters and the stagger that it causes, credits, company.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.core import Ideal, places
from xstage_bench.device.sim.port import issue_cycles
from xstage_bench.device.sim.presets import Preset
from xstage_bench.schedule.bursts import HOST, Schedule

_TIE = 1e-6  # cycles, and bytes
_LEFT = 1e-3  # bytes of a burst: less is none


@dataclass(frozen=True, slots=True)
class Ports:
    """Capacities in bytes per cycle: of each flow's own path, and of the ports that flows share (a row of `through` per port)."""

    own: Array
    port: Array
    through: Array


def ports_of(preset: Preset, schedules: tuple[Schedule, ...], link: Array, mhz: float) -> Ports:
    """Return who shares what.

    Parameters
    ----------
    preset : Preset
    schedules : tuple of Schedule
    link : ndarray, shape (flows,)
        Factor on each pair's link.
    mhz : float
        SM clock.

    Returns
    -------
    Ports
        Local flows share nothing; host memory has a link per GPU, and no port of the switch.
    """
    per_cycle = 1e3 / mhz
    own, names, capacity = [], [], []
    for s, factor in zip(schedules, link, strict=True):
        most = s.producer_count * (preset.local_sm_bytes_per_cycle if s.is_local else preset.sm_bytes_per_cycle)
        pair = preset.host_gb_per_s if s.destination == HOST else preset.link_gb_per_s
        own.append(most if s.is_local else min(most, pair * factor * per_cycle))
    for s in schedules:
        if not s.is_local and s.destination == HOST:
            names.append(("host", s.source))
            capacity.append(preset.host_gb_per_s * per_cycle)
        elif not s.is_local:
            names += [("egress", s.source), ("ingress", s.destination)]
            capacity += [preset.egress_gb_per_s * per_cycle, preset.ingress_gb_per_s * per_cycle]
    distinct = list(dict.fromkeys(names))
    through = np.zeros((len(distinct), len(schedules)))
    for j, s in enumerate(schedules):
        for kind, gpu in (("egress", s.source), ("ingress", s.destination)) if s.destination != HOST else (("host", s.source),):
            if (kind, gpu) in distinct and not s.is_local:
                through[distinct.index((kind, gpu)), j] = 1.0
    return Ports(np.array(own), np.array([capacity[names.index(n)] for n in distinct]), through)


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
class _Flow:
    """One schedule under way; cycles and bytes of all its producers together."""

    schedule: Schedule
    size: Array
    free: Array
    capacity: float
    start: Array
    end: Array
    next_start: float
    burst: int = 0
    left: float = 0.0
    backlog: float = 0.0
    issuing: bool = False
    empty_at: float = 0.0

    def speed(self) -> float:
        """Bytes per cycle that issuing offers."""
        return float(self.size[self.burst] / max(self.free[self.burst], 1.0)) if self.issuing else 0.0

    def stalled(self) -> bool:
        return self.issuing and self.backlog >= self.capacity - _TIE

    def wanted(self) -> float:
        """What it could drain: anything while there is a backlog, else what is being issued."""
        return np.inf if self.backlog > _TIE else self.speed()


def courses(preset: Preset, schedules: tuple[Schedule, ...], link: Array, capacity: float, mhz: float) -> list[Ideal]:
    """Run all schedules from a common start to their ends.

    Parameters
    ----------
    capacity : float
        Factor on what an SM may have outstanding.

    Returns
    -------
    list of Ideal
        In the order of the schedules; all producers of a schedule have the same times.
    """
    ports = ports_of(preset, schedules, link, mhz)
    flows = [_fresh(preset, s, capacity, mhz) for s in schedules]
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
            _settle(preset, flow, now, mhz)
    return [_ideal(preset, f) for f in flows]


def _fresh(preset: Preset, s: Schedule, factor: float, mhz: float) -> _Flow:
    n = len(s.bursts)
    place = places(preset.groups, s.smids(preset.smids))
    each = preset.local_capacity_bytes if s.is_local else np.where(place[2], preset.capacity_both_bytes, preset.capacity_alone_bytes)
    size = np.array([b.bytes for b in s.bursts], dtype=float) * s.producer_count
    free = issue_cycles(preset.port, s.warps, s.stores_per_warp())
    first = s.bursts[0].start_ns * mhz / 1e3 if s.start == "timed" else 0.0
    total = float(np.broadcast_to(each, place[2].shape).sum()) * factor + (preset.host_buffer_bytes if s.destination == HOST else 0.0)
    return _Flow(s, size, free, total, np.zeros(n), np.zeros(n), first)


def _admitted(f: _Flow, rate: float) -> float:
    return min(f.speed(), rate) if f.stalled() else f.speed()


def _next(f: _Flow, rate: float, now: float) -> float:
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


def _advance(f: _Flow, rate: float, dt: float, now: float) -> None:
    admitted = _admitted(f, rate) * dt
    drained = min(rate * dt, f.backlog + admitted)
    f.left = max(0.0, f.left - admitted) if f.issuing else 0.0
    f.backlog = max(0.0, f.backlog + admitted - drained)
    if drained > 0:
        f.empty_at = now + dt


def _settle(preset: Preset, f: _Flow, now: float, mhz: float) -> None:
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
                f.next_start = max(f.end[f.burst - 1] + preset.turnaround, b.start_ns * mhz / 1e3)
            else:
                f.next_start = f.end[f.burst - 1] + max(preset.turnaround, b.gap_cycles + preset.gap_overhead)
    if not f.issuing and f.burst < n and f.next_start <= now + _TIE:
        f.start[f.burst], f.issuing, f.left = now, True, f.size[f.burst]


def _ideal(preset: Preset, f: _Flow) -> Ideal:
    k = f.schedule.producer_count
    left = np.full(f.size.size, np.nan)
    left[-1] = max(0.0, f.empty_at - f.end[-1])
    smids = f.schedule.smids(preset.smids)
    wide = np.ones(k)
    return Ideal(smids, f.start[:, None] * wide, f.end[:, None] * wide, left[:, None] * wide, f.free, np.zeros((f.size.size, k)))
