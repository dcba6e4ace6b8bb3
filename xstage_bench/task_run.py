"""Replay TaskSchedules: each beside its twin without stores, repetitions interleaved in random order; one document comes out.

The part of the time that stores cost is the difference between a schedule and its twin. Both are executed in every round of repetitions,
since tensor-core work lowers the SM clock by an amount that drifts with temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from xstage_bench.device import Compute, TaskDevice, kernels_of
from xstage_bench.device.backend import BackendChoice, open_device
from xstage_bench.device.cuda.identity import Kernel, merged, plain
from xstage_bench.environment import link_error_deltas, snapshot
from xstage_bench.errors import PairError, UsageError
from xstage_bench.model.estimate import Estimate, over_processes
from xstage_bench.scene_run import node_facts
from xstage_bench.task_instrument import constants, probes
from xstage_bench.task_schedule import TaskSchedule, TaskTrace

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TaskMeasurement:
    """One execution of a schedule, or of its twin, without the time line; `compute_ratio` is compute measured over asked, all tasks."""

    process: int
    repetition: int
    total_ns: float
    visible_ns: float
    sm_clock_mhz: float
    compute_ratio: float
    status: str
    detail: str


@dataclass(slots=True)
class _Found:
    """All executions of one schedule: with stores, and without."""

    full: list[TaskMeasurement]
    bare: list[TaskMeasurement]


def measure_tasks(
    choice: BackendChoice,
    schedules: Sequence[TaskSchedule],
    *,
    compute: Compute,
    repetitions: int = 9,
    processes: int = 3,
    seed: int = 0,
    instrument: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Execute schedules and their twins, and the probes of the instrument's own costs.

    Parameters
    ----------
    choice : BackendChoice
    schedules : sequence of TaskSchedule
    compute : {'mma', 'spin'}
    repetitions : int
        Of each in each process; one more round before them is marked ``warmup`` and left out.
    processes : int
        Fresh processes with their own allocations.
    seed : int
        Of the order.
    instrument : bool
        Measure the instrument's own costs too, on the first pair.
    say : callable
        Told which process is under way.

    Returns
    -------
    dict
        Plain data for ``replay.json`` (results/h200-x2/replay).

    Raises
    ------
    UsageError
        The backend cannot execute task schedules, or one of these.
    """
    if not schedules:
        raise UsageError("no task schedule to execute", "name a file with --schedule")
    before = snapshot()
    found = [_Found([], []) for _ in schedules]
    twins = [s.without_stores() for s in schedules]
    traces: dict[str, list[tuple[int, TaskTrace]]] = {}
    failed: dict[str, str] = {}
    facts: dict[str, Any] = {}
    kernels: list[Kernel] = []
    pairs = dict.fromkeys((s.source, s.destination) for s in schedules)
    for process in range(processes):
        say(f"process {process + 1} of {processes}")
        device = open_device(choice, seed=seed, process=process)
        try:
            if not isinstance(device, TaskDevice):
                raise UsageError(f"backend {choice.spec} cannot execute task schedules", "use --backend cuda or sim")
            node = device.node()
            facts = facts or node_facts(node, device.backend)
            rng = np.random.default_rng([seed, process])
            for pair in pairs:
                mine = [i for i, s in enumerate(schedules) if (s.source, s.destination) == pair]
                small = probes(*pair, len(node.gpus[pair[0]].smids)) if instrument and pair == next(iter(pairs)) else {}
                try:
                    _rounds(device, schedules, twins, mine, small, compute, repetitions, process, rng, found, traces)
                except PairError as error:
                    failed[f"{pair[0]}>{pair[1]}"] = error.message
        finally:
            kernels = merged(kernels, kernels_of(device))
            device.close()
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "simulated": choice.simulated,
        **facts,
        "kernels": plain(kernels),
        "driver": (before.get("nvml") or {}).get("driver"),
        "compute": compute,
        "processes": processes,
        "repetitions": repetitions,
        "seed": seed,
        "link_error_deltas": link_error_deltas(before, snapshot()),
        "failed": failed,
        "instrument": constants(traces),
        "rows": [_row(s, f) for s, f in zip(schedules, found, strict=True) if f.full],
    }


def _rounds(
    device: TaskDevice,
    schedules: Sequence[TaskSchedule],
    twins: Sequence[TaskSchedule],
    mine: Sequence[int],
    small: dict[str, TaskSchedule],
    compute: Compute,
    repetitions: int,
    process: int,
    rng: np.random.Generator,
    found: list[_Found],
    traces: dict[str, list[tuple[int, TaskTrace]]],
) -> None:
    """Execute everything of one pair in one process: a round of warm-ups, then `repetitions` rounds, each in an order of its own."""
    jobs: list[tuple[TaskSchedule, int, str]] = [(schedules[i], i, "full") for i in mine] + [(twins[i], i, "bare") for i in mine]
    jobs += [(s, -1, name) for name, s in small.items()]
    order = [(n, jobs[j]) for n in range(repetitions + 1) for j in rng.permutation(len(jobs))]
    executed = device.execute_tasks([job[0] for _, job in order], repetitions=1, compute=compute)
    for (n, (_, which, kind)), t in zip(order, executed, strict=True):
        status = "warmup" if n == 0 and t.status == "ok" else t.status
        if which < 0:
            if n:
                traces.setdefault(kind, []).append((process, t))
        else:
            ratio = _compute_ratio(t)
            getattr(found[which], kind).append(
                TaskMeasurement(process, n, t.total_ns, t.visible_ns, t.sm_clock_mhz, ratio, status, t.detail)
            )


def _compute_ratio(trace: TaskTrace) -> float:
    asked = trace.schedule.compute_cycles.sum()
    took = np.nansum(trace.compute_end_ns - trace.start_ns) * trace.sm_clock_mhz / 1e3
    return float(took / asked) if asked else float("nan")


def _row(s: TaskSchedule, found: _Found) -> dict[str, Any]:
    """One schedule's numbers. The part due to stores and the ratio pair each execution with its twin of the same round."""
    bad: dict[str, int] = {}
    for m in (*found.full, *found.bare):
        if m.status != "ok":
            bad[m.status] = bad.get(m.status, 0) + 1
    row: dict[str, Any] = {
        "schedule": s.name or s.key(),
        "key": s.key(),
        "form": s.form,
        "publish": s.publish,
        "flavour": s.flavour,
        "both_ways": s.both_ways,
        "producers": s.producer_count,
        "warps": s.warps,
        "tasks": s.task_count,
        "volume_bytes": s.volume_bytes,
        "compute_cycles_per_producer": float(s.compute_cycles.sum()) / s.producer_count,
        "left_out": bad,
    }
    reasons = list(dict.fromkeys(m.detail for m in (*found.full, *found.bare) if m.detail))
    if reasons:
        row["reasons"] = reasons[:3]
    full = {(m.process, m.repetition): m for m in found.full if m.status == "ok"}
    bare = {(m.process, m.repetition): m for m in found.bare if m.status == "ok"}
    both = [(full[k], bare[k]) for k in full if k in bare]

    def over(values: list[float], measured: Sequence[TaskMeasurement], statistic: str) -> Estimate:
        return over_processes(np.array(values), np.array([m.process for m in measured]), statistic)

    end = "start to the end of the last task"
    pairs = [a for a, _ in both]
    row["total_us"] = over([m.total_ns / 1e3 for m in full.values()], list(full.values()), end)
    row["no_store_us"] = over([m.total_ns / 1e3 for m in bare.values()], list(bare.values()), f"{end}, nothing stored")
    row["stores_us"] = over([(a.total_ns - b.total_ns) / 1e3 for a, b in both], pairs, "difference within a round")
    row["slowdown"] = over([a.total_ns / b.total_ns for a, b in both], pairs, "ratio within a round")
    row["visible_us"] = over([m.visible_ns / 1e3 for m in full.values()], list(full.values()), "start to the end of a system fence")
    row["sm_clock_mhz"] = over([m.sm_clock_mhz for m in full.values()], list(full.values()), "over the execution")
    asked = "compute measured over asked, all tasks"
    row["compute_ratio"] = over([m.compute_ratio for m in full.values()], list(full.values()), asked)
    row["no_store_compute_ratio"] = over([m.compute_ratio for m in bare.values()], list(bare.values()), asked)
    row["no_store_sm_clock_mhz"] = over([m.sm_clock_mhz for m in bare.values()], list(bare.values()), "over the execution")
    return row
