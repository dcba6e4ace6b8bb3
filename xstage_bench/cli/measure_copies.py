"""``xstage measure copies``: sustained R of the flavours beside the copy engine and a copy kernel, on the same pair in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import common, some_pairs, surveying
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.survey import measuring_into, show


@click.command("copies", short_help="Measure R beside copy engine and copy kernel.")
@surveying
@some_pairs
@common
def command(
    out: Output, spec: str, pairs: tuple[tuple[int, int], ...] | None, processes: int, quick: bool, seed: int, path: Path | None,
    expect_links: int | None,
) -> int:  # fmt: skip
    """Measure whole copies of 512 MiB as nvbandwidth does, and the flavours that fill the link, on the same pair.

    Needs GPUs: no simulator answers here. As RUN/copies.json the document is shown in that run's report.
    """
    from xstage_bench.device.backend import opener, resolve_gpus
    from xstage_bench.measure.copies import Copier, measure_copies

    with measuring_into(out, path) as kept:
        opened = opener(resolve_gpus(spec, expect_links), Copier, "copy whole buffers")  # type: ignore[type-abstract]
        document = measure_copies(opened, pairs, processes=1 if quick else processes, seed=seed, **kept)
    return show(out, path, document, _text(document))


def _text(document: dict[str, Any]) -> str:
    rows = [[r.pair, r.what, r.gb_per_s, r.half_width, r.share_of_line, r.n] for r in document["rows"]]
    return table(["pair", "what", "GB/s", "±", "share of the line rate", "samples"], rows)
