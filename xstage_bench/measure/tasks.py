"""Replay TaskSchedules: each beside its twin without stores, repetitions interleaved in random order; one document comes out.

The part of the time that stores cost is the difference between a schedule and its twin. Both are executed in every round of repetitions,
since tensor-core work lowers the SM clock by an amount that drifts with temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xstage_bench.device.backend import BackendChoice, opener
from xstage_bench.errors import UsageError
from xstage_bench.measure.rounds import Work
from xstage_bench.measure.survey import take
from xstage_bench.measure.task_instrument import constants, probes
from xstage_bench.model.estimate import Estimate, over_processes
from xstage_bench.schedule.device import Compute, Node, TaskDevice
from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace


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
    **kept: Any,
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
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.

    Returns
    -------
    dict
        Plain data for ``replay.json``.

    Raises
    ------
    UsageError
        The backend cannot execute task schedules, or one of these.
    """
    if not schedules:
        raise UsageError("no task schedule to execute", "name a file with --schedule")
    found = [_Found([], []) for _ in schedules]
    twins = [s.without_stores() for s in schedules]
    traces: dict[str, list[tuple[int, TaskTrace]]] = {}
    pairs = list(dict.fromkeys((s.source, s.destination) for s in schedules))

    def work(device: TaskDevice, process: int) -> Iterator[Work]:
        node = device.node()
        rng = np.random.default_rng([seed, process])
        for pair in pairs:
            mine = [i for i, s in enumerate(schedules) if (s.source, s.destination) == pair]
            small = probes(*pair, len(node.gpus[pair[0]].smids)) if instrument and pair == pairs[0] else {}
            yield Work((pair,), partial(execute, device, process, mine, small, rng))

    def execute(
        device: TaskDevice, process: int, mine: Sequence[int], small: dict[str, TaskSchedule], rng: np.random.Generator
    ) -> Iterator[int]:
        """Execute everything of one pair in one process: a round of warm-ups, then `repetitions` rounds, each in an order of its own."""
        jobs: list[tuple[TaskSchedule, int, str]] = [(schedules[i], i, "full") for i in mine] + [(twins[i], i, "bare") for i in mine]
        jobs += [(s, -1, name) for name, s in small.items()]
        order = [(n, jobs[j]) for n in range(repetitions + 1) for j in rng.permutation(len(jobs))]
        executed = device.execute_tasks([job[0] for _, job in order], repetitions=1, compute=compute)
        for (n, (_, which, kind)), t in zip(order, executed, strict=True):
            status = "warmup" if n == 0 and t.status == "ok" else t.status
            if which >= 0:
                took = (t.total_ns, t.visible_ns, t.sm_clock_mhz, _compute_ratio(t))
                getattr(found[which], kind).append(TaskMeasurement(process, n, *took, status, t.detail))
            elif n:
                traces.setdefault(kind, []).append((process, t))
            yield int(n > 0)

    def body(node: Node) -> dict[str, Any]:
        rows = [_row(s, f) for s, f in zip(schedules, found, strict=True) if f.full]
        return {"compute": compute, "repetitions": repetitions, "instrument": constants(traces), "rows": rows}

    opened = opener(choice, TaskDevice, "execute task schedules", seed=seed)  # type: ignore[type-abstract]
    return take("replay", opened, work, body, processes=processes, simulated=choice.simulated, seed=seed, **kept)


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
