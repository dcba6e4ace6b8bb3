"""Data of exactly the fitted form, with known truth: what a fit must recover (preset ``burst-gap``).

    isolated:       issue = max(T0, (V - Q)/R)
    free:           period = max(T0 + G, V/R), so issue = max(T0, V/R - G); the first burst as an isolated one
    timed:          the same with G what is left of the period after T0

(closed forms of the X-Stage paper, arXiv 2607.23264), times one multiplicative factor per execution and burst. There is no
rounding of the knee, no stagger and no clock tick, so intervals can be judged: with this preset their coverage is the nominal one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.core import Ideal
from xstage_bench.device.sim.presets import PRESETS
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.trace import Trace

NAME = "burst-gap"
BASE = "h200-nv18-x2"  # GPUs, SMs and clocks are those of this preset
_BASE = PRESETS[BASE]


@dataclass(frozen=True, slots=True)
class BurstGapTruth:
    """The parameters that generated the data.

    Parameters
    ----------
    t0_base_cycles : float
        Cost of a burst of no stores.
    t0_cycles_per_store : float
        Cycles of T0 per warp-store of the SM: stores per warp times warps.
    drain_gb_per_s : float
        R of all producers together, 10^9 bytes per second.
    capacity_bytes : float
        Q of one SM; the stage of K producers holds K times as much.
    local_gb_per_s : float
        R of the LOCAL control.
    noise : float
        Standard deviation of the logarithm of the factor on the issue time of each burst of each execution. All producers share it, so that
        the slowest of them is not slower than the mean: R by makespan and R by mean have the same truth.
    sm_clock_mhz : float
    """

    t0_base_cycles: float = 64.0
    t0_cycles_per_store: float = 20.0
    drain_gb_per_s: float = 372.0
    capacity_bytes: float = 18500.0
    local_gb_per_s: float = 4120.0
    noise: float = 0.01
    sm_clock_mhz: float = _BASE.sm_clock_mhz

    def t0_cycles(self, warps: int, stores: Array) -> Array:
        """Return T0 of a burst of `stores` warp-stores per warp."""
        return self.t0_base_cycles + self.t0_cycles_per_store * warps * stores

    def bytes_per_cycle(self, *, local: bool) -> float:
        """Return R in bytes per SM cycle."""
        return (self.local_gb_per_s if local else self.drain_gb_per_s) * 1e3 / self.sm_clock_mhz


def course(truth: BurstGapTruth, schedule: Schedule) -> Ideal:
    """Return the noiseless course of a schedule by the closed forms.

    Returns
    -------
    Ideal
        `backlogged` is the time that the producer's own share of Q, or what there is of it, takes to drain.
    """
    k, n = schedule.producer_count, len(schedule.bursts)
    smids = schedule.smids(range(_BASE.sm_count))
    size = np.array([b.bytes for b in schedule.bursts], dtype=float)
    t0 = truth.t0_cycles(schedule.warps, schedule.stores_per_warp().astype(float))
    rate = truth.bytes_per_cycle(local=schedule.is_local) / k
    alone = np.maximum(t0, (size - truth.capacity_bytes) / rate)
    start, issue = np.zeros(n), alone.copy()
    for i in range(1, n):
        b = schedule.bursts[i]
        if schedule.start == "free":
            issue[i] = max(t0[i], size[i] / rate - b.gap_cycles)
            start[i] = start[i - 1] + issue[i - 1] + b.gap_cycles
        elif schedule.start == "timed":
            deadline = b.start_ns * truth.sm_clock_mhz / 1e3
            start[i] = max(deadline, start[i - 1] + issue[i - 1])
            issue[i] = max(t0[i], size[i] / rate - (start[i] - start[i - 1] - issue[i - 1]))
    left = np.minimum(size, truth.capacity_bytes) / rate
    if schedule.start != "isolated":
        left[:-1] = np.nan
    spread = np.ones(k)
    return Ideal(smids, start[:, None] * spread, (start + issue)[:, None] * spread, left[:, None] * spread, t0, np.zeros((n, k)))


def observe(truth: BurstGapTruth, schedule: Schedule, ideal: Ideal, rng: np.random.Generator) -> Trace:
    """Return one execution: issue times times a log-normal factor of mean one, everything else consistent with them."""
    n, k = ideal.start.shape
    factor = np.exp(truth.noise * rng.standard_normal((n, 1)) - truth.noise**2 / 2)
    issue = (ideal.end - ideal.start) * factor
    gap = np.full((n, k), np.nan)
    start = ideal.start.copy()
    if schedule.start != "isolated":
        gap[1:] = ideal.start[1:] - ideal.end[:-1]
        start[1:] = start[0] + np.cumsum(issue[:-1] + gap[1:], axis=0)
    ns = 1e3 / truth.sm_clock_mhz
    return Trace(
        schedule=schedule,
        smids=ideal.smids,
        issue_cycles=issue,
        gap_cycles=gap,
        start_ns=start * ns,
        end_ns=(start + issue) * ns,
        drain_cycles=ideal.backlogged + 1640.0,
        sm_clock_mhz=truth.sm_clock_mhz,
    )
