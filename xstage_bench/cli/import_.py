"""``xstage import``: stamps of a user's own kernel become a schedule, tasks, and a run folder that `validate` takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import FILE, common, completing, flavour_names, ordered_pairs
from xstage_bench.cli.output import Output, check_file
from xstage_bench.errors import UsageError


@click.command("import", short_help="Import the stamps of a kernel of your own.")
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--pair", callback=ordered_pairs, default="0:1", show_default=True, metavar="A:B", help="Whose stores they were.")
@click.option("--flavour", default="st.v4", show_default=True, help="How the kernel stores.", **completing(flavour_names))
@click.option("--gpu", default="unknown", metavar="NAME", help="Name of the GPU, for the run folder.")
@click.option(
    "--out", "folder", type=FILE, metavar="DIR", help="Write a run folder: xstage validate DIR --model MODEL judges a model on it."
)
@click.option("--schedule", "schedule_path", type=FILE, metavar="FILE", help="Write the schedule (JSON) for xstage predict.")
@click.option("--tasks", "tasks_path", type=FILE, metavar="FILE", help="Write tasks (JSON): producers that need not do the same.")
@common
def command(
    out: Output, files: tuple[Path, ...], pair: tuple[tuple[int, int], ...], flavour: str, gpu: str, folder: Path | None,
    schedule_path: Path | None, tasks_path: Path | None,
) -> int:  # fmt: skip
    """Read dumps of cuda/xstage_stamps.cuh (raw, npz or CSV), one launch each, and say what the kernel's stores were and cost."""
    from xstage_bench.measure.stamps.layout import read_stamps
    from xstage_bench.measure.stamps.record import read_traces, record_traces
    from xstage_bench.measure.stamps.summary import summary_of, text_of
    from xstage_bench.measure.stamps.tasks import tasks_of
    from xstage_bench.schedule.burst_files import save_bursts
    from xstage_bench.schedule.task_files import save_tasks

    if len(pair) != 1:
        raise UsageError("a kernel stores to one destination here", "give one --pair A:B")
    for path in (schedule_path, tasks_path):
        check_file(path)
    source, destination = pair[0]
    document: dict[str, Any] = {}
    if tasks_path is not None:
        schedules = [tasks_of(read_stamps(path), source, destination, flavour, name=path.name)[0] for path in files]
        save_tasks(tasks_path, schedules)
        document |= {"tasks": str(tasks_path), "task_count": [s.task_count for s in schedules]}
    if folder is not None or schedule_path is not None or tasks_path is None:
        traces = read_traces(files, source, destination, flavour)
        document |= summary_of(traces)
        if schedule_path is not None:
            save_bursts(schedule_path, [traces[0].schedule])
            document["schedule"] = str(schedule_path)
        if folder is not None:
            record_traces(traces, folder, ["xstage", *sys.argv[1:]], [path.name for path in files], gpu)
            document["run"] = str(folder)
    out.result(document, text_of(document))
    return 0
