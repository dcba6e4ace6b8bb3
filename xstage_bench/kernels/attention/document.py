"""What `run` has recorded, read again: a document, and a folder with one of all cases and one of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import read_json

SCHEMA_VERSION = 1
#: In a results folder: all cases, and the cases that were timed again as pairs, with ``--pairs``.
DOCUMENT, PAIRS, SUMMARY = "ulysses.json.gz", "pairs.json.gz", "summary.json"


def read_document(path: Path) -> dict[str, Any]:
    """Read a document of ``xstage fused ulysses``; errors as of `read_json`, and `DataError` for another document."""
    document = read_json(path, dict[str, Any], newest=SCHEMA_VERSION)
    if not {"rows", "failed"} <= set(document):
        raise DataError(f"{path} is no document of 'xstage fused ulysses'", "name one: xstage fused ulysses --out FILE writes it")
    return document


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the documents of a results folder: of all cases, and of pairs if there is one; errors as `read_document`."""
    pairs = folder / PAIRS
    return read_document(folder / DOCUMENT), read_document(pairs) if pairs.exists() else None
