"""``xstage run``: measure, and write a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, measuring, own_schedules, run_options
from xstage_bench.cli.output import STDOUT, Output
from xstage_bench.cli.progress import progress_bar
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.record.reader import Run

ERROR = 1


@click.command("run", short_help="Measure into a run folder.")
@measuring
@own_schedules
@click.option("--out", "folder", type=FILE, metavar="DIR", help="The run folder; default: a new dated one under ./xstage-runs/.")
@click.option("--resume", is_flag=True, help="Finish the interrupted run in --out.")
@common
def command(out: Output, folder: Path | None, resume: bool, **chosen: Any) -> int:
    """Measure the pairs of this node and write a run folder.

    A folder is never overwritten. On Ctrl-C or SIGTERM what was measured is kept, and --resume finishes it.
    """
    from xstage_bench.runner import record_run

    options = run_options(out, **chosen)
    folder = run_folder(folder, resume)
    out.note(f"measuring into {folder}")
    try:
        with progress_bar() as progress:
            run = record_run(options, folder, ["xstage", *sys.argv[1:]], resume=resume, progress=progress)
    except KeyboardInterrupt:
        stopped(out, folder)
        raise
    out.result(run_document(run), f"{run.folder}\n{count_text(run)}")
    return pair_status(out, run)


def run_folder(folder: Path | None, resume: bool) -> Path:
    """Return the folder to write: the one asked for, or a new dated one."""
    from xstage_bench.runner import new_run_folder

    if folder == STDOUT:
        raise UsageError("a run is a folder and cannot be written to stdout", "--out DIR; xstage export DIR --out - prints its samples")
    if resume and folder is None:
        raise UsageError("--resume does not say which run", "--resume --out DIR")
    return folder if resume and folder is not None else new_run_folder(folder)


def stopped(out: Output, folder: Path) -> None:
    """Say where the part that was measured lies."""
    if (folder / "manifest.json").exists():
        out.note(f"interrupted; what was measured is kept in {folder}\n  try: the same command with --resume --out {folder}")


def run_document(run: Run) -> dict[str, Any]:
    """Return what ``--json`` says about a run."""
    m = run.manifest
    pairs = [f"{a}>{b}" for a, b in m.node.pairs]
    return {
        "run": str(run.folder),
        "backend": m.backend,
        "simulated": m.simulated,
        "complete": m.complete,
        "pairs": pairs,
        "failed_pairs": m.failed_pairs,
        "counts": m.counts,
        "wall_s": m.wall_s,
    }


def count_text(run: Run) -> str:
    """Return one line on what was measured."""
    m, counts = run.manifest, run.manifest.counts
    kind = f"backend {m.backend}" + (", SIMULATED" if m.simulated else "")
    seconds = "" if m.wall_s is None else f" in {m.wall_s:.1f} s"
    return f"{kind}: {counts.get('schedules', 0)} schedules, {counts.get('executions', 0)} executions{seconds}"


def pair_status(out: Output, run: Run) -> int:
    """Name the pairs that failed on stderr; the exit status."""
    for pair, reason in run.manifest.failed_pairs.items():
        out.note(f"xstage: {reason}" if f"pair {pair}" in reason else f"xstage: pair {pair}: {reason}")
    return ERROR if run.manifest.failed_pairs else 0
