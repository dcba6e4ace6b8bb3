"""The part of ``xstage predict`` that asks about a workload instead of a schedule file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, Verb, adding
from xstage_bench.cli.output import Output, table
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.model.document import Model

_RANKS = click.IntRange(min=1)


def workload_options(verb: Verb) -> Verb:
    """Add ``--workload`` and what it needs."""
    add = adding(
        click.option("--workload", metavar="NAME", help="A real model, MoE layer or attention instead of SCHEDULE (docs/predict.md)."),
        click.option("--config", type=FILE, metavar="FILE", help="The same of a model's own config.json, as Hugging Face has it."),
        click.option("--ep", type=_RANKS, metavar="N", help="Ranks that share the experts; default 8."),
        click.option("--sp", type=_RANKS, metavar="N", help="Ranks that share a sequence; default 1."),
        click.option("--tp", type=_RANKS, metavar="N", help="Ranks that share heads and weights of the attention; default 1."),
        click.option("--context", type=_RANKS, metavar="TOKENS", help="Tokens of a sequence; default 131072."),
        click.option("--mode", type=click.Choice(["prefill", "decode", "distill", "weights"]), help="Default: prefill."),
        click.option("--dtype", type=click.Choice(["bf16", "fp8"]), help="Default: bf16."),
        click.option("--tokens-per-rank", type=_RANKS, metavar="N", help="Of a chunk, or sequences decoded at a time."),
        click.option("--feedback", type=click.Choice(["logits", "top_k"]), help="Of the teachers in distill; default: logits."),
        click.option("--replicate-kv", is_flag=True, default=None, help="Allow more ranks than key-value heads."),
    )
    return add(verb)


def check_workload(schedule: Path | None, given: dict[str, Any]) -> None:
    """Refuse both, neither, and a layout without a workload."""
    if [schedule, given["workload"], given["config"]].count(None) != 2:
        raise UsageError(
            "give a schedule file, or --workload NAME, or --config FILE",
            "xstage predict MODEL tasks.json, or --workload keye-vl-2 --ep 8",
        )
    stray = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and name not in ("workload", "config")]
    if schedule is not None and stray:
        raise UsageError(
            f"{', '.join(stray)} belong to a workload, not to a schedule file", "leave them out, or --workload NAME, or --config FILE"
        )


def show_workload(out: Output, model: Model, head: dict[str, Any], **given: Any) -> int:
    """Predict and print every phase; `head` begins the document."""
    from xstage_bench.model.run_fit import is_simulated
    from xstage_bench.workloads.decoder import load_decoder
    from xstage_bench.workloads.predict import predict_workload
    from xstage_bench.workloads.predicted import COLUMNS

    if is_simulated(model):
        out.note(f"SIMULATED: the model was fitted on backend {model.backend}")
    config = given.pop("config")
    given["workload"] = given["workload"] if config is None else load_decoder(config)
    found = predict_workload(model, **{name: value for name, value in given.items() if value is not None})
    notes = "\n".join(f"note: {note}" for note in found.notes)
    out.result({**head, **found.document()}, f"{found.summary()}\n{table(COLUMNS, found.rows())}\n{notes}")
    return 0
