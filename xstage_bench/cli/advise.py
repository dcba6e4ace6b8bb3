"""``xstage advise``: how to order, size and space a kernel's stores so that they cost least."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, MODEL, common, completing, flavour_names
from xstage_bench.cli.output import Output, check_file, model_gate
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.model.advise.choose import TaskAdvice
    from xstage_bench.model.document import Model

_POSITIVE = click.IntRange(min=1)


@click.command("advise", short_help="Advise how to order and size stores.")
@click.argument("model", type=MODEL)
@click.argument("schedule", type=FILE, required=False)
@click.option("--bytes", "size", type=_POSITIVE, metavar="B", help="Bytes that a storing tile of one SM sends.")
@click.option("--tile-ns", type=float, metavar="NS", help="Compute time of a storing tile when nothing is stored.")
@click.option("--with-stores-ns", type=float, metavar="NS", help="Its measured time with the stores.")
@click.option("--tiles", type=_POSITIVE, metavar="N", help="Storing tiles of an SM.")
@click.option("--quiet-tile-ns", type=float, default=0.0, metavar="NS", help="Compute time of a tile that stores nothing (Linear-1).")
@click.option("--quiet-tiles", type=click.IntRange(min=0), default=0, metavar="N", help="Such tiles of an SM.")
@click.option("--waves", type=_POSITIVE, default=1, show_default=True, metavar="N", help="Waves of the present order.")
@click.option("--producers", type=_POSITIVE, metavar="K", help="SMs that store; default: all of the model's GPU.")
@click.option("--warps", type=click.IntRange(1, 8), default=4, show_default=True, metavar="W", help="Storing warps of an SM.")
@click.option("--flavour", default="st.v4", show_default=True, metavar="NAME", help="How they store.", **completing(flavour_names))
@click.option("--both-ways/--one-way", default=False, help="Whether the other GPU stores back at the same time.")
@click.option("--pair", metavar="A>B", help="Use the model of this pair; default 0>1, or the schedule's own.")
@click.option("--sm-clock-mhz", type=float, metavar="MHZ", help="Predict for this SM clock; default: the model's.")
@click.option("--split/--no-split", default=False, help="Whether a storing task may be cut in two; default: no.")
@click.option("--figure", type=FILE, metavar="FILE", help="Draw time against burst size and gap (.png or .svg).")
@click.option("--out", "path", type=FILE, metavar="FILE", help="Write the advised schedules as a task file.")
@common
def command(out: Output, model: Path, schedule: Path | None, figure: Path | None, path: Path | None, **given: Any) -> int:
    """Advise with MODEL (a model.json, a fitted run folder, or a node's name).

    With SCHEDULE, a task schedule file (docs/measure.md): other orders, sizes and spacings of its tasks, subject to its dependencies.
    Without it: for a kernel described by --bytes, --tile-ns, --tiles; and --quiet-tile-ns, --quiet-tiles for work to put between.
    """
    from xstage_bench.model.run_fit import find_model, is_simulated

    for file in (figure, path):
        check_file(file)
    if figure is not None and figure.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"{figure}: a figure is .png or .svg", "--figure advice.png")
    loaded = find_model(model)
    if is_simulated(loaded):
        out.note(f"SIMULATED: the model of {model} was fitted on backend {loaded.backend}")
    head = {"backend": loaded.backend, "simulated": is_simulated(loaded), "model_gate": model_gate(out, loaded)}
    with at_work("looking for a better order"):
        found = _job(out, loaded, head, given) if schedule is None else _tasks(out, loaded, head, schedule, given)
    if path is not None:
        from xstage_bench.schedule.task_files import save_tasks

        save_tasks(path, [a.schedule for a in found])
        out.note(f"the advised schedules: {path}")
    if figure is not None:
        _figure(out, loaded, found, figure)
    return 0


def _job(out: Output, model: Model, head: dict[str, Any], given: dict[str, Any]) -> list[TaskAdvice]:
    from xstage_bench.model.advise.job import Job, advise_job
    from xstage_bench.show.advice_text import job_document, job_text

    missing = [
        f"--{name.replace('_', '-')}" for name in ("bytes", "tile_ns", "tiles") if given["size" if name == "bytes" else name] is None
    ]
    if missing:
        raise UsageError(f"without a schedule file these are needed: {', '.join(missing)}", "--bytes 32768 --tile-ns 4200 --tiles 32")
    rest = {k: v for k, v in given.items() if k not in ("size", "pair", "sm_clock_mhz", "split")}
    job = Job(bytes=given["size"], pair=given["pair"] or "0>1", **rest)
    if job.stored_bytes != job.bytes:
        unit = f"{job.warps} warps store multiples of {job.unit_bytes} bytes with {job.flavour}"
        out.note(f"{job.bytes} bytes are taken as {job.stored_bytes}: {unit}; advice, figure and task file are for those")
    advice = advise_job(model, job, sm_clock_mhz=given["sm_clock_mhz"], splitting=given["split"])
    out.result({**head, **job_document(advice)}, job_text(advice))
    return [advice.tasks]


def _tasks(out: Output, model: Model, head: dict[str, Any], file: Path, given: dict[str, Any]) -> list[TaskAdvice]:
    from xstage_bench.model.advise.choose import advise_tasks
    from xstage_bench.schedule.task_files import load_tasks
    from xstage_bench.show.advice_text import tasks_document, tasks_text

    if given["size"] is not None or given["tiles"] is not None or given["tile_ns"] is not None:
        raise UsageError(
            "a schedule file says what is stored: --bytes, --tile-ns and --tiles are for a kernel without one", "leave them out"
        )
    options = {"pair": given["pair"], "sm_clock_mhz": given["sm_clock_mhz"], "splitting": given["split"]}
    found = [advise_tasks(model, s, **options) for s in load_tasks(file)]
    out.result({**head, "schedules": [tasks_document(a) for a in found]}, "\n\n".join(tasks_text(a) for a in found))
    return found


def _figure(out: Output, model: Model, found: list[TaskAdvice], path: Path) -> None:
    from xstage_bench.model.stage import stage_at
    from xstage_bench.show.advice_figure import write_advice_figure

    if len(found) > 1:
        out.note(f"the figure shows the first of {len(found)} schedules")
    s = found[0].present.schedule
    write_advice_figure(found[0], stage_at(model, s.producer_count, s.warps, pair=found[0].present.pair, flavour=s.flavour), path)
    out.note(f"the figure: {path}")
