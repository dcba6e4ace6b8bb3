"""Measurements with known truth: the node model's own form plus the noise of processes and executions, to judge fits and intervals.

What is measured: a short list of schedules that fixes the eight parameters. One SM alone for what an SM does; bursts around the knee at
small, middle and full K for capacities, credit and buffer; long ones for the link; periodic and timed trains for the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import START_RULES, Burst, Schedule

FloatArray = NDArray[np.float64]
_STORE = 512
#: Stores per warp of isolated bursts by (share of all SMs, warps).
_ALONE = {
    (0.0, 1): (4, 8, 16, 32),
    (0.0, 4): (16, 64, 256),
    (0.09, 4): (16, 32, 64, 128),
    (0.12, 2): (24, 48, 96, 256),
    (0.18, 1): (48, 64, 96, 192),
    (0.24, 2): (24, 32, 48, 96, 256),
    (0.36, 4): (12, 16, 24, 48),
    (0.48, 1): (48, 56, 64, 96, 192),
    (0.73, 4): (10, 12, 16, 32, 128),
    (1.0, 1): (40, 44, 48, 64, 128),
    (1.0, 4): (11, 12, 16, 32, 128),
    (1.0, 8): (6, 8, 12, 64),
}
#: Trains of equal bursts: (share of all SMs, warps, stores per warp, period over what the link needs).
_PERIODIC = (
    (0.12, 4, 32, 0.8),
    (0.24, 4, 16, 0.4),
    (0.24, 1, 64, 0.5),
    (0.48, 4, 32, 0.7),
    (1.0, 4, 16, 0.6),
    (1.0, 4, 8, 0.2),
    (1.0, 1, 64, 0.9),
)
_TIMED = (
    (0.24, 4, 16, 0.7),
    (0.24, 1, 64, 0.9),
    (0.24, 4, 8, 0.55),
    (0.48, 1, 32, 0.9),
    (0.48, 4, 16, 0.6),
    (0.48, 1, 64, 0.75),
    (1.0, 1, 32, 0.8),
    (1.0, 4, 16, 0.95),
    (1.0, 4, 24, 0.5),
    (1.0, 1, 48, 0.88),
    (1.0, 4, 8, 0.67),
)
_BURSTS = 12
SMALL_ENDS = np.cumsum((4, 8, 4, 8, 4, 8))
#: 36 SMs in units of four and eight, so that service is unequal.
PLACE = Placement(tuple(tuple(range(int(e) - n, int(e))) for n, e in zip((4, 8, 4, 8, 4, 8), SMALL_ENDS, strict=True)))
TRUTH = NodeModel(19.0, 100.0, 25.6, 15_000.0, 13_000.0, 520.0, 50_000.0, 0.12, PLACE, 1980.0)
ENDS = np.cumsum([6] * 18 + [4] * 6)
#: 132 SMs in 24 units, parameters about those of an H200.
UNITS = tuple(tuple(range(int(end) - size, int(end))) for size, end in zip([6] * 18 + [4] * 6, ENDS, strict=True))
NODE = NodeModel(19.0, 370.0, 25.6, 16_500.0, 12_000.0, 560.0, 200_000.0, 0.16, Placement(UNITS), 1980.0)


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations: of a process's parameters around the truth, and of a process's median of one burst."""

    process: float = 0.004
    burst: float = 0.01


def synthesize(
    truth: NodeModel, schedules: Sequence[Schedule], rng: np.random.Generator, *, processes: int = 3, noise: Noise | None = None
) -> MeasuredSchedules:
    """Return what measuring these schedules would give if the model were exact.

    Parameters
    ----------
    truth : NodeModel
        Parameters that the processes scatter around; a parameter of zero stays zero.
    schedules : sequence of Schedule
    rng : Generator
    processes : int
    noise : Noise, optional
    """
    level = noise or Noise()
    each = []
    start = None
    for _ in range(processes):
        values = truth.values() * np.exp(level.process * rng.standard_normal(len(PARAMETERS)))
        found = predict_node(truth.with_values(values), schedules)
        start = found.start_ns if start is None else start
        each.append(found.issue_cycles * np.exp(level.burst * rng.standard_normal(found.issue_cycles.size)))
    by_process = np.array(each)
    first = np.concatenate([[0], np.cumsum([len(s.bursts) for s in schedules])]).astype(np.int64)
    issue = np.median(by_process, axis=0)
    return MeasuredSchedules(
        keys=tuple(s.key() for s in schedules),
        schedules=tuple(schedules),
        probes=tuple("isolated" if s.start == "isolated" else "periodic" if s.start == "free" else "timed" for s in schedules),
        first=first,
        issue_cycles=issue,
        issue_max_cycles=issue.copy(),
        start_ns=np.zeros(0) if start is None else start,
        by_process=by_process,
        sm_clock_mhz=truth.sm_clock_mhz,
    )


def shorter(schedules: Sequence[Schedule], bursts: int) -> list[Schedule]:
    """Return the schedules cut to their first `bursts` bursts."""
    return [replace(s, bursts=s.bursts[:bursts]) for s in schedules]


def quick_schedules(
    sm_count: int, source: int, destination: int, *, link_gb_per_s: float = 370.0, sm_clock_mhz: float = 1980.0
) -> list[Schedule]:
    """Return the short list for one pair.

    Parameters
    ----------
    sm_count : int
    source, destination : int
    link_gb_per_s, sm_clock_mhz : float
        Expected; they set the trains' gaps and periods, and need not be right within 30 %.
    """

    def count(share: float) -> int:
        return max(1, round(share * sm_count))

    pair = (source, destination)
    out = [Schedule((Burst(n * warps * _STORE),), count(share), warps, *pair) for (share, warps), sizes in _ALONE.items() for n in sizes]
    for share, warps, n, factor in _PERIODIC:
        size = n * warps * _STORE
        gap = round(factor * count(share) * size / link_gb_per_s * sm_clock_mhz / 1e3)
        out.append(Schedule((Burst(size, gap),) * _BURSTS, count(share), warps, *pair, "free"))
    for share, warps, n, factor in _TIMED:
        size = n * warps * _STORE
        period = round(factor * count(share) * size / link_gb_per_s)
        out.append(Schedule(tuple(Burst(size, start_ns=i * period) for i in range(_BURSTS)), count(share), warps, *pair, "timed"))
    return out


def drawn(count: int, seed: int, most_stores: float = 512) -> list[Schedule]:
    """Schedules as the probe `holdout` draws them, all three start rules, counts of producers and lists of smids."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        warps, bursts = int(rng.integers(1, 17)), int(rng.integers(1, 17))
        stores = np.exp(rng.uniform(0, np.log(most_stores), bursts)).astype(int) // warps
        gaps = np.exp(rng.uniform(np.log(50), np.log(100_000), bursts)).astype(int)
        at = np.concatenate(([0], np.cumsum(gaps[1:]) // 2))
        made = tuple(Burst(int(n) * warps * 512, int(g), int(t)) for n, g, t in zip(stores, gaps, at, strict=True))
        some = tuple(int(x) for x in np.sort(rng.choice(132, int(rng.integers(1, 133)), replace=False)))
        out.append(Schedule(made, some if i % 4 == 0 else len(some), warps, start=START_RULES[i % 3]))
    return out
