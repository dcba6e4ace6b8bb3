"""What the instrument sees of an ideal course: noise, clock ticks, fences; one Trace per execution."""

from __future__ import annotations

import hashlib

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.core import Ideal
from xstage_bench.device.sim.presets import Noise, Preset
from xstage_bench.device.sim.tasks import TaskCourse
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace
from xstage_bench.schedule.trace import Trace


def stream(*identity: object) -> np.random.Generator:
    """Return a random stream that depends on these values only: not on the order of calls, nor on what else is measured."""
    digest = hashlib.blake2b("|".join(map(str, identity)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))


def observe(preset: Preset, schedule: Schedule, ideal: Ideal, rng: np.random.Generator, clock: float) -> Trace:
    """Turn a noiseless course into what one execution reports.

    Parameters
    ----------
    preset : Preset
    schedule : Schedule
    ideal : Ideal
    rng : numpy Generator
        The stream of this execution.
    clock : float
        Factor on the SM clock.

    Returns
    -------
    Trace
        clock64 values are whole cycles, %globaltimer values whole ticks.
    """
    mhz = preset.sm_clock_mhz * clock
    start, end = _disturb(preset.noise, schedule, ideal, rng)
    # Warps that run apart: the first of them begins early, the last one ends late.
    issue = np.rint(end - start + ideal.drift)
    start, end = start - ideal.drift / 2, end + ideal.drift / 2
    gap = np.full(issue.shape, np.nan)
    if schedule.start != "isolated":
        gap[1:] = np.rint(start[1:] - end[:-1])
    tick = preset.timer_tick_ns
    # A producer leaves its spin on %globaltimer at the first poll after the deadline: within one tick.
    late = rng.uniform(0.0, tick, size=start.shape) if schedule.start != "free" else rng.uniform(0.0, tick, size=start.shape[1])
    begin_ns = start * 1e3 / mhz + late
    end_ns = begin_ns + issue * 1e3 / mhz
    return Trace(
        schedule=schedule,
        smids=ideal.smids,
        issue_cycles=issue,
        gap_cycles=gap,
        start_ns=np.floor(begin_ns / tick) * tick,
        end_ns=np.floor(end_ns / tick) * tick,
        drain_cycles=_fence(preset, schedule, ideal, rng),
        sm_clock_mhz=round(mhz * (1 + 2e-5 * float(rng.standard_normal())), 3),
    )


def observe_tasks(preset: Preset, schedule: TaskSchedule, course: TaskCourse, rng: np.random.Generator) -> TaskTrace:
    """Turn a noiseless course of tasks into what one execution reports: some permille longer or shorter, in ticks of the timer."""
    mhz = preset.sm_clock_mhz * (1 + 2e-5 * float(rng.standard_normal()))
    ns, tick = 1e3 / mhz * (1 + 0.5 * preset.noise.repetition * float(rng.standard_normal())), preset.timer_tick_ns

    def seen(cycles: Array) -> Array:
        return np.asarray(np.floor(cycles * ns / tick) * tick)

    return TaskTrace(
        schedule=schedule,
        smids=course.smids,
        start_ns=seen(course.start),
        compute_end_ns=seen(course.computed),
        store_end_ns=seen(course.stored),
        signal_end_ns=seen(course.signalled),
        total_ns=float(seen(np.array(course.end()))),
        visible_ns=float(seen(np.array(course.visible))),
        sm_clock_mhz=round(mhz, 3),
    )


def _disturb(noise: Noise, schedule: Schedule, ideal: Ideal, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return start and end with noise on the stalled part, on the port and rare delays; the start rule holds between them."""
    n, k = ideal.start.shape
    stall = np.maximum(ideal.end - ideal.start - ideal.free[:, None], 0.0)
    together, apart = rng.standard_normal(), rng.standard_normal((n, k))
    # Who is served first varies, how much the link carries does not: nobody is late after the last byte has been taken.
    latest = (ideal.end - ideal.start).max(axis=1, keepdims=True) - (ideal.end - ideal.start)
    shift = stall * noise.repetition * together + np.minimum(stall * noise.producer * apart, latest)
    cost = np.repeat(ideal.free[:, None], k, axis=1)
    if schedule.warps > 1:
        cost = cost + noise.port_cycles * np.clip(rng.standard_normal((n, k)), -3, 3) * np.minimum(1.0, cost / 100.0)
    hit = rng.random((n, k)) < noise.spike_chance
    cost = cost + np.where(hit, rng.exponential(noise.spike_cycles, (n, k)), 0.0)
    if schedule.start == "isolated":
        return ideal.start, np.where(stall > 0, np.maximum(ideal.start + cost, ideal.end + shift), ideal.start + cost)
    start, end = np.empty((n, k)), np.empty((n, k))
    before = ideal.start[0]
    for i in range(n):
        # Ends are set by the drain on an absolute clock; a start follows from the disturbed end before it.
        if i:
            wanted = ideal.start[i] - (ideal.end[i - 1] if schedule.start == "free" else 0.0)
            before = end[i - 1] + wanted if schedule.start == "free" else np.maximum(end[i - 1], wanted)
        start[i] = before
        end[i] = np.where(stall[i] > 0, np.maximum(before + cost[i], ideal.end[i] + shift[i]), before + cost[i])
    return start, end


def _fence(preset: Preset, schedule: Schedule, ideal: Ideal, rng: np.random.Generator) -> Array:
    """Return the cost of a system-scope fence after issue: the producer's own backlog, then the round trip of its last store."""
    fence = preset.fence
    shape = ideal.end.shape
    doublings = np.log2(schedule.warps)
    if schedule.is_local:
        trip = fence.local + fence.local_contention * schedule.producer_count / preset.sm_count + 0.25 * fence.per_warp_doubling * doublings
    else:
        trip = fence.remote + fence.per_warp_doubling * doublings
    cost = ideal.backlogged + trip * (1 + 0.03 * rng.standard_normal(shape))
    empty = fence.empty + fence.empty_spread * rng.random(shape)
    sizes = np.array([b.bytes for b in schedule.bursts])[:, None]
    nothing = sizes == 0 if schedule.start == "isolated" else np.full_like(sizes, sizes.max() == 0, dtype=bool)
    return np.asarray(np.where(np.isnan(ideal.backlogged), np.nan, np.rint(np.where(nothing, empty, cost))))
