"""What all surveys of ``xstage measure`` do before and after: where the document goes, what is kept on Ctrl-C, what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xstage_bench.cli.output import STDOUT, Output, check_file
from xstage_bench.cli.progress import progress_bar
from xstage_bench.errors import ERROR


@contextmanager
def measuring_into(out: Output, path: Path | None) -> Iterator[dict[str, Any]]:
    """Yield what a survey is told beside its own options: the command, the progress bar, and where an interrupted document goes."""
    from xstage_bench.io.json_file import write_json

    check_file(path)
    out.no_json_beside(path, "the document")

    def keep(document: dict[str, Any]) -> None:
        if path is not None and path != STDOUT:
            write_json(path, document)
            out.note(f"interrupted; what was measured is kept in {path}, marked as not complete")

    with progress_bar() as (progress, _):
        yield {"argv": ["xstage", *sys.argv[1:]], "progress": progress, "keep": keep}


def name_failures(out: Output, document: dict[str, Any]) -> int:
    """Name what failed or was waived on stderr; the exit status."""
    for kind in ("waived", "failed"):
        for pair, reason in document["failed_pairs" if kind == "failed" else "waived"].items():
            out.note_pair(pair, reason, f" {kind}")
    return ERROR if document["failed_pairs"] else 0


def show(out: Output, path: Path | None, document: dict[str, Any], text: str) -> int:
    """Name what failed, write and print the document; the exit status."""
    status = name_failures(out, document)
    out.document(path, document, text)
    return status
