"""Exports the tables of a run folder for tools that read neither Parquet nor this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.atomic import replacing
from xstage_bench.io.json_file import encode_json
from xstage_bench.record.columns import Column
from xstage_bench.record.manifest import MANIFEST_NAME, SCHEMA_VERSION
from xstage_bench.record.parts import COLUMNS
from xstage_bench.record.reader import Run

FORMATS = ("json", "csv")


def export_run(run: Run, fmt: str, out: Path | str, *, table: str = "samples") -> int:
    """Write one table of `run`, part by part, so that memory stays bounded.

    Parameters
    ----------
    run : Run
    fmt : {'json', 'csv'}
        ``json``: one strict object ``{"schema_version", "table", "manifest", "rows": [{column: value, ...}, ...]}``, missing values
        null. ``csv``: a header and the rows, missing values empty, UTF-8, lines ended by a line feed.
    out : Path or str
        A file, written whole or not at all, or ``"-"`` for stdout.
    table : {'samples', 'producers', 'traces'}

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    UsageError
        An unknown format or table, or `out` is a folder or one of the run's own files.
    DataError
        A part of the run cannot be read, or the table has no row.
    """
    if fmt not in FORMATS:
        raise UsageError(f"unknown format '{fmt}'", f"use one of: {', '.join(FORMATS)}")
    if table not in COLUMNS:
        raise UsageError(f"a run has no table '{table}'", f"use one of: {', '.join(COLUMNS)}")
    write = _write_json if fmt == "json" else _write_csv
    if str(out) == "-":
        return _to_stdout(run, table, write)
    path = Path(out)
    refuse_own_files(run.folder, path)
    with replacing(path) as file:
        return _some(write(run, table, file), run, table)


def _write_json(run: Run, table: str, file: BinaryIO) -> int:
    encoder = msgspec.json.Encoder()
    manifest = encode_json(run.manifest).strip()
    head = b'{"schema_version": %d, "table": "%s", "manifest": ' % (SCHEMA_VERSION, table.encode())
    file.write(head + manifest + b',\n"rows": [')
    count = 0
    for piece in run.arrow_parts(table):
        names = piece.column_names
        for row in zip(*(column.to_pylist() for column in piece.columns), strict=True):
            file.write((b",\n" if count else b"\n") + encoder.encode(dict(zip(names, row, strict=True))))
            count += 1
    file.write(b"\n]}\n")
    return count


def _write_csv(run: Run, table: str, file: BinaryIO) -> int:
    from pyarrow import csv

    file.write(_header(COLUMNS[table]))
    count = 0
    for piece in run.arrow_parts(table):
        csv.write_csv(piece, file, csv.WriteOptions(include_header=False))
        count += piece.num_rows
    return count


def _header(columns: tuple[Column, ...]) -> bytes:
    return ",".join(column.name for column in columns).encode() + b"\n"


def _some(rows: int, run: Run, table: str) -> int:
    if not rows:
        raise DataError(f"{run.folder} holds no row of the table {table}", f"use another of: {', '.join(COLUMNS)}; or xstage run")
    return rows


def _to_stdout(run: Run, table: str, write: Any) -> int:
    try:
        count: int = write(run, table, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return _some(count, run, table)
    except BrokenPipeError:
        # The reader has seen enough (head, less): no error. Python would complain again at exit unless stdout goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def refuse_own_files(run: Path, path: Path) -> None:
    """Raise UsageError when an export would write over the record of the run folder `run`, or over its model."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", f"name a file, for example {path / 'samples.csv'}")
    folder, target = run.resolve(), path.resolve()
    own = (folder / MANIFEST_NAME, folder / "traces.parquet", folder / "model.json")
    if target in own or target.parent in (folder / "samples", folder / "producers"):
        raise UsageError(f"{path} belongs to the run itself, which is never overwritten", "name another file")
