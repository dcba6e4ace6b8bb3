"""Parquet files of a run folder: numbered parts, encoded in memory, written whole, checked when read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from xstage_bench.errors import DataError, out_of_memory
from xstage_bench.io.atomic import write_bytes
from xstage_bench.record.columns import PRODUCERS, SAMPLES, TRACES, Column, arrow_schema
from xstage_bench.record.rows import Columns

SAMPLES_FOLDER = "samples"
PRODUCERS_FOLDER = "producers"
TRACES_NAME = "traces.parquet"
COLUMNS: dict[str, tuple[Column, ...]] = {"samples": SAMPLES, "producers": PRODUCERS, "traces": TRACES}

#: Whole numbers that grow from row to row: differences are small where the numbers are not.
_COUNTERS = ("order", "start_ns", "store")


def part_name(number: int) -> str:
    """Return the file name of part `number`."""
    return f"part-{number:04d}.parquet"


def part_numbers(folder: Path) -> list[int]:
    """Return the numbers of the parts in `folder`, ascending; files of other names are none of ours."""
    if not folder.is_dir():
        return []
    found = [path.stem.removeprefix("part-") for path in folder.glob("part-*.parquet")]
    return sorted(int(number) for number in found if number.isdigit())


def to_table(columns: Columns, schema: tuple[Column, ...]) -> Any:
    """Build the pyarrow Table of `columns`; NaN and None become null."""
    import pyarrow as pa

    arrow = arrow_schema(schema)
    arrays = []
    for column in schema:
        values = columns[column.name]
        if column.type == "string":
            arrays.append(pa.array(values, pa.string(), from_pandas=True).dictionary_encode())
        else:
            arrays.append(pa.array(values, from_pandas=True).cast(arrow.field(column.name).type))
    return pa.Table.from_arrays(arrays, schema=arrow)


def part_digest(data: bytes | memoryview) -> str:
    """Return what a manifest keeps of a part: 16 hex digits that say whether it was changed."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return the digest of a part as it is now; None where it cannot be read."""
    try:
        return part_digest(path.read_bytes())
    except OSError:
        return None


def write_table(path: Path, table: Any, level: int = 6) -> str:
    """Write `table` as Parquet in one step and return its digest; errors as `atomic.write_bytes`.

    `level`: of zstd; 19 is a tenth smaller and ten times as slow.

    Encoded in memory first: what the disk then refuses leaves no half file, and the rows can be written again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    counters = [f.name for f in table.schema if f.name in _COUNTERS and pa.types.is_integer(f.type)]
    encodings = dict.fromkeys(floats, "BYTE_STREAM_SPLIT") | dict.fromkeys(counters, "DELTA_BINARY_PACKED")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=level,
        write_statistics=False,
        write_page_checksum=True,
        use_dictionary=[name for name in table.column_names if name not in encodings],
        column_encoding=encodings,
    )
    data = memoryview(sink.getvalue())
    write_bytes(path, data)
    return part_digest(data)


def read_table(path: Path, schema: tuple[Column, ...], only: tuple[str, ...] | None = None) -> Any:
    """Read one Parquet file of a run folder as a pyarrow Table with plain strings.

    Parameters
    ----------
    path : Path
    schema : tuple of Column
        Columns that it must have; others, of a newer version, are left out.
    only : tuple of str, optional
        Read these alone.

    Raises
    ------
    DataError
        Not Parquet, cut short, a column missing or of another type, or null where none may stand.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = tuple(c for c in schema if only is None or c.name in only)
    try:
        # Arrow opens only paths that are UTF-8; Python opens any.
        with path.open("rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            names = file.schema_arrow.names  # asked once: each time takes as long as reading a column
            missing = [c.name for c in schema if c.name not in names and not c.later]
            if missing:
                raise DataError(
                    f"{path} is not a part of a run: column '{missing[0]}' is missing", "only files made by xstage run belong here"
                )
            present = [c.name for c in wanted if c.name in names]
            table = file.read(columns=present).select(present)
        return _conform(path, table, wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        why = "is empty" if path.is_file() and path.stat().st_size == 0 else f"cannot be read as Parquet ({_first_line(error)})"
        raise DataError(f"{path} {why}", "take it from a copy of the run") from error


def _conform(path: Path, table: Any, wanted: tuple[Column, ...]) -> Any:
    import pyarrow as pa

    arrays = []
    held = set(table.column_names)
    target = arrow_schema(wanted, dictionary=False)
    for column in wanted:
        field = target.field(column.name)
        if column.name not in held:
            arrays.append(pa.repeat(pa.scalar(column.missing, field.type), table.num_rows))
            continue
        values = table.column(column.name)
        try:
            values = values.cast(field.type)
        except pa.ArrowException as error:
            raise DataError(
                f"{path}: column '{column.name}' is {values.type}, should be {column.type}", "this file is not of this version"
            ) from error
        if values.null_count and not column.null:
            raise DataError(
                f"{path}: column '{column.name}' has {values.null_count} nulls, may have none", "this file is damaged: take it from a copy"
            )
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=target)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
