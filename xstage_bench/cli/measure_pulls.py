"""``xstage measure pulls``: latency, rate and loads in flight when an SM reads another memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import common, some_pairs, surveying
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.survey import measuring_into, show


@click.command("pulls", short_help="Measure loads from a peer or from host memory.")
@surveying
@some_pairs
@common
def command(
    out: Output,
    spec: str,
    pairs: tuple[tuple[int, int], ...] | None,
    processes: int,
    quick: bool,
    seed: int,
    path: Path | None,
    expect_links: int | None,
) -> int:
    """Measure how long loads from another memory take, how fast they come, and what the SM's own outstanding stores do to them.

    A pair names who loads and whose memory: 0:1 is GPU 0 reading GPU 1. Needs GPUs: no simulator answers here.
    """
    from xstage_bench.device.backend import opener, resolve_backend
    from xstage_bench.measure.pulls import Puller, measure_pulls

    with measuring_into(out, path) as kept:
        choice = resolve_backend("cuda" if spec == "auto" else spec, "auto", expect_links=expect_links)
        opened = opener(choice, Puller, "load from the memory of others")  # type: ignore[type-abstract]
        document = measure_pulls(opened, pairs, processes=1 if quick else processes, seed=seed, quick=quick, **kept)
    return show(out, path, document, _text(document))


def _text(document: dict[str, Any]) -> str:
    def number(e: dict[str, Any]) -> str:
        return "unknown" if e["value"] is None else f"{e['value']:.4g}" + ("" if e["low"] is None else f" ({e['low']:.4g}-{e['high']:.4g})")

    def share(x: float | None) -> str:
        return "unknown" if x is None else f"{x:.1%}"

    laws = [
        [
            law["pair"],
            *(number(law[name]) for name in ("latency_ns", "sm_gb_per_s", "gb_per_s")),
            None if law["in_flight_sm_bytes"] is None else law["in_flight_sm_bytes"] / 1e3,
            share(law["median_error"]),
            share(law["p95_error"]),
        ]
        for law in document["laws"]
    ]
    head = ["pair", "latency, ns", "one SM, GB/s", "all SMs, GB/s", "in flight per SM, kB", "error on random pulls", "p95"]
    waits = [[law["pair"], b["producers"], b["bytes"] / 1e3, b["waited_ns"]] for law in document["laws"] for b in law["behind"]]
    return table(head, laws) + "\n" + table(["pair", "SMs", "kB stored by each", "a load behind them waits, ns"], waits)
