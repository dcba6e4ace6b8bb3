"""CSV schedule files: one row per burst, rows of one schedule share its id. A million rows take seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import cast

from xstage_bench.errors import DataError, XStageError
from xstage_bench.io.csv_rows import RowGroup, grouped_rows, is_hole, producers_cell, shown, truth_cell, whole, whole_cell
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.completion import DEFAULT as DEFAULT_COMPLETION

#: Columns of a whole schedule: the same in all its rows, or empty after its first.
HEAD_COLUMNS = ("source", "destination", "producers", "warps", "flavour", "layout", "start", "completion", "warps_meet")
BURST_COLUMNS = ("bytes", "gap_cycles", "start_ns")
COLUMNS = ("schedule", *HEAD_COLUMNS, *BURST_COLUMNS)
REQUIRED = ("producers", "bytes")

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
    return [schedule for _, _, schedule in labelled_schedules(text, {})]


def labelled_schedules(text: str, labels: Mapping[str, str]) -> list[tuple[int, dict[str, str], Schedule]]:
    """Read schedules whose rows have more columns, each with its first line and what these columns say; `labels` are their defaults."""
    groups = grouped_rows(text, "schedule", (*HEAD_COLUMNS, *labels), {**_DEFAULTS, **labels}, BURST_COLUMNS, REQUIRED)
    return [(group.lines[0], {name: group.head[name] for name in labels}, _schedule(group)) for group in groups]


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
