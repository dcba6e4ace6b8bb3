"""``xstage predict``: what a schedule of the user's own, or a workload of a real model, would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, MODEL, common
from xstage_bench.cli.output import STDOUT, Output, check_file, model_gate, table
from xstage_bench.cli.workload import check_workload, show_workload, workload_options
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.model.document import Model
    from xstage_bench.model.prediction import PredictedSchedule
    from xstage_bench.model.tasks.predict import TaskPrediction
    from xstage_bench.schedule.bursts import Schedule

ROWS_SHOWN = 64
COLUMNS = (
    "burst", "start_ns", "t0_cycles", "issue_cycles", "issue_low_cycles", "issue_high_cycles", "issue_max_cycles", "backlog_bytes",
    "visible_ns", "regime", "in_calibrated_range",
)  # fmt: skip
TASK_COLUMNS = (
    "task", "producer", "phase", "start_ns", "compute_end_ns", "issue_ns", "issue_low_ns", "issue_high_ns", "stall_ns", "publish_ns",
    "backlog_bytes", "visible_ns", "in_calibrated_range",
)  # fmt: skip


@click.command("predict", short_help="Predict a schedule file, or a workload.")
@click.argument("model", type=MODEL)
@click.argument("schedule", type=FILE, required=False)
@click.option("--pair", metavar="A>B", help="Use the model of this pair; default: the schedule's own.")
@click.option("--sm-clock-mhz", type=float, metavar="MHZ", help="Predict for this SM clock; default: the model's.")
@click.option("--compute", type=click.Choice(["mma", "spin"]), default="mma", show_default=True, help="Whose constants tasks are given.")
@click.option("--trace", type=FILE, metavar="FILE", help="Write a time line for ui.perfetto.dev.")
@workload_options
@common
def command(
    out: Output, model: Path, schedule: Path | None, pair: str | None, sm_clock_mhz: float | None, compute: str, trace: Path | None,
    **workload: Any,
) -> int:  # fmt: skip
    """Predict every burst or task of SCHEDULE with MODEL (a model.json, a fitted run folder, or a node's name).

    SCHEDULE is a file of bursts, {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536, "gap_cycles": 2000}]} or CSV
    with one row for each burst, or of tasks with compute and dependencies (docs/measure.md). xstage explain says
    what each column means.

    Or every phase of a real model under a parallel layout, with its stores as they are and as advised: --workload keye-vl-2 --ep 8 --sp 4.
    """
    from xstage_bench.model.run_fit import find_model, is_simulated

    check_workload(schedule, workload)
    check_file(trace)
    out.no_json_beside(trace, "a time line")
    loaded = find_model(model)
    head = {"backend": loaded.backend, "simulated": is_simulated(loaded), "model_gate": model_gate(out, loaded)}
    if schedule is None:
        if trace is not None:
            raise UsageError("--trace draws a schedule file, not a workload", "leave out --trace")
        return show_workload(out, loaded, head, pair=pair, sm_clock_mhz=sm_clock_mhz, **workload)
    found = _predict(out, loaded, head, schedule, pair, sm_clock_mhz, compute, shown=trace != STDOUT)
    if trace is not None:
        from xstage_bench.show.perfetto import all_events, encode_trace, write_trace

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
    from xstage_bench.schedule.task_files import is_task_file

    if is_task_file(file):
        from xstage_bench.model.tasks.predict import predict_tasks_all
        from xstage_bench.schedule.task_files import load_tasks

        tasks = predict_tasks_all(model, load_tasks(file), pair=pair, sm_clock_mhz=mhz, compute=compute)
        for note in dict.fromkeys(note for p in tasks for note in p.notes):
            out.note(note)
        if shown:
            out.result({**head, "task_schedules": [p.document() for p in tasks]}, "\n\n".join(_task_text(p) for p in tasks))
        return tasks
    from xstage_bench.model.predict import predict_schedules
    from xstage_bench.schedule.burst_files import load_bursts

    schedules = load_bursts(file)
    bursts = predict_schedules(model, schedules, pair=pair, sm_clock_mhz=mhz)
    for note in dict.fromkeys(note for p in bursts for note in p.notes):
        out.note(note)
    both = list(zip(schedules, bursts, strict=True))
    if shown:
        document = {**head, "schedules": [_burst_document(s, p) for s, p in both]}
        out.result(document, "\n\n".join(_burst_text(s, p) for s, p in both))
    return bursts


def _burst_document(schedule: Schedule, predicted: PredictedSchedule) -> dict[str, Any]:
    return {
        "schedule": schedule.key(), "pair": predicted.pair, "model": predicted.model, "sm_clock_mhz": predicted.sm_clock_mhz,
        "total_ns": predicted.total_ns, "notes": list(predicted.notes), "holdout": predicted.holdout, "bursts": predicted.rows(),
    }  # fmt: skip


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
