"""Execute a plan on a device and record it: random order, warm-up, a sentinel, fresh processes; one pair's failure is not the others'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np

from xstage_bench.device import Device, Execution
from xstage_bench.device.backend import open_device
from xstage_bench.environment import link_error_deltas, snapshot
from xstage_bench.errors import PairError, UsageError
from xstage_bench.plan import Options, Plan, PlannedSchedule, make_plan
from xstage_bench.probe import Probe
from xstage_bench.record.manifest import Manifest
from xstage_bench.record.reader import Run, load_run
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule import Burst, Schedule

CHUNK = 512  # executions between two looks at the budget and the progress bar
SENTINEL_EVERY = 64
WARMUP = 48  # executions of the sentinel at the start of each process and pair: clocks ramp from idle over milliseconds

_RUNNER = Probe("runner", "warm-up and sentinel", lambda sweep: [])


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is: executions done of all planned, the pair and the process under way."""

    done: int
    total: int
    pair: tuple[int, int]
    process: int


@dataclass(slots=True)
class RunOutcome:
    """How a run ended."""

    failed_pairs: dict[str, str] = field(default_factory=dict)
    executions: int = 0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Job:
    item: PlannedSchedule
    execution: Execution
    first: bool  # of its schedule in this process: its producers are kept


def new_run_folder(out: Path | None) -> Path:
    """Return the folder of a new run: `out`, else a new dated one under ``./xstage-runs/``."""
    if out is not None:
        return out
    base = Path("xstage-runs")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = [stamp, *(f"{stamp}-{i}" for i in range(2, 100))]
    return next(base / name for name in names if not (base / name).exists())


def record_run(
    options: Options,
    out: Path | None,
    argv: Sequence[str],
    *,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Describe the node, plan, measure and record: the whole of ``xstage run``.

    Parameters
    ----------
    options : Options
    out : Path, optional
        See `new_run_folder`.
    argv : sequence of str
        For the manifest.
    resume : bool
        Go on with the interrupted run in `out`.
    progress : callable, optional
        Called after every chunk.

    Returns
    -------
    Run
        Its manifest's `failed_pairs` names the pairs that could not be measured.
    """
    if resume and out is None:
        raise UsageError("--resume needs the folder of the interrupted run", "xstage run --resume --out FOLDER")
    before = snapshot()
    device = open_device(options.backend, seed=options.seed, process=0)
    try:
        node = device.node()
        plan = make_plan(node, options)
        manifest = Manifest(
            backend=device.backend,
            simulated=options.backend.simulated,
            argv=list(argv),
            versions=dict(before.get("versions") or {}),
            cuda_sources=_cuda_sources(options),
            node=node,
            environment_before=before,
            seed=options.seed,
            options=options.facts(),
            notes=[options.backend.reason] if options.backend.reason else [],
        )
        folder = new_run_folder(out)
        with RunWriter(folder, manifest, resume=resume) as writer:
            outcome = run_plan(plan, options, writer, progress, device=device)
            after = snapshot()
            writer.finish(
                environment_after=after,
                link_error_deltas=link_error_deltas(before, after),
                failed_pairs=outcome.failed_pairs,
                wall_s=round(outcome.wall_s, 3),
                notes=[*writer.manifest.notes, *outcome.notes],
            )
    finally:
        device.close()
    return load_run(folder)


def run_plan(
    plan: Plan,
    options: Options,
    writer: RunWriter,
    progress: Callable[[Progress], None] | None = None,
    *,
    device: Device | None = None,
) -> RunOutcome:
    """Execute a plan in fresh processes and hand every trace to the writer.

    Parameters
    ----------
    device : Device, optional
        An open device to use as process 0; the caller closes it. Those of later processes are opened and closed here.

    Raises
    ------
    KeyboardInterrupt
        After what was measured has been flushed.
    """
    started = time.monotonic()
    outcome = RunOutcome()
    total = sum(i.repetitions for items in plan.pairs.values() for i in items) * plan.processes
    orders = dict.fromkeys(plan.pairs, 0)
    for process in range(plan.processes):
        own = device is None or process > 0
        current = open_device(options.backend, seed=options.seed, process=process) if own or device is None else device
        try:
            for pair, items in plan.pairs.items():
                name = f"{pair[0]}>{pair[1]}"
                if name in outcome.failed_pairs:
                    continue
                jobs = _jobs(items, pair, process, options.seed, writer.done)
                share = _deadline(started, options.budget_s, plan, process, pair)
                try:
                    current.verify(*pair)
                    for chunk in _chunks(jobs, plan, pair):
                        _execute(current, chunk, process, orders[pair], writer)
                        orders[pair] += len(chunk)
                        outcome.executions += sum(j.execution.kind == "measure" for j in chunk)
                        if progress is not None:
                            progress(Progress(outcome.executions, total, pair, process))
                        if share is not None and time.monotonic() > share:
                            _note(outcome, f"the budget of {options.budget_s:g} s ended some sweeps early, at random")
                            break
                except PairError as error:
                    outcome.failed_pairs[name] = error.message
        finally:
            writer.flush()
            if own:
                current.close()
    outcome.wall_s = time.monotonic() - started
    return outcome


def _jobs(
    items: tuple[PlannedSchedule, ...], pair: tuple[int, int], process: int, seed: int, done: set[tuple[str, int, int]]
) -> list[_Job]:
    """All executions of one pair in one process, in random order; time lines last, in the first process only."""
    jobs, lines = [], []
    for item in items:
        if item.timeline:
            if process == 0:
                lines.append(_Job(item, Execution(item.schedule, 0, timeline=True), False))
            continue
        key = item.schedule.key()
        for i in range(item.repetitions):
            repetition = process * item.repetitions + i
            if (key, process, repetition) not in done:
                jobs.append(_Job(item, Execution(item.schedule, repetition), i == 0))
    order = np.random.default_rng([seed, *pair, process, 1]).permutation(len(jobs))
    return [*(jobs[i] for i in order), *lines]


def _chunks(jobs: list[_Job], plan: Plan, pair: tuple[int, int]) -> Iterator[list[_Job]]:
    """Warm-up, then chunks of one destination each (a launch has one), with the sentinel among the remote ones.

    The first burst after the host has let a GPU idle is several times slower than any other, so every chunk starts with one execution that
    is marked as warm-up: kept in the raw data, out of every fit.
    """
    sms = plan.node.gpus[pair[0]].sm_count
    count = dict.fromkeys(("warmup", "sentinel"), 0)

    def own(kind: Literal["warmup", "sentinel"], destination: int) -> _Job:
        schedule = Schedule((Burst(64 * 4 * 512),), sms, 4, pair[0], destination)
        count[kind] += 1
        return _Job(PlannedSchedule(_RUNNER, schedule, 1), Execution(schedule, count[kind] - 1, kind=kind), False)

    yield [own("warmup", pair[1]) for _ in range(WARMUP)]
    for at in range(0, len(jobs), CHUNK):
        part = jobs[at : at + CHUNK]
        for destination in dict.fromkeys(j.execution.schedule.destination for j in part):
            chunk = [own("warmup", destination)]
            for i, job in enumerate(j for j in part if j.execution.schedule.destination == destination):
                if destination == pair[1] and i % SENTINEL_EVERY == 0:
                    chunk.append(own("sentinel", destination))
                chunk.append(job)
            yield chunk


def _execute(device: Device, chunk: list[_Job], process: int, order: int, writer: RunWriter) -> None:
    traces = device.measure([j.execution for j in chunk])
    corrupt = None
    for i, (job, trace) in enumerate(zip(chunk, traces, strict=True)):
        keep = job.item.probe.keep_producers and job.first
        writer.write(job.item.probe.name, process, order + i, [job.execution], [trace], keep_producers=keep)
        if trace.status in ("corrupt", "timeout"):
            corrupt = trace
    if corrupt is not None:
        pair = f"pair {corrupt.schedule.source}>{corrupt.schedule.destination}"
        raise PairError(corrupt.detail if pair in corrupt.detail else f"{pair}: {corrupt.detail}", "run 'xstage doctor'")


def _deadline(started: float, budget_s: float | None, plan: Plan, process: int, pair: tuple[int, int]) -> float | None:
    """When this pair must end in this process, so that every pair and process gets an equal share of the budget."""
    if budget_s is None:
        return None
    position = process * len(plan.pairs) + list(plan.pairs).index(pair) + 1
    return started + budget_s * position / (plan.processes * len(plan.pairs))


def _note(outcome: RunOutcome, text: str) -> None:
    if text not in outcome.notes:
        outcome.notes.append(text)


def _cuda_sources(options: Options) -> str | None:
    if options.backend.spec != "cuda":
        return None
    from xstage_bench.device.cuda.compile import sources_hash

    return sources_hash()
