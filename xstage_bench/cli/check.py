"""``xstage check``: what speaks against a recorded run, or whether it keeps an operator's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output, findings_text, table
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import GATE

if TYPE_CHECKING:
    from xstage_bench.record.reader import Run

_T = TypeVar("_T")


@click.command("check", short_help="Criticise a run, or judge it by an operator's limits.")
@click.argument("run", type=FILE)
@click.option("--limits", "limits_path", type=FILE, metavar="FILE", help="Rules (TOML) that each pass, fail or are undetermined.")
@click.option("--strict", is_flag=True, help="Exit 4 for warnings and for what is undetermined too.")
@click.option("-v", "--verbose", is_flag=True, help="Show what is in order too.")
@common
def command(out: Output, run: Path, limits_path: Path | None, strict: bool, verbose: bool) -> int:
    """Say what speaks against the numbers of RUN and what to change; with --limits, whether they are good enough.

    The model is judged by its own hold-out: by median and p95 error, stall or not, and what its intervals cover (docs/operate.md).

    Exit 4 when anything failed. A quantity that is missing fails its rule.
    """
    from xstage_bench.record.reader import load_run

    with at_work(f"checking {run}"):
        loaded = load_run(run)
        if limits_path is None:
            return _criticise(out, loaded, strict, verbose)
        return _limits(out, loaded, limits_path, strict, verbose)


def _first(rows: Sequence[_T], status: Callable[[_T], str], verbose: bool) -> list[_T]:
    """Order by how bad it is; what is in order is left out unless it was asked for."""
    shown = [row for row in rows if verbose or status(row) not in ("ok", "pass")]
    return sorted(shown, key=lambda row: ("fail", "undetermined", "warn", "waived", "pass", "ok").index(status(row)))


def _rest(left_out: int) -> str:
    return f"\n{left_out} in order: -v shows them" if left_out else ""


def _criticise(out: Output, run: Run, strict: bool, verbose: bool) -> int:
    from xstage_bench.judge.check import criticise
    from xstage_bench.judge.gate import judged
    from xstage_bench.model.run_fit import MODEL_NAME, find_model, find_validation

    model = find_model(run.folder) if (run.folder / MODEL_NAME).exists() else None
    findings = criticise(run, model) + ([] if model is None else judged(model, find_validation(run))[1])
    counts = Counter(f.status for f in findings)
    verdict = "fail" if counts["fail"] else "warn" if counts["warn"] else "ok"
    words = {
        "fail": "Some numbers of this run, or its model, must not be used.",
        "warn": "Usable; see the warnings.",
        "ok": "Nothing speaks against it.",
    }
    document = {
        "run": str(run.folder), "simulated": run.manifest.simulated, "verdict": verdict, "counts": dict(counts),
        "findings": [asdict(f) for f in findings],
    }  # fmt: skip
    shown = _first(findings, lambda f: f.status, verbose)
    text = f"\n\n{findings_text(shown)}" if shown else ""
    simulated = "SIMULATED: " if run.manifest.simulated else ""
    out.result(document, f"{simulated}{verdict}: {words[verdict]}{text}{_rest(len(findings) - len(shown))}")
    return GATE if verdict == "fail" or (strict and verdict == "warn") else 0


def _limits(out: Output, run: Run, path: Path, strict: bool, verbose: bool) -> int:
    from xstage_bench.judge.limits import judge, load_limits
    from xstage_bench.model.run_fit import find_model

    judgements = judge(run, find_model(run.folder), load_limits(path))
    counts = Counter(j.result for j in judgements)
    verdict = "fail" if counts["fail"] else "undetermined" if counts["undetermined"] else "pass"
    shown = _first(judgements, lambda j: j.result, verbose)
    rows = [[j.result, j.subject, j.metric, j.rule, j.value, j.low, j.high, j.reason or ""] for j in shown]
    simulated = "SIMULATED: " if run.manifest.simulated else ""
    text = "\n\n" + table(["", "subject", "quantity", "rule", "value", "low", "high", ""], rows) if rows else ""
    document = {
        "run": str(run.folder), "limits": str(path), "simulated": run.manifest.simulated, "verdict": verdict, "counts": dict(counts),
        "judgements": [asdict(j) for j in judgements],
    }  # fmt: skip
    tally = ", ".join(f"{n} {name}" for name, n in counts.items())
    out.result(document, f"{simulated}{verdict}: {tally}{text}{_rest(len(judgements) - len(shown))}")
    return GATE if verdict == "fail" or (strict and verdict == "undetermined") else 0
