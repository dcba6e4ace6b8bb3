"""``xstage measure footprint``: how far a destination may spread before address translation costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import common, some_pairs, surveying
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.survey import measuring_into, show


@click.command("footprint", short_help="Measure bursts over large destinations.")
@surveying
@some_pairs
@click.option("--largest-mib", type=click.IntRange(64, 65536), default=8192, show_default=True, help="Of each GPU's memory.")
@common
def command(
    out: Output, spec: str, pairs: tuple[tuple[int, int], ...] | None, processes: int, quick: bool, seed: int, path: Path | None,
    expect_links: int | None, largest_mib: int,
) -> int:  # fmt: skip
    """Deal the same stores over 1 MiB to 8 GiB of the destination, in runs of 512 bytes, 64 KiB and 2 MiB.

    Needs GPUs: no simulator answers here.
    """
    from xstage_bench.device.backend import opener, resolve_gpus
    from xstage_bench.measure.footprint import Dealer, measure_footprint

    largest = min(largest_mib, 256) if quick else largest_mib
    with measuring_into(out, path) as kept:
        opened = opener(resolve_gpus(spec, expect_links), Dealer, "deal bursts over large memory")  # type: ignore[type-abstract]
        document = measure_footprint(opened, pairs, largest_mib=largest, processes=1 if quick else processes, seed=seed, **kept)
    return show(out, path, document, _text(document))


def _text(document: dict[str, Any]) -> str:
    from xstage_bench.measure.footprint import rates

    lines = []
    for pair in dict.fromkeys(row["pair"] for row in document["rows"]):
        mine = [row for row in document["rows"] if row["pair"] == pair]
        clock = document["node"]["gpus"][mine[0]["source"]]["sm_clock_mhz"]
        for found in rates(mine, clock):
            where = [found["producers"], found["footprint_bytes"] >> 20, found["run_slots"] * 512]
            lines.append([pair, *where, found["gb_per_s"], found["standard_error"]])
    return table(["pair", "SMs", "MiB", "bytes of a run", "R, GB/s", "standard error"], lines)
