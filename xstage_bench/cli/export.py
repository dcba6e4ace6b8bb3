"""``xstage export``: the samples of a run folder for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import STDOUT, Output, check_file
from xstage_bench.errors import UsageError

FORMATS = ("json", "csv")
TABLES = ("samples", "producers", "traces")


@click.command("export", short_help="Write samples as JSON or CSV.")
@click.argument("run", type=FILE)
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="json", show_default=True)
@click.option("--table", type=click.Choice(TABLES), default=TABLES[0], show_default=True)
@click.option("--out", "path", type=FILE, default=STDOUT, metavar="FILE", help="Default: -, stdout.")
@common
def command(out: Output, run: Path, fmt: str, table: str, path: Path) -> int:
    """Write the samples, or another table, of RUN as one strict JSON object or as CSV."""
    from xstage_bench.pipeline import check_tables
    from xstage_bench.record.export import export_run
    from xstage_bench.record.reader import load_run

    if out.json and path == STDOUT and fmt != "json":
        raise UsageError("--json and CSV on stdout exclude each other", "--format json, or --out FILE")
    check_file(path)
    loaded = load_run(run)
    check_tables(loaded)
    export_run(loaded, fmt, "-" if path == STDOUT else path, table=table)
    if path != STDOUT:
        out.result({"run": str(run), "table": table, "format": fmt, "file": str(path)}, str(path))
    return 0
