"""``xstage measure visibility``: when stores become visible at the peer, and what publishing costs behind a backlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import common, some_pairs, surveying
from xstage_bench.cli.output import STDOUT, Output
from xstage_bench.cli.survey import measuring_into, name_failures
from xstage_bench.errors import ERROR


@click.command("visibility", short_help="Measure remote visibility and the cost of publishing.")
@surveying
@some_pairs
@click.option("--only", "only", multiple=True, metavar="PART", help="curve, flag, lag, domain, message, torn, arrival, loud; repeatable.")
@common
def command(
    out: Output, spec: str, pairs: tuple[tuple[int, int], ...] | None, processes: int, quick: bool, seed: int, path: Path | None,
    expect_links: int | None, only: tuple[str, ...],
) -> int:  # fmt: skip
    """Watch, on the peer, when stores arrive: drain curves, bytes under way, flags behind a backlog, ways to publish.

    Needs GPUs: no simulator answers here.
    """
    from xstage_bench.device.backend import opener, resolve_gpus
    from xstage_bench.io.json_file import write_json
    from xstage_bench.measure.visibility import Watcher, check_parts, measure_visibility

    path = Path("visibility.json") if path is None else path
    check_parts(only)
    with measuring_into(out, path) as kept:
        opened = opener(resolve_gpus(spec, expect_links), Watcher, "watch what arrives")  # type: ignore[type-abstract]
        document = measure_visibility(opened, pairs, quick=quick, processes=processes, only=only, seed=seed, **kept)
    status = name_failures(out, document)
    failed = list(document["failed_pairs"])
    failed += [f"{r['pair']} {r['part']}" for r in document["rows"] if r["status"] == "timeout" or r["wrong_words"]]
    if path == STDOUT:
        out.document(path, document, "")
    else:
        write_json(path, document)
        summary: dict[str, Any] = {"file": str(path), "rows": len(document["rows"]), "failed": failed}
        out.result(summary, f"{path}\n{len(document['rows'])} rows, {len(failed)} failures")
    return ERROR if failed else status
