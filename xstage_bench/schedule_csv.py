"""CSV schedule files: one row per burst, rows of one schedule share its id. A million rows take seconds."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

from xstage_bench.completion import DEFAULT as DEFAULT_COMPLETION
from xstage_bench.errors import DataError, XStageError
from xstage_bench.schedule import Burst, Schedule, StartRule

#: Columns of a whole schedule: the same in all its rows, or empty after its first.
HEAD_COLUMNS = ("source", "destination", "producers", "warps", "flavour", "layout", "start", "completion")
BURST_COLUMNS = ("bytes", "gap_cycles", "start_ns")
COLUMNS = ("schedule", *HEAD_COLUMNS, *BURST_COLUMNS)
REQUIRED = ("producers", "bytes")

_KNOWN_HEADS = 65536
_DEFAULTS = {
    **{"source": "0", "destination": "1", "warps": "1", "flavour": "st.v4", "layout": "contiguous"},
    **{"start": "isolated", "completion": DEFAULT_COMPLETION},
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
    # The csv module takes a lone "\r" for a line end only when told so; a file from any system is one of the three.
    rows = _rows(csv.reader(io.StringIO(text.replace("\r\n", "\n").replace("\r", "\n")), strict=True))
    _, header = next(rows, (1, []))
    columns = _columns(header)
    groups = _groups(rows, columns, len(header))
    return [_schedule(group) for group in groups]


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    try:
        for cells in reader:
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"line {reader.line_num}: {error}", "save it as plain CSV: commas between cells, double quotes around text"
        ) from error


def _columns(header: list[str]) -> dict[str, int]:
    names = [" ".join(name.split()) for name in header]  # a quoted name may hold a line break
    hint = f"the columns are {','.join(COLUMNS)}"
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise DataError("line 1: the cells are not separated by commas", "save it with commas between cells")
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            raise DataError(f"line 1: unknown column '{name[:40]}'", f"did you mean '{near[0]}'? {hint}" if near else hint)
        if names.count(name) > 1:
            raise DataError(f"line 1: column '{name}' is there twice", "remove one of them")
    for name in REQUIRED:
        if name not in names:
            raise DataError(f"line 1: column '{name}' is missing", hint)
    return {name: i for i, name in enumerate(names)}


def _groups(rows: Iterator[tuple[int, list[str]]], columns: dict[str, int], width: int) -> list[_Group]:
    groups: dict[str, _Group] = {}
    head_of = _head_reader(columns)
    burst_at = [(name, columns.get(name)) for name in BURST_COLUMNS]
    id_at = columns.get("schedule")
    group = None
    for line, cells in rows:
        if len(cells) != width:
            raise DataError(f"line {line}: {len(cells)} cells, the header has {width}", "write one cell per column, empty for a default")
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
                f"line {line}: column '{name}' is {_shown(now)}, but {_shown(begun)} in line {group.lines[0]}, where {where} begins",
                f"a schedule has one '{name}': repeat it, leave it empty, or name another one in column 'schedule'",
            )


@lru_cache(maxsize=65536)
def _whole(text: str) -> int | None:
    # Only digits: int() would also take "1_000" and digits of other scripts, which no other reader of the file does.
    text = text.strip()
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _burst_number(cell: str, column: str, line: int) -> int:
    value = _whole(cell)
    if value is None:
        if not cell.strip() and column != "bytes":
            return 0
        raise DataError(
            f"line {line}: column '{column}' is {_shown(cell)}, not a whole number", f"write {column} in digits, for example 4096"
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
def _head(cells: tuple[str, ...]) -> tuple[int | tuple[int, ...], int, int, int, StartRule, str, str, str]:
    """Return the head cells as the fields of `Schedule` after its bursts, in their order."""
    cell = {name: text or _DEFAULTS.get(name, "") for name, text in zip(HEAD_COLUMNS, cells, strict=True)}
    warps, source, destination = (_head_number(cell[name], name) for name in ("warps", "source", "destination"))
    how = (cast("StartRule", cell["start"]), cell["flavour"], cell["layout"], cell["completion"])
    return _producers(cell["producers"]), warps, source, destination, *how


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


def _producers(cell: str) -> int | tuple[int, ...]:
    parts = cell.removeprefix("smid:").replace(",", " ").replace(";", " ").split() if cell.startswith("smid:") else [cell]
    numbers = [_whole(part) for part in parts]
    if not numbers or None in numbers:
        raise DataError(f"column 'producers' is {_shown(cell)}", "write a count of SMs, such as 132, or smids, such as smid:0 2 4")
    return tuple(cast("list[int]", numbers)) if cell.startswith("smid:") else cast("int", numbers[0])


def _head_number(cell: str, column: str) -> int:
    value = _whole(cell)
    if value is None:
        raise DataError(f"column '{column}' is {_shown(cell)}, not a whole number", f"write {column} in digits, for example 1")
    return value


def _shown(cell: str) -> str:
    cell = " ".join(cell.split())  # a quoted cell may hold a line break
    return "empty" if not cell else f"'{cell[:40]}'"
