"""``xstage probes``: what can be asked for with ``--only``."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output, table


@click.command("probes", short_help="List the probes.")
@click.option("--probe-path", type=FILE, multiple=True, metavar="DIR", help="A folder with probes of your own; repeatable.")
@common
def command(out: Output, probe_path: tuple[Path, ...]) -> int:
    """List the probes: each is one sweep over schedules. A held-out probe is never seen by a fit."""
    from xstage_bench.measure.probe import load_probes

    probes = load_probes(probe_path).values()
    rows = [[p.name, "held out" if p.holdout else "fitted", p.title] for p in probes]
    document = {"probes": [{"name": p.name, "title": p.title, "holdout": p.holdout, "keep_producers": p.keep_producers} for p in probes]}
    out.result(document, table(["probe", "use", "what it measures"], rows))
    return 0
