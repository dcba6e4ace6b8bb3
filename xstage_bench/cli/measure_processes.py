"""``xstage measure processes``: the same bursts into memory that another process owns."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output, fail, table
from xstage_bench.cli.survey import measuring_into, show
from xstage_bench.errors import XStageError

MEMORIES = ("plain", "ipc", "nvshmem")


@click.command("processes", short_help="Measure memory of another process.")
@click.option("--memory", type=click.Choice(MEMORIES), default="ipc", show_default=True, help="Where the destination lives.")
@click.option("--repetitions", type=click.IntRange(1, 1000), default=9, show_default=True, help="Of each burst.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Where rank 0 listens, for ranks on several nodes.")
@click.option("--compare", "compared", type=FILE, multiple=True, metavar="FILE", help="Compare documents with plain; repeatable.")
@click.option("--out", "path", type=FILE, metavar="FILE", help="The document that rank 0 writes, as JSON; - is stdout.")
@common
def command(out: Output, memory: str, repetitions: int, rendezvous: str | None, compared: tuple[Path, ...], path: Path | None) -> int:
    """Measure bursts into memory of the next rank, one rank per GPU, by any launcher; or of this process alone with --memory plain.

    ::

        xstage measure processes --memory plain --out plain.json
        mpirun -n 2 xstage measure processes --memory ipc --out ipc.json
        torchrun --nproc-per-node 2 -m xstage_bench measure processes --memory nvshmem --out nvshmem.json
        xstage measure processes --compare plain.json --compare ipc.json --compare nvshmem.json
    """
    from xstage_bench.measure.processes import measure_plain

    if compared:
        return _compare(out, compared)
    with measuring_into(out, path) as kept:
        document = measure_plain(repetitions, **kept) if memory == "plain" else _rank(out, memory, repetitions, rendezvous, kept["argv"])
    if document is None:
        return 0
    counts = {pair: sum(row["pair"] == pair for row in document["rows"]) for pair in dict.fromkeys(row["pair"] for row in document["rows"])}
    return show(out, path, document, table(["pair", "rows"], list(counts.items())))


def _rank(out: Output, memory: str, repetitions: int, rendezvous: str | None, argv: list[str]) -> dict[str, Any] | None:
    from xstage_bench.device.cuda.rendezvous import find_place
    from xstage_bench.measure.processes import measure_rank

    try:
        return measure_rank(find_place(rendezvous=rendezvous), memory, repetitions, argv)
    except XStageError as error:
        code = fail(error.exit_code, error.message, error.hint, out.json)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a library's exit handlers may wait for a partner that is gone


def _compare(out: Output, paths: tuple[Path, ...]) -> int:
    from xstage_bench.measure.compare_memories import compare
    from xstage_bench.measure.survey import read_survey

    result = compare([read_survey(path) for path in paths])
    names = ("t0_cycles", "drain_gb_per_s", "capacity_bytes_per_producer")
    rows = [[r["memory"], r["pair"], r["warps"], *(r[name]["value"] for name in names)] for r in result["rows"]]
    out.result(result, table(["memory", "pair", "warps", "T0 cycles", "R GB/s", "Q per SM, bytes"], rows))
    return 0
