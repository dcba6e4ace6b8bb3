"""What all our CSV readers share: rows with their line numbers, a checked header, and cells that say what is wrong with them."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
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
