"""Measurements with known truth: the node model's own form plus the noise of processes and executions, to judge fits and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import Schedule

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations: of a process's parameters around the truth, and of a process's median of one burst."""

    process: float = 0.004
    burst: float = 0.01


def synthesize(
    truth: NodeModel, schedules: Sequence[Schedule], rng: np.random.Generator, *, processes: int = 3, noise: Noise | None = None
) -> Measured:
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
    return Measured(
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
