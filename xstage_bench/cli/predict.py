"""``xstage predict``: what a schedule of the user's own, or a workload of a real model, would cost."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.fitted_text import columns_of, wrapped
from xstage_bench.cli.options import FILE, MODEL, common
from xstage_bench.cli.output import STDOUT, Output, check_file, counted, model_gate, table
from xstage_bench.cli.progress import at_work
from xstage_bench.cli.workload import check_workload, show_workload, workload_options
from xstage_bench.errors import UsageError
from xstage_bench.io.no_collection import no_collection

if TYPE_CHECKING:
    from xstage_bench.model.document import Model
    from xstage_bench.model.prediction import PredictedSchedule
    from xstage_bench.model.tasks.predict import TaskPrediction
    from xstage_bench.schedule.bursts import Schedule

ROWS_SHOWN = SCHEDULES_SHOWN = 64
PART_BURSTS = 1 << 15
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

    SCHEDULE may also be a scene file: several schedules at the same time (docs/files.md).

    SCHEDULE is a file of bursts, {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536, "gap_cycles": 2000}]} or CSV
    with one row for each burst, or of tasks with compute and dependencies (docs/measure.md). xstage explain says
    what each column means.

    Or every phase of a real model under a parallel layout, with its stores as they are and as advised: --workload keye-vl-2 --ep 8 --sp 4,
    or of a model that you have the config.json of: --config config.json --ep 8 --sp 4.
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
    from xstage_bench.schedule.scene_files import is_scene_file

    if is_scene_file(schedule):
        if trace is not None or pair is not None:
            raise UsageError("a scene file names its pairs, and has no time line", "leave out --pair and --trace")
        return _show_scenes(out, loaded, head, schedule, sm_clock_mhz)
    with at_work(f"predicting {schedule}"), no_collection():
        found, outside, count = _predict(
            out, loaded, head, schedule, pair, sm_clock_mhz, compute, shown=trace != STDOUT, keep=trace is not None
        )
    if trace is not None:
        from xstage_bench.show.perfetto import all_events, encode_trace, write_trace

        if trace == STDOUT:
            out.raw(encode_trace(all_events(found)))
        else:
            write_trace(trace, all_events(found))
            out.note(f"the time line: {trace} (open it in https://ui.perfetto.dev)")
    if outside:
        out.note(f"{outside} of {counted(count, 'schedule')} outside what the model was fitted on: extrapolated")
    return 0


def _predict(
    out: Output,
    model: Model,
    head: dict[str, Any],
    file: Path,
    pair: str | None,
    mhz: float | None,
    compute: str,
    *,
    shown: bool,
    keep: bool,
) -> tuple[list[PredictedSchedule] | list[TaskPrediction], int, int]:
    """Predict and print; return the predictions where a time line is asked for, how many are extrapolated, and of how many."""
    from xstage_bench.schedule.task_files import is_task_file

    if is_task_file(file):
        from xstage_bench.model.tasks.predict import predict_tasks_all
        from xstage_bench.schedule.task_files import load_tasks

        tasks = predict_tasks_all(model, load_tasks(file), pair=pair, sm_clock_mhz=mhz, compute=compute)
        for note in dict.fromkeys(note for p in tasks for note in p.notes):
            out.note(note)
        if shown:
            out.result({**head, "task_schedules": [p.document() for p in tasks]}, "\n\n".join(_task_text(p) for p in tasks))
        return tasks, sum(not p.in_calibrated_range.all() for p in tasks), len(tasks)
    from xstage_bench.schedule.burst_files import load_bursts

    return _predict_bursts(out, model, head, load_bursts(file), pair, mhz, shown=shown, keep=keep)


def _show_scenes(out: Output, model: Model, head: dict[str, Any], file: Path, mhz: float | None) -> int:
    from xstage_bench.model.scenes import node_of, predict_scene
    from xstage_bench.schedule.scene_files import expanded, load_scenes

    node = node_of(model)
    predicted = [predict_scene(model, expanded(entry, node), mhz) for entry in load_scenes(file)]
    for note in dict.fromkeys(note for p in predicted for note in p.notes):
        out.note(note)
    scenes: list[dict[str, Any]] = [
        {
            "name": p.scene.name, "total_ns": p.total_ns, "notes": list(p.notes),
            "schedules": [
                {
                    "pair": f"{f.schedule.source}>{f.schedule.destination}", "producers": f.schedule.producer_count,
                    "warps": f.schedule.warps, "gb_per_s": f.gb_per_s, "drained_ns": f.drained_ns, "start_ns": f.start_ns.tolist(),
                    "issue_ns": f.issue_ns.tolist(), "alone_ns": f.alone_ns.tolist(),
                }
                for f in p.flows
            ],
        }
        for p in predicted
    ]  # fmt: skip
    rows = [
        [s["name"], f["pair"], f["producers"], f["gb_per_s"], max(f["issue_ns"]), max(f["alone_ns"]), f["drained_ns"]]
        for s in scenes
        for f in s["schedules"]
    ]
    columns = ["scene", "pair", "SMs", "GB/s", "longest issue, ns", "alone, ns", "drained at, ns"]
    out.result({**head, "scenes": scenes}, table(columns, rows))
    return 0


def _predict_bursts(
    out: Output,
    model: Model,
    head: dict[str, Any],
    schedules: list[Schedule],
    pair: str | None,
    mhz: float | None,
    *,
    shown: bool,
    keep: bool,
) -> tuple[list[PredictedSchedule], int, int]:
    """Predict part by part into a temporary file, so that neither a long file costs memory nor a late error follows half a result."""
    from xstage_bench.io.json_file import encode_json
    from xstage_bench.model.predict import predict_schedules

    kept: list[PredictedSchedule] = []
    notes: dict[str, None] = {}
    outside = done = 0
    opening = encode_json({**head, "schedules": []}) if out.json else b""
    cut = opening.rfind(b"]")
    with tempfile.TemporaryFile() as file:
        file.write(opening[:cut] if out.json else b"")
        for part in _parts(schedules):
            found = predict_schedules(model, part, pair=pair, sm_clock_mhz=mhz)
            outside += sum(not p.in_calibrated_range.all() for p in found)
            notes.update(dict.fromkeys(note for p in found for note in p.notes))
            if shown and out.json:
                file.write(b",\n" if done else b"\n")
                file.writelines(_burst_json(part, found))
            elif shown:
                for number, (schedule, predicted) in enumerate(zip(part[: max(0, SCHEDULES_SHOWN - done)], found, strict=False), done):
                    file.write((b"\n\n" if number else b"") + wrapped(_burst_text(schedule, predicted), columns_of(sys.stdout)).encode())
            done += len(part)
            kept += found if keep else []
        if out.json:
            file.write(b"\n  " + opening[cut:])
        else:
            more = done - SCHEDULES_SHOWN
            file.write((f"\n\n... and {counted(more, 'more schedule')}; --json has all" if more > 0 else "").encode() + b"\n")
        for note in notes:
            out.note(note)
        if shown:
            file.seek(0)
            for piece in iter(lambda: file.read(PART_BURSTS << 6), b""):
                out.raw(piece)
    return kept, outside, len(schedules)


def _parts(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Yield parts of like size, a long schedule alone: a short last one would take the slower of the two event loops."""
    bursts = sum(len(s.bursts) for s in schedules)
    most = bursts / max(1, bursts // PART_BURSTS)
    part: list[Schedule] = []
    size = 0
    for schedule in schedules:
        if part and len(schedule.bursts) >= most:
            yield part
            part, size = [], 0
        part.append(schedule)
        size += len(schedule.bursts)
        if size >= most:
            yield part
            part, size = [], 0
    if part:
        yield part


def _burst_json(schedules: list[Schedule], found: list[PredictedSchedule]) -> Iterator[bytes]:
    """Yield schedules of the document: several at once, or one a few bursts at a time; infinities become null."""
    import msgspec

    from xstage_bench.model.prediction import rows_of_all

    heads = [
        {
            "schedule": s.key(), "pair": p.pair, "model": p.model, "sm_clock_mhz": p.sm_clock_mhz, "total_ns": p.total_ns,
            "notes": p.notes, "holdout": p.holdout,
        }
        for s, p in zip(schedules, found, strict=True)
    ]  # fmt: skip
    if len(found) > 1:
        entries = [{**head, "bursts": rows} for head, rows in zip(heads, rows_of_all(found), strict=True)]
        yield msgspec.json.Encoder().encode_lines(entries)[:-1].replace(b"\n", b",\n")
        return
    yield msgspec.json.encode(heads[0])[:-1] + b',"bursts":['
    for first in range(0, len(found[0].regime), PART_BURSTS):
        yield (b"," if first else b"") + msgspec.json.encode(found[0].rows(first, first + PART_BURSTS))[1:-1]
    yield b"]}"


def _burst_text(schedule: Schedule, predicted: PredictedSchedule) -> str:
    k, w = schedule.producer_count, schedule.warps
    what = f"pair {predicted.pair}, {predicted.model} model, {counted(k, 'producer')} x {counted(w, 'warp')}, {schedule.start}"
    total = f"{counted(len(schedule.bursts), 'burst')} in {predicted.total_ns:.0f} ns"
    return _text(f"{what}: {total}", COLUMNS, predicted.rows(0, ROWS_SHOWN), len(schedule.bursts), "burst")


def _task_text(p: TaskPrediction) -> str:
    s = p.schedule
    what = f"pair {p.pair}, node model, {counted(s.producer_count, 'producer')} x {counted(s.warps, 'warp')}, {s.form}, {s.publish}"
    within = "" if p.total_low_ns is None else f" (90 %: {p.total_low_ns:.0f} to {p.total_high_ns:.0f})"
    total = f"{counted(s.task_count, 'task')} in {p.total_ns:.0f} ns{within}, {p.without_stores_ns:.0f} ns without stores"
    return _text(f"{s.name + ': ' if s.name else ''}{what}: {total}", TASK_COLUMNS, p.rows(), s.task_count, "task")


def _text(head: str, columns: tuple[str, ...], rows: list[dict[str, Any]], count: int, what: str) -> str:
    shown = table(columns, [[row[name] for name in columns] for row in rows[:ROWS_SHOWN]])
    more = f"\n... and {counted(count - ROWS_SHOWN, f'more {what}')}; --json has all" if count > ROWS_SHOWN else ""
    return f"{head}\n{shown}{more}"
