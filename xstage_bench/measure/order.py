"""In which order a process executes its part of a plan, and in which portions it hands it to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from xstage_bench.device.replay import ReplayDevice
from xstage_bench.measure.plan import Options, Plan, PlannedSchedule
from xstage_bench.measure.until import FLOOR, Certainty
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Device, Execution

CHUNK = 512  # executions between two looks at the budget and the progress bar
SENTINEL_EVERY = 64
RUNNER = "runner"  # who asks for warm-up and sentinel, as the probes ask for the rest


@dataclass(frozen=True, slots=True)
class OrderedExecution:
    """One execution, the probe that asked for it, whether the times of its producers are kept, and the key of its schedule."""

    probe: str
    execution: Execution
    keep_producers: bool = False
    key: str = ""


def chunks_of(
    device: Device,
    plan: Plan,
    options: Options,
    pair: tuple[int, int],
    process: int,
    done: Set[tuple[str, int, int]] = frozenset(),
    certainty: Certainty | None = None,
) -> Iterator[list[OrderedExecution]]:
    """Everything that one process executes for one pair, portion by portion, on this device; the rest as in `rounds_of`."""
    if isinstance(device, ReplayDevice):
        return recorded_chunks(device, plan, pair, options.only)
    return chunks(rounds_of(plan, pair, process, options.seed, done, certainty), plan, pair, options.warmup)


def rounds_of(
    plan: Plan, pair: tuple[int, int], process: int, seed: int, done: Set[tuple[str, int, int]], certainty: Certainty | None = None
) -> Iterator[list[OrderedExecution]]:
    """All executions of one pair in one process, in random order; time lines last, in the first process only.

    Without a rule there is one round, of everything. With one, the first round has the floor of every schedule, and each later one a
    repetition more of those that are not sure yet: so a budget that ends early was spent where it was needed.

    Parameters
    ----------
    done : set of (schedule key, process, repetition)
        Left out, because a resumed run has them.
    certainty : Certainty, optional
        The rule. It is asked before each round, so what was executed must have been told to it by then.
    """
    rng = np.random.default_rng([seed, *(i % 65536 for i in pair), process, 1])
    repeated = [_repetitions(item, process) for item in plan.pairs[pair] if not item.timeline]
    lines = [
        OrderedExecution(i.probe.name, Execution(i.schedule, 0, timeline=True)) for i in plan.pairs[pair] if i.timeline and not process
    ]
    most = max((len(jobs) for jobs in repeated), default=0)
    start = 0
    for stop in [most] if certainty is None else range(min(FLOOR, most), most + 1):
        if certainty is not None and start:
            repeated = [jobs for jobs in repeated if certainty.is_open((jobs[0].probe, jobs[0].key), process)]
        jobs = [j for mine in repeated for j in mine[start:stop] if (j.key, process, j.execution.repetition) not in done]
        yield [*(jobs[i] for i in rng.permutation(len(jobs))), *(lines if stop == most else ())]
        start = stop


def _repetitions(item: PlannedSchedule, process: int) -> list[OrderedExecution]:
    first, key = item.first_repetition + process * item.repetitions, item.schedule.key()
    keep = item.probe.keep_producers
    return [OrderedExecution(item.probe.name, Execution(item.schedule, first + i), keep and i == 0, key) for i in range(item.repetitions)]


def chunks(rounds: Iterable[list[OrderedExecution]], plan: Plan, pair: tuple[int, int], warmup: int) -> Iterator[list[OrderedExecution]]:
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

    yield [own("warmup", pair[1]) for _ in range(warmup)]
    for part in (jobs[at : at + CHUNK] for jobs in rounds for at in range(0, len(jobs), CHUNK)):
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
