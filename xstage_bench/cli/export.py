"""``xstage export``: the model, or the samples of a run folder, for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, MODEL, common
from xstage_bench.cli.output import STDOUT, Output, check_file
from xstage_bench.errors import UsageError

FORMATS = ("json", "csv", "cuh", "openmetrics", "toml")
TABLES = ("samples", "producers", "traces", "model")


def _print_include_dir(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from xstage_bench.io.assets import include_dir

        Output().raw(f"{include_dir()}\n".encode())
        ctx.exit()


@click.command("export", short_help="Write the model or the samples for other programs.")
@click.argument("where", type=MODEL, metavar="WHERE")
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="json", show_default=True)
@click.option("--table", type=click.Choice(TABLES), help="Default: model for a file and for cuh, openmetrics, toml; else samples.")
@click.option("--producers", type=click.IntRange(min=1), metavar="K", help="Model: add the stage of K SMs that store ...")
@click.option("--warps", type=click.IntRange(1, 16), metavar="W", help="... with W warps each, interpolated where it was not fitted.")
@click.option("--out", "path", type=FILE, default=STDOUT, metavar="FILE", help="Default: -, stdout.")
@click.option(
    "--include-dir", is_flag=True, is_eager=True, expose_value=False, callback=_print_include_dir, help="Print -I for our headers."
)
@common
def command(out: Output, where: Path, fmt: str, table: str | None, producers: int | None, warps: int | None, path: Path) -> int:
    """Write the model of WHERE (a model.json, a fitted run folder, or a node's name), or a table of the run folder WHERE.

    A model as cuh is a C++ header for kernels and host programs, as openmetrics a text file for node_exporter; docs/own-kernel.md has all.
    """
    from xstage_bench.show.export import table_of

    if out.json and path == STDOUT and fmt != "json":
        raise UsageError(f"--json and {fmt} on stdout exclude each other", "--format json, or --out FILE")
    check_file(path)
    table = table_of(where, fmt, table)
    if (producers is None) != (warps is None) or (producers is not None and table != "model"):
        raise UsageError("--producers and --warps together say whose stage is added to a model", "--producers 100 --warps 4")
    if table == "model":
        _model(out, where, fmt, path, None if producers is None or warps is None else (producers, warps))
    else:
        _record(out, where, fmt, table, path)
    if path != STDOUT:
        out.result({"run": str(where), "table": table, "format": fmt, "file": str(path)}, str(path))
    return 0


def _model(out: Output, where: Path, fmt: str, path: Path, at: tuple[int, int] | None) -> None:
    from xstage_bench.io.atomic import write_bytes
    from xstage_bench.record.dump import refuse_own_files
    from xstage_bench.show.export import export_model
    from xstage_bench.show.export.document import exported_model

    if path != STDOUT:
        refuse_own_files(where if where.is_dir() else where.parent, path)
    exported = exported_model(where, at)
    if exported.provenance.simulated:
        out.note(f"SIMULATED: the model of {where} was fitted on backend {exported.provenance.backend}")
    text = export_model(exported, fmt).encode(errors="backslashreplace")
    if path == STDOUT:
        out.raw(text)
    else:
        write_bytes(path, text)


def _record(out: Output, where: Path, fmt: str, table: str, path: Path) -> None:
    from xstage_bench.record.dump import export_run
    from xstage_bench.record.reader import check_tables, load_run

    loaded = load_run(where)
    out.note_incomplete(loaded)
    check_tables(loaded)
    export_run(loaded, fmt, "-" if path == STDOUT else path, table=table)
