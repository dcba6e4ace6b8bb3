"""What every column, key and warning means: glossary.toml, for ``xstage explain`` and the tests that keep it complete."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xstage_bench.errors import UsageError

#: In this order: words of the field first, then what files and tables are headed with, then what is said on stderr.
SECTIONS = ("words", "columns", "headings", "warnings")


@dataclass(frozen=True, slots=True)
class Entry:
    """One word: which section it is of, and its meaning in one line."""

    word: str
    section: str
    meaning: str


@cache
def glossary() -> tuple[Entry, ...]:
    """Return all entries; a word may be in several sections."""
    data = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return tuple(Entry(word, section, meaning) for section in SECTIONS for word, meaning in data[section].items())


def explain(word: str) -> list[Entry]:
    """Return the entries of a word; letters' case counts only where two words differ in nothing else.

    Raises
    ------
    UsageError
        There is none; the hint names the nearest.
    """
    found = [e for e in glossary() if e.word == word] or [e for e in glossary() if e.word.lower() == word.lower()]
    if found:
        return found
    near = difflib.get_close_matches(word, [e.word for e in glossary()], n=3, cutoff=0.5)
    raise UsageError(f"nothing is called '{word}'", f"xstage explain {near[0]}" if near else "xstage explain lists all words")
