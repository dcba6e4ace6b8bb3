"""``xstage copies``: sustained R of the flavours beside the copy engine and a copy kernel, on the same pair in one run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, ordered_pairs
from xstage_bench.cli.output import Output, check_file, table
from xstage_bench.errors import ERROR

if TYPE_CHECKING:
    from xstage_bench.measure.copies import Copier


@click.command("copies", short_help="Measure R beside copy engine and copy kernel.")
@click.option("--pairs", callback=ordered_pairs, metavar="A:B,...", help="Only these ordered pairs, for example 0:1,1:0.")
@click.option("--processes", type=click.IntRange(1, 20), default=3, show_default=True, help="Fresh processes, each with its own memory.")
@click.option("--out", "path", type=FILE, metavar="FILE", help="Write the document here; RUN/copies.json is shown in that run's report.")
@common
def command(out: Output, pairs: tuple[tuple[int, int], ...] | None, processes: int, path: Path | None) -> int:
    """Measure whole copies of 512 MiB as nvbandwidth does, and the flavours that fill the link, on the same pair.

    Needs GPUs: no simulator answers here. docs/method.md says how both are timed.
    """
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.device.cuda.compile import sources_hash
    from xstage_bench.measure.copies import measure_copies

    check_file(path)
    out.no_json_beside(path, "the document")
    resolve_backend("cuda", "gpu")
    document = {
        "argv": ["xstage", *sys.argv[1:]],
        "cuda_sources": sources_hash(),
        **measure_copies(_open, pairs, processes=processes, say=out.note),
    }
    for pair, reason in document["failed_pairs"].items():
        out.note(f"xstage: {reason}" if f"pair {pair}" in reason else f"xstage: pair {pair}: {reason}")
    out.document(path, document, _text(document))
    return ERROR if document["failed_pairs"] else 0


def _text(document: dict[str, Any]) -> str:
    rows = [[r.pair, r.what, r.gb_per_s, r.half_width, r.share_of_line, r.n] for r in document["rows"]]
    return table(["pair", "what", "GB/s", "±", "share of the line rate", "samples"], rows)


def _open(process: int) -> Copier:
    from xstage_bench.device.cuda.device import CudaDevice

    return CudaDevice(process=process)
