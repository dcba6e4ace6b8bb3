"""``xstage fleet``: the runs of many nodes against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import ERROR, GATE

if TYPE_CHECKING:
    from xstage_bench.judge.fleet.screen import Fleet

_SHOWN = 20


@click.command("fleet", short_help="Screen the runs of many nodes.")
@click.argument("folder", type=FILE)
@click.option("--out", "out_folder", type=FILE, metavar="DIR", help="Where fleet.html and fleet.json go; default: into FOLDER.")
@click.option("--strict", is_flag=True, help="Exit 4 when anything stands out for the worse, failed, or was not judged.")
@common
def command(out: Output, folder: Path, out_folder: Path | None, strict: bool) -> int:
    """Read every run below FOLDER, rank nodes and links, and name what stands out of the population of its kind.

    Exit 1 when a run could not be read; the others are judged all the same.
    """
    from xstage_bench.judge.fleet.screen import screen
    from xstage_bench.show.fleet_page import write_fleet

    with at_work(f"reading the runs in {folder}"):
        fleet = screen(folder)
    files = write_fleet(fleet, folder if out_folder is None else out_folder)
    shown = ("schema_version", "folder", "simulated", "runs", "verdict", "populations", "outliers", "nodes", "unreadable")
    document = {**{name: getattr(fleet, name) for name in shown}, "files": {k: str(v) for k, v in files.items()}}
    out.result(document, _text(fleet) + "\n\n" + "\n".join(map(str, files.values())))
    for name, reason in fleet.unreadable.items():
        out.note(f"xstage: {name}: {reason}")
    if fleet.unreadable:
        return ERROR
    bad = any(d.worse for d in fleet.outliers) or any(n.failed_pairs or n.impossible_rows or n.changed for n in fleet.nodes)
    bad = bad or any(p.not_judged for p in fleet.populations)
    return GATE if strict and bad else 0


def _text(fleet: Fleet) -> str:
    lines = [f"{fleet.runs} runs" + (", SIMULATED" if fleet.simulated else "") + f": {fleet.verdict}"]
    for p in fleet.populations:
        lines.append(f"  {p.name}: {p.nodes} nodes, {p.links} links")
    rows = [[d.node, d.where, d.metric, f"{100 * d.change:+.1f} %", abs(d.score)] for d in fleet.outliers if d.worse]
    if rows:
        lines += ["", table(["node", "where", "number", "change", "deviations"], rows[:_SHOWN])]
    if len(rows) > _SHOWN:
        lines.append(f"... and {len(rows) - _SHOWN} more in fleet.html")
    return "\n".join(lines)
