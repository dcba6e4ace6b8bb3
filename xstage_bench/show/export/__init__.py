"""A model for other programs: a C++ header, JSON, CSV, TOML, or a text file for Prometheus' node_exporter (docs/own-kernel.md).

Every format carries the same stages (`model.stage.Stage`) and says where they come from. The same model gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from xstage_bench.errors import UsageError
from xstage_bench.record.dump import FORMATS as TABLE_FORMATS
from xstage_bench.show.export.cuh import as_cuh
from xstage_bench.show.export.document import ExportedModel
from xstage_bench.show.export.openmetrics import as_openmetrics
from xstage_bench.show.export.tables import as_csv, as_json, as_toml

WRITERS: dict[str, Callable[[ExportedModel], str]] = {
    "cuh": as_cuh, "json": as_json, "csv": as_csv, "openmetrics": as_openmetrics, "toml": as_toml,
}  # fmt: skip


def export_model(exported: ExportedModel, fmt: str) -> str:
    """Return a model as text.

    Parameters
    ----------
    exported : ExportedModel
    fmt : {'cuh', 'json', 'csv', 'openmetrics', 'toml'}

    Raises
    ------
    UsageError
        Another format.
    """
    if fmt not in WRITERS:
        raise UsageError(f"unknown format '{fmt}'", f"use one of: {', '.join(WRITERS)}")
    return WRITERS[fmt](exported)


def table_of(where: Path, fmt: str, table: str | None = None) -> str:
    """Return what `xstage export` writes: a table of a run's record, or ``model``.

    Parameters
    ----------
    where : Path
        A run folder, which has a record and may have a model; or a model.json or a node's name, which is a model.
    fmt : str
    table : str, optional
        As asked for. Default: ``samples`` of a folder, where they have that format, else ``model``.

    Raises
    ------
    UsageError
        A table of the record is asked for, of a file or in a format that it has not.
    """
    if table is None:
        return "model" if not where.is_dir() or fmt not in TABLE_FORMATS else "samples"
    if table != "model" and fmt not in TABLE_FORMATS:
        raise UsageError(f"the table {table} has no format '{fmt}'", f"use one of: {', '.join(TABLE_FORMATS)}, or --table model")
    if table != "model" and where.is_file():
        raise UsageError(f"{where} is a file and has no table {table}", "name the run folder, or --table model")
    return table
