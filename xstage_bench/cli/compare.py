"""``xstage compare``: which fitted parameters differ between two runs, and is that more than chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import MODEL, common, completing, percent
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import GATE, REGRESSION, DataError, UsageError

if TYPE_CHECKING:
    from xstage_bench.judge.compare import Comparison, Side

_ACROSS = ["backend", "gpu", "schema"]


def _references() -> list[str]:
    from xstage_bench.judge.compare import references

    return sorted(references())


@click.command("compare", short_help="Compare two runs, or one with a shipped node.")
@click.argument("runs", type=MODEL, nargs=-1, metavar="[BASELINE] RUN")
@click.option("--reference", metavar="NAME", help="The baseline is this measured node, such as h200-nv18.", **completing(_references))
@click.option("--margin", callback=percent, default="5", show_default=True, metavar="PERCENT", help="The smallest change that matters.")
@click.option("--across", type=click.Choice(_ACROSS), multiple=True, help="Compare although this differs; repeatable.")
@click.option("--strict", is_flag=True, help="Exit 4 when nothing is worse but something is undetermined.")
@common
def command(out: Output, runs: tuple[Path, ...], reference: str | None, margin: float, across: tuple[str, ...], strict: bool) -> int:
    """Compare the fitted T0, R and Q of every pair of RUN with those of BASELINE, and the errors of its model on held-out schedules: same,
    better, worse or undetermined.

    Each is a fitted run folder or a model.json. Exit 5 when anything is worse.
    """
    from xstage_bench.judge.compare import compare, load_reference, load_side, refuse

    if len(runs) != (2 if reference is None else 1):
        raise UsageError(f"{len(runs)} runs were named", "xstage compare BASELINE RUN, or xstage compare RUN --reference NAME")
    baseline = load_side(runs[0]) if reference is None else load_reference(reference)
    side = load_side(runs[-1])
    refuse(baseline, side, across)
    if baseline.simulated != side.simulated:
        out.note(f"MIXED: {_label(baseline)} against {_label(side)}: a simulated number beside a measured one")
    with at_work(f"comparing {baseline.name} with {side.name}"):
        done = compare(baseline, side, margin=margin)
    if not done.differences:
        empty = baseline if not any(not p.is_local for p in baseline.model.pairs) else side
        raise DataError(f"nothing to compare: {empty.name} has no fitted pair of plain stores", "xstage run and xstage fit first")
    for note in done.notes:
        out.note(note)
    out.result(_document(done, across), _text(done))
    if done.verdict == "worse":
        return REGRESSION
    return GATE if strict and done.verdict == "undetermined" else 0


def _label(side: Side) -> str:
    return f"{side.name} ({'SIMULATED' if side.simulated else 'measured'})"


def _document(done: Comparison, across: tuple[str, ...]) -> dict[str, Any]:
    sides = {
        name: {"name": s.name, "backend": s.model.backend, "gpu": s.model.gpu, "simulated": s.simulated}
        for name, s in (("baseline", done.baseline), ("run", done.side))
    }
    counts = Counter(d.verdict for d in done.differences)
    rows = [asdict(d) for d in done.differences]
    head = {"across": list(across), "margin": done.margin, "verdict": done.verdict, "counts": dict(counts), "notes": list(done.notes)}
    return {**sides, **head, "differences": rows}


def _text(done: Comparison) -> str:
    rows = []
    for d in done.differences:
        change = None if d.change is None else f"{100 * d.change:+.2f} %"
        interval = None if d.low is None or d.high is None else f"{100 * d.low:+.2f} to {100 * d.high:+.2f} %"
        pair = d.pair if d.pair == d.baseline_pair else f"{d.pair} ({d.baseline_pair})"
        rows.append([d.verdict, pair, d.parameter, d.producers, d.warps, d.bytes, d.baseline, d.value, change, interval, d.reason or ""])
    head = ["", "pair", "parameter", "K", "W", "bytes", "baseline", "run", "change", "interval", ""]
    notes = "".join(f"note: {note}\n" for note in done.notes)
    return f"{_label(done.baseline)} -> {_label(done.side)}\n\n{table(head, rows)}\n\n{notes}{done.verdict}"
