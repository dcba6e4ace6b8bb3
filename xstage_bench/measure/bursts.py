"""Bursts: execute a plan on a device and record it in a run folder, in random order, with warm-up and a sentinel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from xstage_bench.device.backend import open_device
from xstage_bench.device.replay import ReplayDevice
from xstage_bench.errors import PairError, UsageError
from xstage_bench.io.identity import merged
from xstage_bench.machine.environment import link_error_deltas, snapshot
from xstage_bench.measure.order import OrderedExecution, chunks_of
from xstage_bench.measure.plan import Options, Plan, plan_for
from xstage_bench.measure.rounds import Outcome, Progress, Work, name_of, run_rounds
from xstage_bench.measure.until import FLOOR, Certainty
from xstage_bench.record.manifest import Manifest
from xstage_bench.record.reader import Run, load_run
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.device import Device, kernels_of


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
    before = snapshot(expect_links=options.backend.expect_links)
    device = open_device(options.backend, seed=options.seed, process=0)
    try:
        plan = plan_for(device, options)
        node = plan.node
        manifest = Manifest(
            backend=device.backend,
            simulated=options.backend.simulated or (isinstance(device, ReplayDevice) and device.simulated),
            argv=list(argv),
            versions=dict(before.get("versions") or {}),
            cuda_sources=_cuda_sources(options),
            kernels=kernels_of(device),
            node=node,
            environment_before=before,
            seed=options.seed,
            options=options.facts(),
            notes=[*([f"backend {device.backend}: {options.backend.reason}"] if options.backend.reason else []), *plan.notes],
        )
        folder = new_run_folder(out)
        with RunWriter(folder, manifest, resume=resume) as writer:
            rules = None if options.until is None else {pair: Certainty(options.until, plan.processes) for pair in plan.pairs}
            if rules and writer.done:
                samples = load_run(folder).samples()
                for (source, destination), rule in rules.items():
                    rule.recall(samples[(samples["source"] == source) & samples["destination"].isin((source, destination))])
            outcome = run_plan(plan, options, writer, progress, device=device, rules=rules)
            after = snapshot(expect_links=options.backend.expect_links)
            writer.finish(
                environment_after=after,
                link_error_deltas=link_error_deltas(before, after),
                failed_pairs=outcome.failed_pairs,
                kernels=merged(writer.manifest.kernels, outcome.kernels),
                wall_s=round(outcome.wall_s, 3),
                stopping=None if rules is None else _stopping(plan, options, rules),
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
    rules: Mapping[tuple[int, int], Certainty] | None = None,
) -> Outcome:
    """Execute a plan in fresh processes and hand every trace to the writer.

    Parameters
    ----------
    device : Device, optional
        An open device to use as process 0; the caller closes it. Those of later processes are opened and closed here.
    rules : mapping of pair to Certainty, optional
        Tell when a schedule has been repeated often enough; told of every execution.

    Raises
    ------
    KeyboardInterrupt
        After what was measured has been flushed.
    """
    rules = rules or {}
    orders = {pair: writer.next_order.get(pair[0], 0) for pair in plan.pairs}

    def work(current: Device, process: int) -> Iterator[Work]:
        for pair in plan.pairs:
            yield Work((pair,), partial(execute, current, process, pair), current.verify)

    def execute(current: Device, process: int, pair: tuple[int, int]) -> Iterator[int]:
        for chunk in chunks_of(current, plan, options, pair, process, writer.done, rules.get(pair)):
            _execute(current, chunk, process, orders[pair], writer, rules.get(pair))
            orders[pair] += len(chunk)
            yield sum(j.execution.kind == "measure" for j in chunk)

    return run_rounds(
        lambda process: open_device(options.backend, seed=options.seed, process=process),
        plan.processes,
        work,
        first=device,
        total=sum(plan.executions(items) for items in plan.pairs.values()),
        budget_s=options.budget_s,
        progress=progress,
        after_process=writer.flush,
    )


def _execute(
    device: Device, chunk: list[OrderedExecution], process: int, order: int, writer: RunWriter, rule: Certainty | None = None
) -> None:
    bad = None
    for i, (job, trace) in enumerate(zip(chunk, device.measure([j.execution for j in chunk]), strict=True)):
        writer.write(job.probe, process, order + i, [job.execution], [trace], keep_producers=job.keep_producers)
        if rule is not None and job.key:
            rule.take((job.probe, job.key), process, trace)
        if trace.status in ("corrupt", "timeout"):
            bad = trace
    if bad is not None:
        pair = f"pair {bad.schedule.source}>{bad.schedule.destination}"
        raise PairError(bad.detail if pair in bad.detail else f"{pair}: {bad.detail}", "run 'xstage doctor'")


def _stopping(plan: Plan, options: Options, rules: Mapping[tuple[int, int], Certainty]) -> dict[str, Any]:
    """Say by which rule each schedule ended, for the manifest."""
    pairs = {
        name_of(pair): rules[pair].facts(((i.probe.name, i.schedule.key()), i.repetitions) for i in items if not i.timeline)
        for pair, items in plan.pairs.items()
    }
    return {"until": options.until, "floor": FLOOR * plan.processes, "pairs": pairs}


def _cuda_sources(options: Options) -> str | None:
    if options.backend.spec != "cuda":
        return None
    from xstage_bench.device.cuda.compile import sources_hash

    return sources_hash()
