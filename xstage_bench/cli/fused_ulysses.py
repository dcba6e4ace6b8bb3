"""``xstage fused ulysses``: attention with its All-to-All fused per tile, beside every serial way to do the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from xstage_bench.cli.options import FILE, MODEL, common, seconds
from xstage_bench.cli.output import STDOUT, Output, check_file, table
from xstage_bench.errors import ERROR, UsageError


@click.command("ulysses", short_help="Attention whose tiles go to their owners.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME", help="Of a model: wan-14b, flux.1, ...; repeatable; default: all.")
@click.option("--sp", "degrees", type=click.IntRange(2, 16), multiple=True, help="Ranks; repeatable; default 2. More than GPUs: emulated.")
@click.option("--seq", "seqs", type=click.IntRange(1, 1 << 20), multiple=True, help="Rows, instead of the shape's own; repeatable.")
@click.option("--budget", callback=seconds, default="2", show_default=True, metavar="SECONDS", help="Of timing, for each case.")
@click.option("--pairs", is_flag=True, help="Only attention alone and fused, each round there and back: for long rows, as clocks wander.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of the inputs and the order.")
@click.option("--model", type=MODEL, metavar="MODEL", help="A model.json of such a node (xstage profile): predict, and choose by it.")
@click.option("--recorded", type=FILE, metavar="FILE", help="Take this document of an earlier call instead of measuring; needs no GPU.")
@click.option("--out", "path", type=FILE, default=Path("ulysses.json"), show_default=True, metavar="FILE", help="'-' is stdout.")
@common
def command(
    out: Output, shapes: tuple[str, ...], degrees: tuple[int, ...], seqs: tuple[int, ...], budget: float, pairs: bool, seed: int,
    model: Path | None, recorded: Path | None, path: Path,
) -> int:  # fmt: skip
    """Time attention alone, attention and All-to-All one after the other, and fused, all in one interleaved run.

    Every way that delivers rows is checked against float32 first. With --model each case gets predictions, of which the best names the
    way to store and the tile order that count. results/h200-x2/ulysses says what the numbers mean.
    """
    from xstage_bench.io.json_file import encode_json, write_compact
    from xstage_bench.kernels.attention.document import read_document
    from xstage_bench.kernels.attention.summary import summarise

    out.no_json_beside(path, "the document")
    check_file(path)
    if recorded is not None and (shapes or degrees or seqs or pairs):
        raise UsageError("--recorded has its cases already", "leave out --shape, --sp, --seq and --pairs")
    if recorded is not None and recorded.resolve() == path.resolve():
        raise UsageError(f"{path} is the recording itself, which stays as it is", "--out predicted.json")
    document = read_document(recorded) if recorded is not None else _measured(out, shapes, degrees, seqs, budget, seed, pairs, path)
    if model is not None:
        from xstage_bench.kernels.attention.forecast import add_forecasts
        from xstage_bench.model.run_fit import find_model

        add_forecasts(document, find_model(model))
    if path == STDOUT:
        out.raw(encode_json(document))
    else:
        write_compact(path, document)
        summary = summarise(document)
        out.result({"file": str(path), **summary}, f"{path}\n\n{_text(summary)}")
    wrong = [f"{row['shape']} {name}" for row in document["rows"] for name, found in row["checked"].items() if not found["ok"]]
    for line in (*document["failed"].values(), *(f"wrong result: {name}" for name in wrong)):
        out.note(f"xstage: {line}")
    return ERROR if wrong or document["failed"] else 0


def _measured(
    out: Output, shapes: tuple[str, ...], degrees: tuple[int, ...], seqs: tuple[int, ...], budget: float, seed: int, pairs: bool, path: Path
) -> dict[str, Any]:
    from xstage_bench.device.backend import resolve_gpus
    from xstage_bench.io.json_file import write_compact
    from xstage_bench.kernels.attention.run import cases_of, run

    cases, left_out = cases_of(shapes, degrees or (2,), seqs)
    resolve_gpus("cuda")
    for line in left_out:
        out.note(f"left out: {line}")
    argv = ["xstage", *sys.argv[1:]]

    def keep(document: dict[str, Any]) -> None:
        if path != STDOUT:
            write_compact(path, document)

    return run(cases, seconds_per_case=budget, seed=seed, pairs=pairs, argv=argv, say=out.note, keep=keep)


def _text(summary: dict[str, Any]) -> str:
    head = ["shape", "rows", "SP", "alone us", "cuDNN us", "NCCL us", "push us", "fused us", "visible us", "predicted us", "emulated"]
    keys = ["shape", "seq", "sp", "alone_us", "cudnn_us", "serial_nccl_us", "serial_push_us", "fused_us", "fused_visible_us"]
    rows = [[row[k] for k in (*keys, "predicted_fused_us")] + ["yes" if row["emulated"] else ""] for row in summary["rows"]]
    return table(head, rows)
