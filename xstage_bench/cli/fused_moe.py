"""``xstage fused moe``: an expert-parallel MoE layer, Linear-1 and Linear-2 interleaved, beside Expert-Wave order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import FILE, MODEL, common, seconds
from xstage_bench.cli.output import STDOUT, Output, check_file, table
from xstage_bench.errors import ERROR, UsageError


@click.command("moe", short_help="An expert-parallel MoE layer, its tiles in another order.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME", help="Of a model: dsv4-flash, keye-vl-2, ...; repeatable.")
@click.option("--suite", is_flag=True, help="All eight shapes, both types, both routings, 512, 2048 and 8192 tokens.")
@click.option("--ep", type=click.IntRange(1, 8), default=8, show_default=True, help="Ranks; more than GPUs are emulated for the sender.")
@click.option(
    "--dtype", "dtypes", type=click.Choice(["bf16", "fp8"]), multiple=True, help="Of tokens and weights; repeatable; default: both."
)
@click.option("--routing", "routings", type=click.Choice(["balanced", "skewed"]), multiple=True, help="Repeatable; default: both.")
@click.option("--tokens", type=click.IntRange(1, 1 << 20), multiple=True, help="Per rank; repeatable; default 4096.")
@click.option(
    "--combine", "combines", type=click.Choice(["bf16", "f32", "fp8"]), multiple=True, help="Of result rows; repeatable; default bf16."
)
@click.option(
    "--model", type=MODEL, metavar="MODEL", help="model.json of this node, which chooses the orders; default: a lead of one tile."
)
@click.option("--repetitions", type=click.IntRange(1, 1000), default=7, show_default=True, help="Of each variant.")
@click.option("--unfused", is_flag=True, help="Time the layer by PyTorch's grouped GEMM and NCCL too (bf16, balanced).")
@click.option("--budget", callback=seconds, default=None, metavar="SECONDS", help="Begin no case after this time.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of the order of execution.")
@click.option("--resume", is_flag=True, help="Go on with the document in --out.")
@click.option("--out", "path", type=FILE, default=Path("moe.json"), show_default=True, metavar="FILE", help="Written after every row.")
@common
def command(
    out: Output, shapes: tuple[str, ...], suite: bool, ep: int, dtypes: tuple[str, ...], routings: tuple[str, ...],
    tokens: tuple[int, ...], combines: tuple[str, ...], model: Path | None, repetitions: int, unfused: bool, budget: float | None,
    seed: int, resume: bool, path: Path,
) -> int:  # fmt: skip
    """Time an MoE layer with its tiles in Expert-Wave order, in the order that the model chooses, and without its stores.

    Every order is checked against float32 first. results/h200-x2/moe says what the numbers mean.
    """
    from xstage_bench.device.backend import resolve_gpus
    from xstage_bench.kernels.moe.layer import DTYPES
    from xstage_bench.kernels.moe.run import SuiteOptions, devices_of, run
    from xstage_bench.kernels.moe.suite import ROUTINGS, SHAPES, TOKENS, suite_cases
    from xstage_bench.kernels.moe.summary import summarise
    from xstage_bench.machine.topology import read_topology

    if suite == bool(shapes):
        raise UsageError("neither a shape nor the suite" if not suite else "--suite has its own shapes", "--shape dsv4-flash, or --suite")
    if path == STDOUT:
        raise UsageError("the document is written after every row and cannot go to stdout", "--out FILE")
    cases = suite_cases(shapes or SHAPES, tokens or (TOKENS if suite else (4096,)), dtypes or DTYPES, routings or ROUTINGS, ep)
    check_file(path)
    if path.exists() and not resume:
        raise UsageError(f"{path} is there already", "--resume goes on with it; --out names another file")
    resolve_gpus("cuda")
    devices = devices_of(ep, len(read_topology().gpus))
    limit = float("inf") if budget is None else budget
    options = SuiteOptions(
        devices=devices, model=model, combines=combines or ("bf16",), repetitions=repetitions, seed=seed, unfused=unfused, budget_s=limit
    )
    document = run(cases, path, options, resume=resume, argv=["xstage", *sys.argv[1:]], say=out.note)
    summary = summarise(document)
    out.result({"file": str(path), **summary}, f"{path}\n\n{_text(summary)}")
    for what in ("failed", "left"):
        for key, reason in document[what].items():
            out.note(f"xstage: {key} {what}: {reason}")
    return ERROR if document["failed"] else 0


def _text(summary: dict[str, Any]) -> str:
    head = ["shape", "type", "rows", "routing", "tokens", "EP", "alone us", "local us", "wave us", "interleaved us", "bound us", "gain"]
    keys = [
        "shape", "dtype", "combine", "routing", "tokens_per_rank", "ep", "alone_us", "local_us", "wave_us", "interleaved_us", "bound_us",
        "gain",
    ]  # fmt: skip
    return table(head, [[row[k] for k in keys] for row in summary["rows"]])
