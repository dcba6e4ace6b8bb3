"""``xstage profile``: a new node in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.fit import numbers
from xstage_bench.cli.options import FILE, common, measuring, run_options
from xstage_bench.cli.output import Output
from xstage_bench.cli.progress import progress_bar
from xstage_bench.cli.run import count_text, pair_status, run_document, run_folder, stopped
from xstage_bench.cli.validate import scores

if TYPE_CHECKING:
    from xstage_bench.pipeline import Profiled


@click.command("profile", short_help="Measure, fit, validate, draw and report.")
@measuring
@click.option("--out", "folder", type=FILE, metavar="DIR", help="The run folder; default: a new dated one under ./xstage-runs/.")
@click.option("--resume", is_flag=True, help="Finish the interrupted run in --out.")
@common
def command(out: Output, folder: Path | None, resume: bool, **chosen: Any) -> int:
    """Profile this node: check it, measure its pairs, fit, validate on held-out schedules, draw the figures, write the report.

    On a machine without any GPU the same is done on a simulated node, and everything written says so.
    """
    from xstage_bench.doctor import examine
    from xstage_bench.environment import snapshot
    from xstage_bench.pipeline import profile
    from xstage_bench.topology import read_topology

    options = run_options(out, **chosen)
    folder = run_folder(folder, resume)
    if options.backend.spec == "cuda":
        for finding in examine(read_topology(), snapshot()):
            if finding.status != "ok":
                out.note(f"{finding.status}: {finding.check}: {finding.detail}")
    try:
        with progress_bar() as progress:
            done = profile(options, folder, ["xstage", *sys.argv[1:]], resume=resume, progress=progress, say=out.note)
    except KeyboardInterrupt:
        stopped(out, folder)
        raise
    out.result(_document(done), _text(done))
    return pair_status(out, done.run)


def _document(done: Profiled) -> dict[str, Any]:
    from xstage_bench.pipeline import headline

    return {
        **run_document(done.run),
        "files": {name: str(path) for name, path in done.files.items()},
        "headline": [] if done.model is None else headline(done.model),
        "models": [] if done.validation is None else done.validation.models,
    }


def _text(done: Profiled) -> str:
    from xstage_bench.pipeline import headline

    lines = [count_text(done.run)]
    if done.model is not None:
        lines += ["", numbers(headline(done.model))]
    if done.validation is not None:
        lines += ["", scores(done.validation)]
    lines += ["", *(f"{name}: {path}" for name, path in done.files.items())]
    return "\n".join(lines)
