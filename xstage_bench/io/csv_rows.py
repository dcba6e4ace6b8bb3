"""What all our CSV readers share: rows with their line numbers, a checked header, and cells that say what is wrong with them."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from xstage_bench.errors import DataError


def rows_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty, the header first.

    Parameters
    ----------
    text : str
        Without byte-order mark; any line ends.

    Raises
    ------
    DataError
        Not CSV: a quote that does not close.
    """
    # The csv module takes a lone "\r" for a line end only when told so; a file from any system is one of the three.
    reader = csv.reader(io.StringIO(text.replace("\r\n", "\n").replace("\r", "\n")), strict=True)
    try:
        for cells in reader:
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"line {reader.line_num}: {error}", "save it as plain CSV: commas between cells, double quotes around text"
        ) from error


def header_names(cells: Sequence[str]) -> list[str]:
    """Return the names of a header's cells; a quoted name may hold a line break."""
    return [" ".join(name.split()) for name in cells]


def places_of_columns(header: Sequence[str], known: Sequence[str], required: Sequence[str]) -> dict[str, int]:
    """Return where each column of a header stands.

    Raises
    ------
    DataError
        A column is unknown, there twice or missing; the message names it.
    """
    names = header_names(header)
    hint = f"the columns are {','.join(known)}"
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise DataError("line 1: the cells are not separated by commas", "save it with commas between cells")
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DataError(f"line 1: unknown column '{name[:40]}'", f"did you mean '{near[0]}'? {hint}" if near else hint)
        if names.count(name) > 1:
            raise DataError(f"line 1: column '{name}' is there twice", "remove one of them")
    for name in required:
        if name not in names:
            raise DataError(f"line 1: column '{name}' is missing", hint)
    return {name: i for i, name in enumerate(names)}


def check_width(cells: Sequence[str], width: int, line: int) -> None:
    """Refuse a row that has not one cell per column."""
    if len(cells) != width:
        raise DataError(f"line {line}: {len(cells)} cells, the header has {width}", "write one cell per column, empty for a default")


@dataclass(slots=True)
class RowGroup:
    """The rows that share an id: their head cells by column with defaults filled in, as written, then line and cells of each."""

    id: str
    head: dict[str, str]
    written: tuple[str, ...]
    lines: list[int] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def grouped_rows(
    text: str, id_column: str, head: Sequence[str], defaults: Mapping[str, str], known: Sequence[str], required: Sequence[str]
) -> tuple[list[RowGroup], dict[str, int]]:
    """Read CSV whose rows belong together by one column; without that column all do.

    Parameters
    ----------
    text : str
        As for `rows_of`.
    id_column : str
    head : sequence of str
        Columns of a whole group: the same in all its rows, or empty after its first.
    defaults : mapping of str to str
        What an empty head cell means.
    known, required : sequence of str
        As for `places_of_columns`.

    Returns
    -------
    list of RowGroup, in order of the first row of each, and where each column stands

    Raises
    ------
    DataError
        As `places_of_columns` and `check_width`; an id is empty, or rows of one group disagree about a head cell.
    """
    rows = rows_of(text)
    _, header = next(rows, (1, []))
    at = places_of_columns(header, known, required)
    places = [(name, at[name]) for name in head if name in at]
    groups: dict[str, RowGroup] = {}
    group = None
    for line, cells in rows:
        check_width(cells, len(header), line)
        name = cells[at[id_column]].strip() if id_column in at else ""
        if id_column in at and not name:
            raise DataError(
                f"line {line}: column '{id_column}' is empty", f"name the {id_column} in each of its rows, or remove the column"
            )
        raw = tuple([cells[i] for _, i in places])
        if group is None or group.id != name:
            if name not in groups:
                given = {column: cells[i].strip() for column, i in places}
                groups[name] = RowGroup(name, {column: given.get(column) or defaults.get(column, "") for column in head}, raw)
            group = groups[name]
        if raw != group.written:  # most rows repeat the first one's head cells, or leave them all empty
            _must_agree(group, id_column, places, raw, line)
        group.lines.append(line)
        group.rows.append(cells)
    return list(groups.values()), at


def _must_agree(group: RowGroup, what: str, places: Sequence[tuple[str, int]], raw: Sequence[str], line: int) -> None:
    for (name, _), cell in zip(places, raw, strict=True):
        if cell.strip() and cell.strip() != group.head[name]:
            where = f"the {what} '{group.id}'" if group.id else f"this {what}"
            raise DataError(
                f"line {line}: column '{name}' is {shown(cell)}, but {shown(group.head[name])} in line {group.lines[0]}, where {where} "
                "begins",
                f"a {what} has one '{name}': repeat it, leave it empty, or name another one in column '{what}'",
            )


def truth_cell(cell: str, column: str) -> bool:
    """Return a cell as a truth value; spreadsheets write TRUE."""
    if cell.lower() not in ("true", "false"):
        raise DataError(f"column '{column}' is {shown(cell)}, neither true nor false", "write true, false, or leave it empty")
    return cell.lower() == "true"


def truth_text(value: bool) -> str:
    """Return a truth value as JSON and a cell write it."""
    return "true" if value else "false"


@lru_cache(maxsize=65536)
def whole(text: str) -> int | None:
    """Return a cell as a whole number, or None when it is none."""
    # Only digits: int() would also take "1_000" and digits of other scripts, which no other reader of the file does.
    text = text.strip()
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def whole_cell(cell: str, column: str, example: int = 1) -> int:
    """Return a cell as a whole number; DataError naming the column when it is none."""
    value = whole(cell)
    if value is None:
        raise DataError(f"column '{column}' is {shown(cell)}, not a whole number", f"write {column} in digits, for example {example}")
    return value


def producers_cell(cell: str) -> int | tuple[int, ...]:
    """Return the producers that a cell names: a count, or smids behind ``smid:``."""
    parts = cell.removeprefix("smid:").replace(",", " ").replace(";", " ").split() if cell.startswith("smid:") else [cell]
    numbers = [whole(part) for part in parts]
    if not numbers or None in numbers:
        raise DataError(f"column 'producers' is {shown(cell)}", "write a count of SMs, such as 132, or smids, such as smid:0 2 4")
    return tuple(cast("list[int]", numbers)) if cell.startswith("smid:") else cast("int", numbers[0])


def written_producers(producers: int | tuple[int, ...]) -> int | str:
    """Return what `producers_cell` reads back equal."""
    return producers if isinstance(producers, int) else "smid:" + " ".join(map(str, producers))


def shown(cell: str) -> str:
    """Return a cell as a message quotes it: short, on one line."""
    cell = " ".join(cell.split())  # a quoted cell may hold a line break
    return "empty" if not cell else f"'{cell[:40]}'"
