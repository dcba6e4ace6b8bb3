"""In which order a process executes its part of a plan, and in which portions it hands it to the device."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from xstage_bench.device.replay import ReplayDevice
from xstage_bench.measure.plan import Options, Plan, PlannedSchedule
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Device, Execution

CHUNK = 512  # executions between two looks at the budget and the progress bar
SENTINEL_EVERY = 64
RUNNER = "runner"  # who asks for warm-up and sentinel, as the probes ask for the rest
WARMUP = 48  # executions of the sentinel at the start of each process and pair: clocks ramp from idle over milliseconds


@dataclass(frozen=True, slots=True)
class OrderedExecution:
    """One execution, the probe that asked for it, and whether the times of its producers are kept."""

    probe: str
    execution: Execution
    keep_producers: bool = False


def chunks_of(
    device: Device, plan: Plan, options: Options, pair: tuple[int, int], process: int, done: Set[tuple[str, int, int]] = frozenset()
) -> Iterator[list[OrderedExecution]]:
    """Everything that one process executes for one pair, portion by portion, on this device; `done` as in `jobs_of`."""
    if isinstance(device, ReplayDevice):
        return recorded_chunks(device, plan, pair, options.only)
    return chunks(jobs_of(plan, pair, process, options.seed, done), plan, pair)


def jobs_of(plan: Plan, pair: tuple[int, int], process: int, seed: int, done: Set[tuple[str, int, int]]) -> list[OrderedExecution]:
    """All executions of one pair in one process, in random order; time lines last, in the first process only.

    Parameters
    ----------
    done : set of (schedule key, process, repetition)
        Left out, because a resumed run has them.
    """
    jobs, lines = [], []
    for item in plan.pairs[pair]:
        if item.timeline:
            if process == 0:
                lines.append(OrderedExecution(item.probe.name, Execution(item.schedule, 0, timeline=True)))
            continue
        jobs += [job for job in _repetitions(item, process) if (item.schedule.key(), process, job.execution.repetition) not in done]
    order = np.random.default_rng([seed, *(i % 65536 for i in pair), process, 1]).permutation(len(jobs))
    return [*(jobs[i] for i in order), *lines]


def _repetitions(item: PlannedSchedule, process: int) -> list[OrderedExecution]:
    first = item.first_repetition + process * item.repetitions
    keep = item.probe.keep_producers
    return [OrderedExecution(item.probe.name, Execution(item.schedule, first + i), keep and i == 0) for i in range(item.repetitions)]


def chunks(jobs: list[OrderedExecution], plan: Plan, pair: tuple[int, int]) -> Iterator[list[OrderedExecution]]:
    """Warm-up, then chunks of one destination and one variant of the instrument each (a launch has one), with the sentinel among the
    remote ones of plain stores: a sweep of many flavours is random within a chunk's worth of executions, and grouped inside it.

    The first burst after the host has let a GPU idle is several times slower than any other, so every chunk starts with one execution that
    is marked as warm-up: kept in the raw data, out of every fit.
    """
    sms = plan.node.gpus[pair[0]].sm_count
    count = dict.fromkeys(("warmup", "sentinel"), 0)

    def own(kind: Literal["warmup", "sentinel"], destination: int) -> OrderedExecution:
        schedule = Schedule((Burst(64 * 4 * 512),), sms, 4, pair[0], destination)
        count[kind] += 1
        return OrderedExecution(RUNNER, Execution(schedule, count[kind] - 1, kind=kind))

    yield [own("warmup", pair[1]) for _ in range(WARMUP)]
    for at in range(0, len(jobs), CHUNK):
        part = jobs[at : at + CHUNK]
        for target in dict.fromkeys(_target(j) for j in part):
            destination = target[0]
            chunk = [own("warmup", destination)]
            for i, job in enumerate(j for j in part if _target(j) == target):
                if destination == pair[1] and i % SENTINEL_EVERY == 0:
                    chunk.append(own("sentinel", destination))
                chunk.append(job)
            yield chunk


def _target(job: OrderedExecution) -> tuple[int, str, str, str]:
    s = job.execution.schedule
    return s.destination, s.flavour, s.layout, s.completion


def recorded_chunks(device: ReplayDevice, plan: Plan, pair: tuple[int, int], only: tuple[str, ...]) -> Iterator[list[OrderedExecution]]:
    """What the replayed process executed for this pair, in the recorded order.

    The LOCAL control belongs to the first pair of its source, as in a plan.
    """
    first_of_source = next(p for p in plan.pairs if p[0] == pair[0]) == pair
    chunk: list[OrderedExecution] = []
    # Time lines have no position of their own: they come last, as they were recorded.
    for recorded in sorted(device.executions(), key=lambda r: (r.execution.timeline, 0 if r.execution.timeline else r.order)):
        s = recorded.execution.schedule
        mine = (s.source, s.destination) == pair or (s.is_local and s.source == pair[0] and first_of_source)
        if not mine or (only and recorded.probe not in (*only, RUNNER)):
            continue
        if chunk and (len(chunk) >= CHUNK or chunk[-1].execution.schedule.destination != s.destination):
            yield chunk
            chunk = []
        chunk.append(OrderedExecution(recorded.probe, recorded.execution, device.has_producers(recorded)))
    if chunk:
        yield chunk
