"""What all our CSV readers share: rows with their line numbers, a checked header, and cells that say what is wrong with them."""

from __future__ import annotations

import csv
import difflib
import io
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import cast

from xstage_bench.errors import DataError

#: What pandas, R and databases write for a cell without a value.
HOLES = frozenset(("", "nan", "na", "n/a", "<na>", "none", "null", "nat", "-nan"))
#: What pandas calls the column of its row numbers; the first one, or in Parquet the last.
_ROW_NUMBERS = frozenset(("", "index", "Unnamed: 0", "__index_level_0__"))


def is_hole(cell: str) -> bool:
    """Whether a cell has no value, as spreadsheets (empty) or pandas (``nan``, ``<NA>``) write it."""
    return cell.strip().lower() in HOLES


def rows_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty, the header first.

    Cells are parted by commas, semicolons, tabs or bars: by the one of which the header has most, or the one that a first line ``sep=;``
    names. A row that begins with ``#`` is a comment.

    Parameters
    ----------
    text : str
        Without byte-order mark; any line ends.

    Raises
    ------
    DataError
        Not CSV: a quote that does not close.
    """
    lines = io.StringIO(text, newline=None)  # any line end becomes one: the csv module takes a lone "\r" for none
    mark, before = _opening(lines)
    reader = csv.reader(lines, delimiter=mark, strict=True)
    try:
        for cells in reader:
            if any(cells) and not cells[0].startswith("#"):
                yield before + reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"line {before + reader.line_num}: {error}", "save it as plain CSV: commas between cells, double quotes around text"
        ) from error


def _opening(lines: io.StringIO) -> tuple[str, int]:
    """Return what parts the cells, with `lines` left at the header, and how many lines stand before that."""
    before = 0
    while True:
        at, line = lines.tell(), lines.readline()
        if named := re.fullmatch(r'"?sep=(.)"?', line.rstrip("\n"), re.IGNORECASE):
            return named.group(1), before + 1
        if not line or (line.strip() and not line.startswith("#")):
            lines.seek(at)
            return max(",;\t|", key=line.count), before
        before += 1


def header_of(text: str) -> list[str]:
    """Return the names of the columns of CSV text; none where it is no CSV."""
    try:
        return header_names(next(rows_of(text), (1, []))[1])
    except DataError:
        return []


def header_names(cells: Sequence[str]) -> list[str]:
    """Return the names of a header's cells; a quoted name may hold a line break."""
    return [" ".join(name.split()) for name in cells]


def places_of_columns(header: Sequence[str], known: Sequence[str], required: Sequence[str], line: int = 1) -> dict[str, int]:
    """Return where each column of a header, which is that line of its file, stands; a column of row numbers is left out.

    Raises
    ------
    DataError
        A column is unknown, there twice or missing; the message names it.
    """
    names = header_names(header)
    hint = f"the columns are {','.join(known)}"
    places = {name: i for i, name in enumerate(names) if name in known or name not in _ROW_NUMBERS or 0 < i < len(names) - 1}
    for name in places:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DataError(f"line {line}: unknown column '{name[:40]}'", f"did you mean '{near[0]}'? {hint}" if near else hint)
        if names.count(name) > 1:
            raise DataError(f"line {line}: column '{name}' is there twice", "remove one of them")
    for name in required:
        if name not in names:
            raise DataError(f"line {line}: column '{name}' is missing", hint)
    return places


def check_width(cells: Sequence[str], width: int, line: int) -> None:
    """Refuse a row that has not one cell per column."""
    if len(cells) != width:
        raise DataError(f"line {line}: {len(cells)} cells, the header has {width}", "write one cell per column, empty for a default")


@dataclass(slots=True)
class RowGroup:
    """The rows that share an id: their head cells by column with defaults filled in, as written, then line and body cells of each."""

    id: str
    head: dict[str, str]
    written: tuple[str, ...]
    lines: array[int] = field(default_factory=lambda: array("q"))
    rows: list[tuple[str, ...]] = field(default_factory=list)


def grouped_rows(
    text: str, id_column: str, head: Sequence[str], defaults: Mapping[str, str], body: Sequence[str], required: Sequence[str]
) -> list[RowGroup]:
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
    body : sequence of str
        Columns of a row; one that the file lacks has empty cells.
    required : sequence of str
        As for `places_of_columns`.

    Returns
    -------
    list of RowGroup, in order of the first row of each

    Raises
    ------
    DataError
        As `places_of_columns` and `check_width`; an id is empty, or rows of one group disagree about a head cell.
    """
    rows = rows_of(text)
    line, header = next(rows, (1, []))
    at = places_of_columns(header, (id_column, *head, *body), required, line)
    places = [(name, at[name]) for name in head if name in at]
    takes = [_taker([i for _, i in places]), _taker([at.get(name, len(header)) for name in body])]
    groups: dict[str, RowGroup] = {}
    heads: dict[tuple[str, ...], dict[str, str]] = {}
    group = None
    for line, cells in rows:
        if len(cells) != len(header):
            check_width(cells, len(header), line)
        name = cells[at[id_column]].strip() if id_column in at else ""
        if id_column in at and not name:
            raise DataError(
                f"line {line}: column '{id_column}' is empty", f"name the {id_column} in each of its rows, or remove the column"
            )
        cells.append("")  # of the columns that are not there
        raw, own = takes[0](cells), takes[1](cells)
        if group is None or group.id != name:
            if name not in groups:
                if raw not in heads:
                    # A name may be "None"; what has a default, or must be there, cannot.
                    given = {c: "" if is_hole(cells[i]) and (c in defaults or c in required) else cells[i].strip() for c, i in places}
                    heads[raw] = {column: given.get(column) or defaults.get(column, "") for column in head}
                groups[name] = RowGroup(name, heads[raw], raw)
            group = groups[name]
        if raw != group.written:  # most rows repeat the first one's head cells, or leave them all empty
            _must_agree(group, id_column, places, raw, line)
        group.lines.append(line)
        group.rows.append(own)
    return list(groups.values())


def _taker(places: Sequence[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """Return what takes some cells of a row; a million rows are worth not doing it in Python."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda cells: tuple(cells[i] for i in places)


def _must_agree(group: RowGroup, what: str, places: Sequence[tuple[str, int]], raw: Sequence[str], line: int) -> None:
    for (name, _), cell in zip(places, raw, strict=True):
        same = cell.strip() == group.head[name] or is_hole(cell)
        if not same and (whole(cell) is None or whole(cell) != whole(group.head[name])):
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


_NUMBER = re.compile(r"-?\d{1,19}(\.\d*)?([eE]\+?\d\d?)?", re.ASCII)


@lru_cache(maxsize=65536)
def whole(text: str) -> int | None:
    """Return a cell as a whole number, or None when it is none. Whole floats are taken: ``4.0`` and ``6.5e4``, as pandas writes them."""
    # int() and float() would also take "1_000" and digits of other scripts, which no other reader of the file does.
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    value = Decimal(text)  # exact: a double would round what is above 2^53
    return int(value) if value == value.to_integral_value() and abs(value) < 10**19 else None


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
