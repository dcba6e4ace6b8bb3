"""CSV schedule files: one row per burst, rows of one schedule share its id. A million rows take seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError, XStageError
from xstage_bench.io.csv_rows import (
    RowGroup,
    grouped_rows,
    is_hole,
    places_of_columns,
    producers_cell,
    rows_of,
    shown,
    truth_cell,
    whole,
    whole_cell,
)
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.completion import DEFAULT as DEFAULT_COMPLETION

#: Columns of a whole schedule: the same in all its rows, or empty after its first.
HEAD_COLUMNS = ("source", "destination", "producers", "warps", "flavour", "layout", "start", "completion", "warps_meet")
BURST_COLUMNS = ("bytes", "gap_cycles", "start_ns")
COLUMNS = ("schedule", *HEAD_COLUMNS, *BURST_COLUMNS)
REQUIRED = ("producers", "bytes")

#: Characters from which a file is worth reading by columns.
_LONG = 1 << 16

_DEFAULTS = {
    **{"source": "0", "destination": "1", "warps": "1", "flavour": "st.v4", "layout": "contiguous"},
    **{"start": "isolated", "completion": DEFAULT_COMPLETION, "warps_meet": "true"},
}


def schedules_from_csv(text: str) -> list[Schedule]:
    """Read schedules from CSV text with a header.

    Parameters
    ----------
    text : str
        Without byte-order mark; any line ends.

    Returns
    -------
    list of Schedule
        In order of the first row of each; one schedule when there is no column ``schedule``.

    Raises
    ------
    DataError
        A column is missing, unknown or there twice, a cell is no value of its column, rows of one schedule disagree, or a
        schedule cannot be; the message names line, column and value.
    """
    return _by_columns(text) or [schedule for _, _, schedule in labelled_schedules(text, {})]


def labelled_schedules(text: str, labels: Mapping[str, str]) -> list[tuple[int, dict[str, str], Schedule]]:
    """Read schedules whose rows have more columns, each with its first line and what these columns say; `labels` are their defaults."""
    groups = grouped_rows(text, "schedule", (*HEAD_COLUMNS, *labels), {**_DEFAULTS, **labels}, BURST_COLUMNS, REQUIRED)
    return [(group.lines[0], {name: group.head[name] for name in labels}, _schedule(group)) for group in groups]


def _by_columns(text: str) -> list[Schedule] | None:
    """Read a long CSV of digits and names by columns, several times as fast; None where a cell needs a closer look, or is wrong."""
    if len(text) < _LONG or '"' in text or "#" in text:
        return None
    line, header = next(rows_of(text), (1, []))
    if text[: text.find("\n")].rstrip("\r").split(",") != header:  # other marks, or something before the header
        return None
    at = places_of_columns(header, COLUMNS, REQUIRED, line)
    import pyarrow as pa
    from pyarrow import compute, csv

    try:
        table = csv.read_csv(
            pa.py_buffer(text.encode()),
            read_options=csv.ReadOptions(column_names=[str(i) for i in range(len(header))], skip_rows=1, use_threads=False),
            parse_options=csv.ParseOptions(quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types={str(i): pa.string() for i in range(len(header))}, include_columns=[str(i) for i in at.values()]
            ),
        )
    except pa.ArrowInvalid:
        return None
    zeros = np.zeros(table.num_rows, dtype=np.int64)
    numbers = [_digits(table.column(str(at[name])), name) if name in at else zeros for name in BURST_COLUMNS]
    owner, head = zeros, zeros
    if "schedule" in at:
        ids = compute.utf8_trim_whitespace(table.column(str(at["schedule"]))).combine_chunks().dictionary_encode()
        owner = ids.indices.to_numpy().astype(np.int64)
        if "" in ids.dictionary.to_pylist():
            return None
    if table.num_rows == 0 or any(column is None for column in numbers):
        return None
    cells: list[tuple[str, ...]] = [()]
    for name in HEAD_COLUMNS:
        if name not in at:
            cells = [(*cell, _DEFAULTS.get(name, "")) for cell in cells]
            continue
        found = table.column(str(at[name])).combine_chunks().dictionary_encode()
        words = ["" if is_hole(word) else word.strip() for word in found.dictionary.to_pylist()]
        kinds, head = np.unique(head * len(words) + found.indices.to_numpy(), return_inverse=True)
        cells = [(*cells[kind // len(words)], words[kind % len(words)] or _DEFAULTS.get(name, "")) for kind in kinds.tolist()]
    order = np.argsort(owner, kind="stable")
    first = np.flatnonzero(np.diff(owner[order], prepend=-1))
    if (head[order] != np.repeat(head[order][first], np.diff(first, append=owner.size))).any():
        return None
    bursts = map(Burst, *(column[order].tolist() for column in numbers if column is not None))
    try:
        heads = [_head(cell) for cell in cells]
        return [
            Schedule(tuple(islice(bursts, count)), *heads[kind])
            for kind, count in zip(head[order][first].tolist(), np.diff(first, append=owner.size).tolist(), strict=True)
        ]
    except XStageError:
        return None  # read again row by row, which knows the line


def _digits(column: Any, name: str) -> NDArray[np.int64] | None:
    """Return a column of whole numbers, also as pandas writes them (``4096.0``, empty for 0); None where a cell is something else."""
    from pyarrow import compute

    for pattern, instead in ((r"\.0+$", ""), (r"^$", "" if name == "bytes" else "0"), (None, "")):
        if compute.all(compute.match_substring_regex(column, "^[0-9]{1,15}$")).as_py():
            return cast("NDArray[np.int64]", column.cast("int64").to_numpy())
        if pattern is not None:
            column = compute.replace_substring_regex(column, pattern, instead)
    return None


def _burst_number(cell: str, column: str, line: int) -> int:
    value = whole(cell)
    if value is None:
        if is_hole(cell) and column != "bytes":
            return 0
        raise DataError(
            f"line {line}: column '{column}' is {shown(cell)}, not a whole number", f"write {column} in digits, for example 4096"
        )
    return value


def _schedule(group: RowGroup) -> Schedule:
    try:
        head = _head(tuple(group.head[name] for name in HEAD_COLUMNS))
    except DataError as error:
        raise DataError(f"line {group.lines[0]}: {error.message}", error.hint) from error
    bursts = [
        Burst(*(_burst_number(cell, column, line) for cell, column in zip(cells, BURST_COLUMNS, strict=True)))
        for line, cells in zip(group.lines, group.rows, strict=True)
    ]
    group.rows.clear()  # a million rows need not be there twice

    def build(bursts: tuple[Burst, ...]) -> Schedule:
        return Schedule(bursts, *head)

    try:
        return build(tuple(bursts))
    except XStageError as error:
        culprit = _first_bad(build, bursts)
        raise DataError(f"line {group.lines[culprit]}: {error.message}", error.hint) from error


@lru_cache(maxsize=4096)
def _head(cells: tuple[str, ...]) -> tuple[int | tuple[int, ...], int, int, int, StartRule, str, str, str, bool]:
    """Return the head cells as the fields of `Schedule` after its bursts, in their order."""
    cell = dict(zip(HEAD_COLUMNS, cells, strict=True))
    warps, source, destination = (whole_cell(cell[name], name) for name in ("warps", "source", "destination"))
    how = (cast("StartRule", cell["start"]), cell["flavour"], cell["layout"], cell["completion"])
    return producers_cell(cell["producers"]), warps, source, destination, *how, truth_cell(cell["warps_meet"], "warps_meet")


def _first_bad(build: Callable[[tuple[Burst, ...]], Schedule], bursts: list[Burst]) -> int:
    # Once a schedule's first bursts are refused, more of them stay refused: halve until the first bad one is found.
    low, high = 0, len(bursts) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            build(tuple(bursts[: middle + 1]))
            low = middle + 1
        except XStageError:
            high = middle
    return low
