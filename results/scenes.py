"""What the pages of scenes share: the rows of every document that ``xstage scene`` wrote into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import half, origin

from xstage_bench.io.json_file import read_json

Row = dict[str, Any]


def documents(folder: Path) -> list[Row]:
    """Return the scene documents of a folder, the oldest first."""
    found = [read_json(path, Row) for path in sorted(folder.glob("*.json"))]
    return sorted((d for d in found if d.get("rows") and "schedules" in d["rows"][0]), key=lambda d: str(d["created"]))


def scenes(folder: Path) -> list[Row]:
    """Return the rows of all of them."""
    return [row for document in documents(folder) for row in document["rows"]]


def when(folder: Path) -> str:
    """Return what was measured on, of each document with another day, driver or kernels."""
    return "\n".join(dict.fromkeys(origin(document) for document in documents(folder)))


def rate(found: Row | None, digits: int = 1) -> str:
    """Return GB/s of a schedule or a companion."""
    return "-" if found is None else half(found["gb_per_s"], digits)
