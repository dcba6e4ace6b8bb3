"""What every column, key and warning means: glossary.toml, for ``xstage explain`` and the tests that keep it complete."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from xstage_bench.errors import UsageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.model.document import load_model
from xstage_bench.model.headline import headline_entry

#: The recorded node whose numbers are called usual.
REFERENCE = "h200-nv18"

#: In this order: words of the field first, then what files and tables are headed with, then what is said on stderr.
SECTIONS = ("words", "columns", "headings", "warnings")


@dataclass(frozen=True, slots=True)
class Entry:
    """One word: which section it is of, and its meaning in one line."""

    word: str
    section: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Formula:
    """What a word is computed by, its value on the reference node in words (None: it has none of its own), and the page that derives it."""

    formula: str
    usual: str | None
    page: str


def formula_of(word: str) -> Formula | None:
    """Return the formula of a word of the field, or None."""
    found = _file()["formulas"].get(word)
    return None if found is None else Formula(found["formula"], _usual(found.get("usual")), found["page"])


def _usual(key: str | None) -> str | None:
    """Return a number of the recorded reference node, from its model."""
    if key is None:
        return None
    model = load_model(asset_dir("results") / "reference" / REFERENCE / "model.json")
    pair = next(p for p in model.pairs if not p.is_local)
    entry = headline_entry(pair)
    if entry is None or entry.drain_gb_per_s.value is None:
        return None
    drained_us = entry.producers * entry.bytes / entry.drain_gb_per_s.value / 1e3
    of_burst = f" for {entry.bytes / 1024:g} KiB per SM"
    numbers: dict[str, tuple[float | None, float, str]] = {
        "t0_us": (entry.t0_cycles.value, model.sm_clock_mhz, "µs" + of_burst),
        "drain_gb_per_s": (entry.drain_gb_per_s.value, 1.0, "GB/s"),
        "capacity_mb": (entry.capacity_bytes.value, 1e6, "MB"),
        "drain_us": (drained_us, 1.0, "µs" + of_burst),
        "knee_kb": (entry.knee_bytes.value, 1e3, "kB per SM"),
        "recovery_gap_us": (entry.recovery_gap_cycles.value, model.sm_clock_mhz, "µs" + of_burst),
    }
    value, scale, unit = numbers[key]
    where = f"{model.gpu}, GPU {pair.pair.replace('>', ' → ')}, {entry.producers} SMs × {entry.warps} warps"
    return None if value is None else f"{value / scale:.3g} {unit} ({where})"


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))


@cache
def glossary() -> tuple[Entry, ...]:
    """Return all entries; a word may be in several sections."""
    data = _file()
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
