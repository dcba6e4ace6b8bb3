"""CSV schedule files: one row per burst, rows of one schedule share its id. A million rows take seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import cast

from xstage_bench.errors import DataError, XStageError
from xstage_bench.io.csv_rows import check_width, places_of_columns, producers_cell, rows_of, shown, whole, whole_cell
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.completion import DEFAULT as DEFAULT_COMPLETION

#: Columns of a whole schedule: the same in all its rows, or empty after its first.
HEAD_COLUMNS = ("source", "destination", "producers", "warps", "flavour", "layout", "start", "completion", "warps_meet")
BURST_COLUMNS = ("bytes", "gap_cycles", "start_ns")
COLUMNS = ("schedule", *HEAD_COLUMNS, *BURST_COLUMNS)
REQUIRED = ("producers", "bytes")

_KNOWN_HEADS = 65536
_DEFAULTS = {
    **{"source": "0", "destination": "1", "warps": "1", "flavour": "st.v4", "layout": "contiguous"},
    **{"start": "isolated", "completion": DEFAULT_COMPLETION, "warps_meet": "true"},
}


class _Group:
    """The rows of one schedule: its head cells, its bursts, and the line of each."""

    __slots__ = ("bursts", "head", "id", "lines")

    def __init__(self, name: str, head: tuple[str, ...]) -> None:
        self.id = name
        self.head = head
        self.bursts: list[Burst] = []
        self.lines: list[int] = []


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
    rows = rows_of(text)
    _, header = next(rows, (1, []))
    columns = places_of_columns(header, COLUMNS, REQUIRED)
    groups = _groups(rows, columns, len(header))
    return [_schedule(group) for group in groups]


def _groups(rows: Iterator[tuple[int, list[str]]], columns: dict[str, int], width: int) -> list[_Group]:
    groups: dict[str, _Group] = {}
    head_of = _head_reader(columns)
    burst_at = [(name, columns.get(name)) for name in BURST_COLUMNS]
    id_at = columns.get("schedule")
    group = None
    for line, cells in rows:
        check_width(cells, width, line)
        name = cells[id_at].strip() if id_at is not None else ""
        if id_at is not None and not name:
            raise DataError(f"line {line}: column 'schedule' is empty", "name the schedule in each of its rows, or remove the column")
        head = head_of(cells)
        if group is None or group.id != name:
            group = groups.get(name) or groups.setdefault(name, _Group(name, head))
        if head != group.head:
            _must_agree(group, head, line)
        group.bursts.append(Burst(*(0 if i is None else _burst_number(cells[i], column, line) for column, i in burst_at)))
        group.lines.append(line)
    return list(groups.values())


def _head_reader(columns: dict[str, int]) -> Callable[[list[str]], tuple[str, ...]]:
    """Return what picks the head cells from a row, in the order of `HEAD_COLUMNS`; most rows repeat the ones before them."""
    at = [columns.get(name) for name in HEAD_COLUMNS]
    present = [i for i in at if i is not None]
    known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def read(cells: list[str]) -> tuple[str, ...]:
        raw = tuple([cells[i] for i in present])
        head = known.get(raw)
        if head is None:
            head = tuple("" if i is None else cells[i].strip() for i in at)
            if len(known) < _KNOWN_HEADS:
                known[raw] = head
        return head

    return read


def _must_agree(group: _Group, head: tuple[str, ...], line: int) -> None:
    for name, first, now in zip(HEAD_COLUMNS, group.head, head, strict=True):
        begun = first or _DEFAULTS.get(name, "")
        if now and now != begun:
            where = f"the schedule '{group.id}'" if group.id else "this schedule"
            raise DataError(
                f"line {line}: column '{name}' is {shown(now)}, but {shown(begun)} in line {group.lines[0]}, where {where} begins",
                f"a schedule has one '{name}': repeat it, leave it empty, or name another one in column 'schedule'",
            )


def _burst_number(cell: str, column: str, line: int) -> int:
    value = whole(cell)
    if value is None:
        if not cell.strip() and column != "bytes":
            return 0
        raise DataError(
            f"line {line}: column '{column}' is {shown(cell)}, not a whole number", f"write {column} in digits, for example 4096"
        )
    return value


def _schedule(group: _Group) -> Schedule:
    try:
        head = _head(group.head)
    except DataError as error:
        raise DataError(f"line {group.lines[0]}: {error.message}", error.hint) from error

    def build(bursts: tuple[Burst, ...]) -> Schedule:
        return Schedule(bursts, *head)

    try:
        return build(tuple(group.bursts))
    except XStageError as error:
        culprit = _first_bad(build, group.bursts)
        raise DataError(f"line {group.lines[culprit]}: {error.message}", error.hint) from error


@lru_cache(maxsize=4096)
def _head(cells: tuple[str, ...]) -> tuple[int | tuple[int, ...], int, int, int, StartRule, str, str, str, bool]:
    """Return the head cells as the fields of `Schedule` after its bursts, in their order."""
    cell = {name: text or _DEFAULTS.get(name, "") for name, text in zip(HEAD_COLUMNS, cells, strict=True)}
    warps, source, destination = (whole_cell(cell[name], name) for name in ("warps", "source", "destination"))
    how = (cast("StartRule", cell["start"]), cell["flavour"], cell["layout"], cell["completion"])
    return producers_cell(cell["producers"]), warps, source, destination, *how, _truth(cell["warps_meet"])


def truth_text(value: bool) -> str:
    """Return a truth value as JSON and a cell write it."""
    return "true" if value else "false"


def _truth(cell: str) -> bool:
    if cell.lower() not in ("true", "false"):  # spreadsheets write TRUE
        raise DataError(f"column 'warps_meet' is {shown(cell)}, neither true nor false", "write true, false, or leave it empty")
    return cell.lower() == "true"


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
