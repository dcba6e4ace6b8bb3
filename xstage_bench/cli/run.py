"""``xstage run``: measure, and write a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, measuring, own_schedules, run_options
from xstage_bench.cli.output import STDOUT, Output, counted, table
from xstage_bench.cli.progress import progress_bar
from xstage_bench.cli.survey import name_failures
from xstage_bench.errors import ERROR, UsageError

if TYPE_CHECKING:
    from xstage_bench.device.backend import Peer
    from xstage_bench.record.reader import Run
    from xstage_bench.schedule.device import Compute


_OF_PROBES = ("pairs", "only", "budget", "until", "warmup", "quick", "probe_path", "layout_path")


@click.command("run", short_help="Measure into a run folder.")
@measuring
@own_schedules
@click.option("--out", "folder", type=FILE, metavar="DIR", help="The run folder; default: a new dated one under ./xstage-runs/.")
@click.option("--resume", is_flag=True, help="Finish the interrupted run in --out.")
@click.option("--compute", type=click.Choice(["mma", "spin"]), help="Replay the schedules as tasks: tensor-core work, or as long a wait.")
@click.option("--model", type=FILE, metavar="MODEL", help="Of a replay: a model.json or fitted run, whose predictions stand beside.")
@common
def command(out: Output, folder: Path | None, resume: bool, compute: Compute | None, model: Path | None, **chosen: Any) -> int:
    """Measure the pairs of this node and write a run folder.

    A folder is never overwritten. On Ctrl-C or SIGTERM what was measured is kept, and --resume finishes it.

    With --compute, or a schedule file of tasks, the schedules are replayed: tensor-core work and stores with the waits between them, each
    schedule beside itself without stores; the folder then holds replay.json (docs/predict.md).
    """
    from xstage_bench.measure.bursts import record_run

    if _is_replay(compute, chosen["schedule"]):
        return _replay(out, folder, resume, compute or "mma", model, **chosen)
    if model is not None:
        raise UsageError("--model belongs to a replay", "--schedule S --compute mma")

    if _is_scenes(chosen["schedule"]):
        return _scenes(out, folder, resume, **chosen)
    options = run_options(out, **chosen, resumed=folder if resume else None)
    folder = run_folder(folder, resume)
    out.note(f"measuring into {folder}")
    try:
        with progress_bar() as (progress, _):
            run = record_run(options, folder, ["xstage", *sys.argv[1:]], resume=resume, progress=progress)
    except KeyboardInterrupt:
        stopped(out, folder)
        raise
    out.result(run_document(run), f"{run.folder}\n{count_text(run)}")
    return pair_status(out, run)


def _is_replay(compute: Compute | None, schedule: tuple[Path, ...]) -> bool:
    if compute is not None and not schedule:
        raise UsageError("--compute does not say what to replay", "--schedule S --compute mma")
    from xstage_bench.schedule.task_files import is_task_file

    return compute is not None or any(is_task_file(path) for path in schedule)


def _is_scenes(schedule: tuple[Path, ...]) -> bool:
    from xstage_bench.schedule.scene_files import is_scene_file

    kinds = {is_scene_file(path) for path in schedule}
    if len(kinds) > 1:
        raise UsageError("scenes and single schedules do not go into one run", "measure them one after the other")
    return True in kinds


def _scenes(out: Output, folder: Path | None, resume: bool, *, schedule: tuple[Path, ...], spec: str, peer: Peer, seed: int | None,
            repetitions: int | None, processes: int | None, **probing: Any) -> int:  # fmt: skip
    from xstage_bench.cli.measure_scenes import scenes_text
    from xstage_bench.cli.survey import measuring_into, show
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.measure.scenes import measure_scenes
    from xstage_bench.schedule.scene_files import expanded, load_scenes

    unused = [name for name in (*_OF_PROBES, "flavour_path") if probing[name]]
    if resume or unused:
        raise UsageError(f"--{'resume' if resume else unused[0].replace('_', '-')} and scenes: they have no probes", "leave it out")
    entries = [entry for path in schedule for entry in load_scenes(path)]
    choice = resolve_backend(spec, peer, expect_links=probing["expect_links"])
    out.note_backend(choice)
    folder = run_folder(folder, False)
    if folder.exists():
        raise UsageError(f"{folder} exists, and a run is never overwritten", "name another folder with --out")
    folder.mkdir(parents=True)
    path = folder / "scenes.json"
    often = {k: v for k, v in (("repetitions", repetitions), ("processes", processes)) if v is not None}
    with measuring_into(Output(False), path) as kept:
        document = measure_scenes(choice, lambda node: [expanded(entry, node) for entry in entries], seed=seed or 0, **often, **kept)
    return show(out, path, document, scenes_text(document))


def _replay(
    out: Output, folder: Path | None, resume: bool, compute: Compute, model: Path | None, *, spec: str, peer: Peer,
    schedule: tuple[Path, ...], flavour_path: tuple[Path, ...], seed: int | None, repetitions: int | None, processes: int | None,
    **probing: Any,
) -> int:  # fmt: skip
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.measure.replay_run import load_any, record_replay
    from xstage_bench.model.run_fit import find_model
    from xstage_bench.schedule.flavour import load_flavour, register

    unused = [name for name in _OF_PROBES if probing[name]]
    if resume or unused:
        raise UsageError(f"--{'resume' if resume else unused[0].replace('_', '-')} and a replay: it has no probes", "leave it out")
    for path in flavour_path:
        register(load_flavour(path))
    loaded = None if model is None else find_model(model)
    schedules = load_any(schedule)
    choice = resolve_backend(spec, peer, expect_links=probing["expect_links"])
    out.note_backend(choice)
    folder = run_folder(folder, False)
    out.note(f"replaying {counted(len(schedules), 'schedule')} into {folder}")
    with progress_bar() as (progress, _):
        document = record_replay(
            choice, schedules, folder, ["xstage", *sys.argv[1:]], compute=compute, repetitions=repetitions or 9, processes=processes or 3,
            seed=seed or 0, model=loaded, progress=progress,
        )  # fmt: skip
    status = name_failures(out, document)
    out.result({"run": str(folder), **document}, f"{folder}\n{_replay_text(document)}")
    return ERROR if any(set(row["left_out"]) - {"warmup"} for row in document["rows"]) else status


def _replay_text(document: dict[str, Any]) -> str:
    """Return one line per schedule."""
    names = ("total_us", "no_store_us", "slowdown", "sm_clock_mhz")
    predicted = ("predicted_us", "predicted_no_store_us") if "prediction" in document else ()
    rows = [
        [row["schedule"], row["tasks"], *(row[name]["value"] for name in names), *(row.get(name) for name in predicted)]
        for row in document["rows"]
    ]
    kind = f"backend {document['backend']}" + (", SIMULATED" if document["simulated"] else "")
    head = [
        "schedule", "tasks", "total us", "without stores us", "slowdown", "SM clock MHz",
        *(["predicted us", "predicted without stores us"] if predicted else []),
    ]  # fmt: skip
    return f"{kind}, compute by {document['compute']}\n\n{table(head, rows)}"


def run_folder(folder: Path | None, resume: bool) -> Path:
    """Return the folder to write: the one asked for, or a new dated one."""
    from xstage_bench.measure.bursts import new_run_folder

    if folder == STDOUT:
        raise UsageError("a run is a folder and cannot be written to stdout", "--out DIR; xstage export DIR --out - prints its samples")
    if resume and folder is None:
        raise UsageError("--resume does not say which run", "--resume --out DIR")
    chosen = folder if resume and folder is not None else new_run_folder(folder)
    if (ctx := click.get_current_context(silent=True)) is not None:
        ctx.params["folder"] = chosen  # what comes next is said of it
    return chosen


def stopped(out: Output, folder: Path) -> None:
    """Say where the part that was measured lies."""
    if (folder / "manifest.json").exists():
        out.note(f"interrupted; what was measured is kept in {folder}\n  try: the same command with --resume --out {folder}")


def run_document(run: Run) -> dict[str, Any]:
    """Return what ``--json`` says about a run."""
    m = run.manifest
    pairs = [f"{a}>{b}" for a, b in m.node.pairs]
    return {
        "run": str(run.folder), "backend": m.backend, "simulated": m.simulated, "complete": m.complete, "seed": m.seed, "pairs": pairs,
        "failed_pairs": m.failed_pairs, "counts": m.counts, "wall_s": m.wall_s,
    }  # fmt: skip


def count_text(run: Run) -> str:
    """Return one line on what was measured."""
    m, counts = run.manifest, run.manifest.counts
    kind = f"backend {m.backend}" + (", SIMULATED" if m.simulated else "")
    seconds = "" if m.wall_s is None else f" in {m.wall_s:.1f} s"
    done = f"{counted(counts.get('schedules', 0), 'schedule')}, {counted(counts.get('executions', 0), 'execution')}"
    return f"{kind}: {done}{seconds}, seed {m.seed}"


def pair_status(out: Output, run: Run) -> int:
    """Name the pairs that failed on stderr; the exit status."""
    for pair, reason in run.manifest.failed_pairs.items():
        out.note_pair(pair, reason)
    return ERROR if run.manifest.failed_pairs else 0
