"""How text fits the columns that its reader has: wrapped between words, a wide table in pieces, colour only on a terminal."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import TextIO

_GAP = "  "
_COLOURS = {"ok": 32, "pass": 32, "better": 32, "warn": 33, "undetermined": 33, "not_judged": 33, "fail": 31, "worse": 31, "MISSED": 31}
#: A verdict: it begins a line or a cell, and a cell, a line or a colon ends it.
_VERDICT = re.compile(rf"(?:(?<=  )|(?<=: )|^)({'|'.join(_COLOURS)})(?=  |:|,|$)", re.M)


def columns_of(stream: TextIO | None) -> int | None:
    """Return the columns that ``COLUMNS`` or the terminal says; null elsewhere, where a line stays one line for the next program."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream is not None and stream.isatty() else None
    except (OSError, ValueError):
        return None


def wrapped(text: str, columns: int | None) -> str:
    """Break lines that are too long between words; what goes on is indented. A word that is longer, as a path, stays whole."""
    if columns is None:
        return text
    return "\n".join(line if len(line) <= columns else "\n".join(_folded(line, columns)) for line in text.split("\n"))


def painted(text: str, stream: TextIO | None) -> str:
    """Colour the verdicts, on a terminal and unless ``NO_COLOR`` is set."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return _VERDICT.sub(lambda found: f"\x1b[{_COLOURS[found[1]]}m{found[1]}\x1b[0m", text)


def laid(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], columns: int | None) -> str:
    """Lay a table out: as it is when it fits, else with its cells folded, else in pieces that repeat the first column."""
    lines = [head, *rows]
    width = [max(len(line[i]) for line in lines) for i in range(len(head))]
    if columns is None or _total(width) <= columns:
        return "\n".join(_line(line, width, right) for line in lines)
    least = [max(len(word) for line in lines for word in (line[i].split() or [""])) for i in range(len(head))]
    last = 1
    while last < len(head) and (last == 1 or _total(least[: last + 1]) <= columns):
        last += 1
    if last < len(head):
        first, rest = list(range(last)), [0, *range(last, len(head))]
        return "\n\n".join(
            laid([head[i] for i in part], [[row[i] for i in part] for row in rows], [right[i] for i in part], columns)
            for part in (first, rest)
        )
    while _total(width) > columns and any(w > m for w, m in zip(width, least, strict=True)):
        widest = max((w, i) for i, (w, m) in enumerate(zip(width, least, strict=True)) if w > m)[1]
        width[widest] -= 1
    return "\n".join(_line(part, width, right) for line in lines for part in _folded_cells(line, width))


def _folded_cells(line: Sequence[str], width: Sequence[int]) -> list[list[str]]:
    cells = [textwrap.wrap(cell, max(1, w), break_long_words=False, break_on_hyphens=False) for cell, w in zip(line, width, strict=True)]
    return [[cell[i] if i < len(cell) else "" for cell in cells] for i in range(max(1, *map(len, cells)))]


def _folded(line: str, columns: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + _GAP
    return textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _line(cells: Sequence[str], width: Sequence[int], right: Sequence[bool]) -> str:
    return _GAP.join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, width, right, strict=True)).rstrip()


def _total(width: Sequence[int]) -> int:
    return sum(width) + len(_GAP) * (len(width) - 1)
