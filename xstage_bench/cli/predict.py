"""``xstage predict``: what a schedule of the user's own would cost."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output


@click.command("predict", short_help="Predict a schedule file.")
@click.argument("model", type=FILE)
@click.argument("schedule", type=FILE)
@common
def command(out: Output, model: Path, schedule: Path) -> int:
    """Predict the issue time of every burst of SCHEDULE with MODEL (a model.json, or a fitted run folder).

    SCHEDULE is JSON, {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536, "gap_cycles": 2000}]},
    or CSV with one row for each burst: columns bytes, producers and, as needed, gap_cycles, start_ns, warps, start,
    flavour, layout, source, destination.
    """
    raise NotImplementedError
