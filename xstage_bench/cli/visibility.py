"""``xstage visibility``: when stores become visible at the peer, and what publishing costs behind a backlog."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, ordered_pairs
from xstage_bench.cli.output import STDOUT, Output, check_file
from xstage_bench.errors import ERROR, UsageError

if TYPE_CHECKING:
    from xstage_bench.visibility_survey import Watcher


@click.command("visibility", short_help="Measure remote visibility and the cost of publishing.")
@click.option("--pairs", callback=ordered_pairs, metavar="A:B,...", help="Only these ordered pairs: 0:1,1:0; 0:0 is the LOCAL control.")
@click.option("--quick", is_flag=True, help="One process and fewer repetitions.")
@click.option("--processes", type=click.IntRange(1, 20), default=3, show_default=True, help="Fresh processes, each with its own memory.")
@click.option("--only", "only", multiple=True, metavar="PART", help="curve, flag, lag, domain, message, torn, arrival, loud; repeatable.")
@click.option("--out", "path", type=FILE, default=Path("visibility.json"), show_default=True, metavar="FILE", help="'-' is stdout.")
@common
def command(out: Output, pairs: tuple[tuple[int, int], ...] | None, quick: bool, processes: int, only: tuple[str, ...], path: Path) -> int:
    """Watch, on the peer, when stores arrive: drain curves, bytes under way, flags behind a backlog, ways to publish.

    Needs GPUs: no simulator answers here. docs/measure.md says what the numbers mean.
    """
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.device.cuda.compile import sources_hash
    from xstage_bench.record.atomic import write_bytes
    from xstage_bench.record.json_file import encode_json
    from xstage_bench.visibility_survey import PARTS, survey

    for part in only:
        if part not in PARTS:
            raise UsageError(f"unknown part '{part}'", f"use one of: {', '.join(PARTS)}")

    out.no_json_beside(path, "the document")
    check_file(path)
    resolve_backend("cuda")
    document = {
        "argv": ["xstage", *sys.argv[1:]],
        "cuda_sources": sources_hash(),
        **survey(_open, pairs, quick=quick, processes=processes, only=only, progress=out.note),
    }
    for pair, reason in document["failed_pairs"].items():
        out.note(f"xstage: {reason}" if f"pair {pair}" in reason else f"xstage: pair {pair}: {reason}")
    failed = list(document["failed_pairs"])
    failed += [f"{r['pair']} {r['part']}" for r in document["rows"] if r["status"] == "timeout" or r["wrong_words"]]
    if path == STDOUT:
        out.raw(encode_json(document))
    else:
        write_bytes(path, encode_json(document))
        summary: dict[str, Any] = {"file": str(path), "rows": len(document["rows"]), "failed": failed}
        out.result(summary, f"{path}\n{len(document['rows'])} rows, {len(failed)} failures")
    return ERROR if failed else 0


def _open(process: int) -> Watcher:
    from xstage_bench.device.cuda.device import CudaDevice

    return CudaDevice(process=process)
