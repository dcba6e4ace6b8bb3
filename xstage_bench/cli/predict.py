"""``xstage predict``: what a schedule of the user's own, or a workload of a real model, would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import STDOUT, Output, check_file, table
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.model.document import Model
    from xstage_bench.model.predict import PredictedSchedule
    from xstage_bench.model.tasks.predict import TaskPrediction
    from xstage_bench.schedule import Schedule

ROWS_SHOWN = 64
COLUMNS = (
    "burst",
    "start_ns",
    "t0_cycles",
    "issue_cycles",
    "issue_low_cycles",
    "issue_high_cycles",
    "issue_max_cycles",
    "backlog_bytes",
    "visible_ns",
    "regime",
    "in_calibrated_range",
)
TASK_COLUMNS = (
    "task",
    "producer",
    "phase",
    "start_ns",
    "compute_end_ns",
    "issue_ns",
    "issue_low_ns",
    "issue_high_ns",
    "stall_ns",
    "publish_ns",
    "backlog_bytes",
    "visible_ns",
    "in_calibrated_range",
)
_POSITIVE = click.IntRange(min=1)


@click.command("predict", short_help="Predict a schedule file, or a workload.")
@click.argument("model", type=FILE)
@click.argument("schedule", type=FILE, required=False)
@click.option("--pair", metavar="A>B", help="Use the model of this pair; default: the schedule's own.")
@click.option("--sm-clock-mhz", type=float, metavar="MHZ", help="Predict for this SM clock; default: the model's.")
@click.option("--compute", type=click.Choice(["mma", "spin"]), default="mma", show_default=True, help="Whose constants tasks are given.")
@click.option("--trace", type=FILE, metavar="FILE", help="Write a time line for ui.perfetto.dev.")
@click.option("--workload", metavar="NAME", help="Instead of SCHEDULE: keye-vl-2, or an MoE layer or attention of docs/workloads.md.")
@click.option("--ep", type=_POSITIVE, default=8, show_default=True, help="Ranks that share the experts.")
@click.option("--sp", type=_POSITIVE, default=1, show_default=True, help="Ranks that share a sequence.")
@click.option("--tp", type=_POSITIVE, default=1, show_default=True, help="Ranks that share heads and weights.")
@click.option("--replicate-kv", is_flag=True, help="Allow more ranks than key-value heads.")
@click.option("--context", type=_POSITIVE, default=131072, show_default=True, metavar="TOKENS", help="Tokens of a sequence.")
@click.option("--mode", type=click.Choice(["prefill", "decode", "distill"]), default="prefill", show_default=True, help="What runs.")
@click.option("--dtype", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True, help="Of the operands.")
@click.option("--tokens-per-rank", type=_POSITIVE, metavar="N", help="Of a rank at a time.")
@common
def command(
    out: Output,
    model: Path,
    schedule: Path | None,
    pair: str | None,
    sm_clock_mhz: float | None,
    compute: str,
    trace: Path | None,
    workload: str | None,
    **layout: Any,
) -> int:
    """Predict every burst or task of SCHEDULE with MODEL (a model.json, or a fitted run folder).

    SCHEDULE is a file of bursts, {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536, "gap_cycles": 2000}]} or CSV
    with one row for each burst (docs/schedules.md), or of tasks with compute and dependencies (docs/task-schedules.md). xstage explain says
    what each column means.
    """
    from xstage_bench.pipeline import find_model, is_simulated

    if (schedule is None) == (workload is None):
        raise UsageError("name a schedule file, or a workload with --workload", "xstage predict MODEL SCHEDULE")
    check_file(trace)
    out.no_json_beside(trace, "a time line")
    loaded = find_model(model)
    head = {"backend": loaded.backend, "simulated": is_simulated(loaded)}
    if workload is not None:
        if trace is not None:
            raise UsageError("--trace draws a schedule file, not a workload", "leave out --trace")
        return _workload(out, loaded, head, workload, {"pair": pair, "sm_clock_mhz": sm_clock_mhz, **layout})
    assert schedule is not None
    found = _predict(out, loaded, head, schedule, pair, sm_clock_mhz, compute, shown=trace != STDOUT)
    if trace is not None:
        from xstage_bench.perfetto import all_events, encode_trace, write_trace

        if trace == STDOUT:
            out.raw(encode_trace(all_events(found)))
        else:
            write_trace(trace, all_events(found))
            out.note(f"the time line: {trace} (open it in https://ui.perfetto.dev)")
    outside = sum(not p.in_calibrated_range.all() for p in found)
    if outside:
        out.note(f"{outside} of {len(found)} schedules lie outside what the model was fitted on; their numbers are extrapolated")
    return 0


def _predict(
    out: Output, model: Model, head: dict[str, Any], file: Path, pair: str | None, mhz: float | None, compute: str, *, shown: bool
) -> list[PredictedSchedule] | list[TaskPrediction]:
    from xstage_bench.task_file import is_task_file

    if is_task_file(file):
        from xstage_bench.model.tasks.predict import predict_tasks_all
        from xstage_bench.task_file import load_tasks

        tasks = predict_tasks_all(model, load_tasks(file), pair=pair, sm_clock_mhz=mhz, compute=compute)
        for note in dict.fromkeys(note for p in tasks for note in p.notes):
            out.note(note)
        if shown:
            out.result({**head, "task_schedules": [p.document() for p in tasks]}, "\n\n".join(_task_text(p) for p in tasks))
        return tasks
    from xstage_bench.pipeline import predict_schedules
    from xstage_bench.schedule_file import load_schedules

    schedules = load_schedules(file)
    bursts = predict_schedules(model, schedules, pair=pair, sm_clock_mhz=mhz)
    both = list(zip(schedules, bursts, strict=True))
    if shown:
        document = {**head, "schedules": [_burst_document(s, p) for s, p in both]}
        out.result(document, "\n\n".join(_burst_text(s, p) for s, p in both))
    return bursts


def _workload(out: Output, model: Model, head: dict[str, Any], name: str, given: dict[str, Any]) -> int:
    from xstage_bench.workloads import predict_workload
    from xstage_bench.workloads.predict import COLUMNS as PHASE_COLUMNS

    found = predict_workload(model, name, **given)
    for note in found.notes:
        out.note(note)
    out.result({**head, **found.document()}, f"{found.summary()}\n{table(PHASE_COLUMNS, found.rows())}")
    return 0


def _burst_document(schedule: Schedule, predicted: PredictedSchedule) -> dict[str, Any]:
    return {
        "schedule": schedule.key(),
        "pair": predicted.pair,
        "model": predicted.model,
        "sm_clock_mhz": predicted.sm_clock_mhz,
        "total_ns": predicted.total_ns,
        "bursts": predicted.rows(),
    }


def _burst_text(schedule: Schedule, predicted: PredictedSchedule) -> str:
    k, w = schedule.producer_count, schedule.warps
    what = f"pair {predicted.pair}, {predicted.model} model, {k} producers x {w} warps, {schedule.start}"
    return _text(f"{what}: {len(schedule.bursts)} bursts in {predicted.total_ns:.0f} ns", COLUMNS, predicted.rows(), "bursts")


def _task_text(p: TaskPrediction) -> str:
    s = p.schedule
    what = f"pair {p.pair}, node model, {s.producer_count} producers x {s.warps} warps, {s.form}, {s.publish}"
    within = "" if p.total_low_ns is None else f" (90 %: {p.total_low_ns:.0f} to {p.total_high_ns:.0f})"
    total = f"{s.task_count} tasks in {p.total_ns:.0f} ns{within}, {p.without_stores_ns:.0f} ns without stores"
    return _text(f"{s.name + ': ' if s.name else ''}{what}: {total}", TASK_COLUMNS, p.rows(), "tasks")


def _text(head: str, columns: tuple[str, ...], rows: list[dict[str, Any]], what: str) -> str:
    shown = table(columns, [[row[name] for name in columns] for row in rows[:ROWS_SHOWN]])
    more = f"\n... and {len(rows) - ROWS_SHOWN} more {what}; --json has all" if len(rows) > ROWS_SHOWN else ""
    return f"{head}\n{shown}{more}"
