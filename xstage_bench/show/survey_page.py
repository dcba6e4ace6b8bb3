"""Any document of ``xstage measure`` or a replay as one HTML page: the head in words, what failed, and every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xstage_bench.errors import DataError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.measure.survey import read_survey
from xstage_bench.show.html import Table, render
from xstage_bench.show.report_tables import MISSING, number

#: Rows of one table; the file holds them all.
MOST_ROWS = 400
#: A row's list of more numbers than this is a curve, for programs.
LONGEST_LIST = 8
_BOUNDS = {"value", "low", "high"}


def write_survey_page(path: Path, out: Path | None = None) -> Path:
    """Write the page of a document beside it, or to `out`; its path.

    Raises
    ------
    UsageError, DataError
        There is no such file, or it is no document with rows.
    """
    page = render_survey(read_survey(path), path.name)
    out = path.with_suffix("").with_suffix(".html") if out is None else out
    write_bytes(out, page.encode(errors="backslashreplace"))
    return out


def render_survey(document: Mapping[str, Any], name: str) -> str:
    """Return the page of a document, also of one from before all had one head: what it does not say is left out."""
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise DataError(f"{name} holds no rows: it is no document of a measurement", "give a run folder, or what 'xstage measure' wrote")
    kind = str(document.get("kind") or (document.get("compute") and "replay") or "survey")
    failures = {**(document.get("waived") or {}), **(document.get("failed") or {}), **(document.get("failed_pairs") or {})}
    return render(
        "survey.html.j2", kind=kind, name=name, simulated=bool(document.get("simulated")),
        complete=document.get("complete", True) is not False, failures=failures, facts=_facts(document), tables=tables(rows),
    )  # fmt: skip


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpus = document.get("gpus") or (document.get("node") or {}).get("gpus") or []
    names = dict.fromkeys(str(g["name"]) for g in gpus if "name" in g)
    kernels = [f"{k['source']} {k['identity'][:8]} ({k['arch']}, {k['compiler']})" for k in document.get("kernels") or []]
    found: list[tuple[str, Any]] = [
        ("GPUs", f"{len(gpus)}: {', '.join(names)}" if gpus else None), ("backend", document.get("backend")),
        ("driver", document.get("driver")), ("measured", document.get("created")), ("command", " ".join(document.get("argv") or [])),
        ("fresh processes", document.get("processes")), ("repetitions", document.get("repetitions")), ("seed", document.get("seed")),
        ("kernels", ", ".join(kernels[:4]) + (f" and {len(kernels) - 4} more" if len(kernels) > 4 else "")),
        ("notes", "; ".join(document.get("notes") or [])),
    ]  # fmt: skip
    return [(word, str(value)) for word, value in found if value not in (None, "", [])]


def tables(rows: Sequence[Any]) -> list[Table]:
    """Return the rows as tables, one for each part; lists of dicts within a row become a table of their own."""
    parts: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if isinstance(row, dict):
            _add(parts, str(row.get("part") or "rows"), row, {})
    return [_table(title, lines) for title, lines in parts.items() if lines]


def _add(parts: dict[str, list[dict[str, str]]], title: str, row: Mapping[str, Any], known: dict[str, str]) -> None:
    inner = {k: v for k, v in row.items() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)}
    plain = {k: cell(v) for k, v in row.items() if k not in inner and k != "part" and not _curve(v)}
    parts.setdefault(title, []).append({**known, **plain})
    label = {k: v for k, v in plain.items() if k in ("name", "schedule", "pair")}
    for name, entries in inner.items():
        for entry in entries:
            _add(parts, name, entry, label)


def _curve(value: Any) -> bool:
    return isinstance(value, list) and len(value) > LONGEST_LIST


def cell(value: Any) -> str:
    """Return one value as text: an estimate with its interval, a missing one as a dash, a number to four digits."""
    if isinstance(value, dict):
        if set(value) >= _BOUNDS:
            bounds = "" if value["low"] is None else f" [{number(value['low'], 4)}, {number(value['high'], 4)}]"
            return MISSING if value["value"] is None else number(value["value"], 4) + bounds
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items()) or MISSING
    if isinstance(value, list):
        return ", ".join(cell(v) for v in value) or MISSING
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, 4) if isinstance(value, int | float) else str(value)


def _table(title: str, lines: Sequence[Mapping[str, str]]) -> Table:
    columns = list(dict.fromkeys(k for line in lines for k in line))
    shown = [[line.get(c, MISSING) for c in columns] for line in lines[:MOST_ROWS]]
    note = f"The first {MOST_ROWS} of {len(lines)} rows; the file holds them all." if len(lines) > MOST_ROWS else ""
    return Table(title, [c.replace("_", " ") for c in columns], shown, note)
