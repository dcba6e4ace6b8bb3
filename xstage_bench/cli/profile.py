"""``xstage profile``: a new node in one command."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, measuring, run_options, seconds
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.progress import progress_bar
from xstage_bench.cli.run import count_text, pair_status, run_document, run_folder, stopped
from xstage_bench.errors import GATE, UsageError

if TYPE_CHECKING:
    from xstage_bench.device.cuda.rendezvous import Place
    from xstage_bench.measure.plan import Options
    from xstage_bench.profile import Profiled


@click.command("profile", short_help="Measure, fit, validate, draw and report.")
@measuring
@click.option("--out", "folder", type=FILE, metavar="DIR", help="The run folder; default: a new dated one under ./xstage-runs/.")
@click.option("--resume", is_flag=True, help="Finish the interrupted run in --out.")
@click.option("--alone", is_flag=True, help="Profile this node alone, also under srun or mpirun.")
@click.option("--patience", callback=seconds, metavar="SECONDS", help="How long rank 0 waits for the other nodes; default 900.")
@common
def command(out: Output, folder: Path | None, resume: bool, alone: bool, patience: float | None, **chosen: Any) -> int:
    """Profile this node: check it, measure its pairs, fit, validate on held-out schedules, draw the figures, write the report.

    On a machine without any GPU the same is done on a simulated node, and everything written says so. Started on many nodes by
    srun or mpirun, each node profiles itself into the shared folder --out, and rank 0 compares them. Exit 4 when a model misses its own
    hold-out (docs/operate.md).
    """
    from xstage_bench.measure.launch import launched

    place = None if alone else launched()
    if place is not None:
        return _many(out, place, folder, resume, patience, chosen)
    options = run_options(out, **chosen, resumed=folder if resume else None)
    folder = run_folder(folder, resume)
    done = _one(out, options, folder, resume)
    out.result(_document(done), _text(done))
    return _status(out, done)


def _status(out: Output, done: Profiled) -> int:
    """Name the pairs that failed, and the models that missed; the exit status."""
    missed = [f for f in done.findings if f.status == "fail"]
    for finding in missed:
        out.note(f"xstage: {finding.check}: {finding.detail}\n  try: {finding.hint}")
    return pair_status(out, done.run) or (GATE if missed else 0)


def _one(out: Output, options: Options, folder: Path, resume: bool) -> Profiled:
    from xstage_bench.machine.doctor import examine
    from xstage_bench.machine.environment import snapshot
    from xstage_bench.machine.topology import read_topology
    from xstage_bench.profile import profile

    if options.backend.spec == "cuda":
        expect = options.backend.expect_links
        for finding in examine(read_topology(expect_links=expect), snapshot(expect_links=expect)):
            if finding.status != "ok":
                out.note(f"{finding.status}: {finding.check}: {finding.detail}")
    try:
        with progress_bar() as (progress, stage):

            def say(text: str) -> None:
                out.note(text)
                stage(text)

            return profile(options, folder, ["xstage", *sys.argv[1:]], resume=resume, progress=progress, say=say)
    except KeyboardInterrupt:
        stopped(out, folder)
        raise


def _many(out: Output, place: Place, shared: Path | None, resume: bool, patience: float | None, chosen: dict[str, Any]) -> int:
    """Do one rank's part of a launch on many nodes; rank 0 gathers, and answers for all."""
    from xstage_bench.judge.fleet.screen import screen
    from xstage_bench.measure.launch import PATIENCE_S, finished, take_part
    from xstage_bench.show.fleet_page import write_fleet

    if shared is None:
        raise UsageError(f"{place.size} ranks were started and need one folder", "--out FOLDER on a file system that all nodes share")

    def work(folder: Path) -> int:
        if resume and finished(folder):
            out.note(f"{folder} is complete")
            return 0
        options = run_options(out, **chosen, resumed=folder if resume else None)
        if options.backend.simulated and chosen["seed"] is not None:  # else every simulated node would be the same one
            options = replace(options, seed=options.seed + place.rank)
        return _status(out, _one(out, options, folder, resume and folder.exists()))

    spec = str(chosen["spec"])
    gathered = take_part(
        place, shared, work, one_per_host=not spec.startswith(("sim", "replay")), patience_s=patience or PATIENCE_S, say=out.note
    )
    if gathered is None:
        return 0
    fleet = screen(shared)
    files = {k: str(v) for k, v in write_fleet(fleet, shared).items()}
    document = {
        "folder": str(shared), "simulated": fleet.simulated, "ranks": gathered.ranks, "missing": gathered.missing,
        "verdict": fleet.verdict, "outliers": fleet.outliers, "files": files,
    }  # fmt: skip
    rows = [[r.rank, r.host, r.state, r.run, r.reason or ""] for r in gathered.ranks]
    head = table(["rank", "host", "", "run", ""], rows)
    out.result(document, f"{head}\n\n{fleet.runs} nodes: {fleet.verdict}\n" + "\n".join(files.values()))
    return gathered.exit_code


def _document(done: Profiled) -> dict[str, Any]:
    from xstage_bench.model.headline import headline_rows

    return {
        **run_document(done.run),
        "files": {name: str(path) for name, path in done.files.items()},
        "headline": [] if done.model is None else headline_rows(done.model),
        "models": [] if done.validation is None else done.validation.models,
        "model_gate": [asdict(f) for f in done.findings],
    }


def _text(done: Profiled) -> str:
    from xstage_bench.cli.verdict_text import verdict_text

    lines = [count_text(done.run)]
    if done.model is not None:
        lines += [verdict_text(done.model, done.validation)]
    return "\n".join([*lines, *(f"{name}: {done.files[name]}" for name in done.files if name == "report")])
