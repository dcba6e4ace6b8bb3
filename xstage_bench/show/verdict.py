"""The report's answer: for who writes a kernel, four numbers of two pairs; for who runs the node, pass or not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from xstage_bench.errors import XStageError
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.headline import headline_entry, headline_rate
from xstage_bench.model.predict import predict_all
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.show.html import Table
from xstage_bench.show.report_tables import MISSING, estimate, number, percent

if TYPE_CHECKING:
    from xstage_bench.machine.finding import Finding
    from xstage_bench.model.document import Model, PairModel
    from xstage_bench.model.prediction import PredictedSchedule
    from xstage_bench.record.manifest import Manifest

#: The burst whose gap and stall are quoted, and how many follow each other.
QUOTED_BYTES, BURSTS = 32 << 10, 12
LARGEST_BYTES, STEPS = 256 << 10, 48
#: From so many GPUs on, the matrix has cells without numbers.
COMPACT_ABOVE = 16
#: Of the median rate: below it a cell is marked, twice as far below it is marked strongly.
SLOW = 0.03


@dataclass(frozen=True, slots=True)
class Answer:
    """What the operator is told: the verdict, and why in one sentence."""

    status: Literal["pass", "fail", "undetermined"]
    why: str


def arrow(pair: str) -> str:
    """Return "0>1" as "0 → 1", and the host by its name."""
    return pair.replace(f">{HOST}", " → host memory").replace(">", " → ")


def ranked(model: Model, manifest: Manifest) -> list[PairModel]:
    """Return the remote pairs that have a rate, slowest first."""
    found = {p.pair: p for p in reversed(model.pairs) if not p.is_local and p.pair not in manifest.failed_pairs and _rate(p) is not None}
    return sorted(found.values(), key=lambda p: (_rate(p) or 0.0, p.pair))


def _rate(pair: PairModel) -> float | None:
    rate = headline_rate(pair)
    return None if rate is None else rate[0].value


def answer(model: Model, manifest: Manifest, judgement: Sequence[Finding]) -> Answer:
    """Return the operator's verdict: what is certain to be wrong comes before what is not known."""
    slowest = next(iter(ranked(model, manifest)), None)
    failed, missed = sorted(manifest.failed_pairs.items()), [f for f in judgement if f.status == "fail"]
    risen = sum(n for counts in (manifest.link_error_deltas or {}).values() for n in counts.values() if n)
    if failed:
        return Answer("fail", f"pair {arrow(failed[0][0])} failed: {failed[0][1]}")
    if missed:
        return Answer("fail", f"the {arrow(missed[0].check)} missed its own hold-out: {missed[0].detail}")
    if slowest is None:
        return Answer("undetermined", "no pair has a drain rate")
    which = f"the slowest pair, {arrow(slowest.pair)}, drains {number(_rate(slowest))} GB/s"
    if risen:
        return Answer("fail", f"link error counters rose by {number(risen, 9)} during the run; {which}")
    if not manifest.complete:
        return Answer("undetermined", f"the run was interrupted; {which}")
    unsure = next((f for f in judgement if f.status == "warn"), None)
    if unsure is not None or not judgement:
        return Answer("undetermined", f"{which}; {arrow(unsure.check) + ' ' + unsure.detail if unsure else 'no model was judged'}")
    return Answer("pass", f"{which}, and every model passed its own hold-out")


def author_table(model: Model, manifest: Manifest) -> Table | None:
    """Return the four numbers that a kernel is written by, of the worst and of the best pair."""
    pairs = ranked(model, manifest)
    chosen = [("worst", pairs[0]), ("best", pairs[-1])] if len(pairs) > 1 else [("only", p) for p in pairs]
    rows = [row for name, pair in chosen if (row := _author_row(model, name, pair))]
    columns = ["pair", "free burst per SM", "gap that frees 32 KiB", "R (GB/s)", "back to back, 32 KiB take"]
    note = "All SMs, {} warps each. Free: less than {:g} T0. Predicted by the model of this run.".format(
        " or ".join(dict.fromkeys(str(_shape(p)[1]) for _, p in chosen)), STALLED
    )
    return Table("For a kernel's author", columns, rows, note) if rows else None


def _shape(pair: PairModel) -> tuple[int, int]:
    entry = headline_entry(pair)
    return (1, 1) if entry is None else (entry.producers, entry.warps)


def _author_row(model: Model, name: str, pair: PairModel) -> list[str] | None:
    producers, warps = _shape(pair)
    rate = headline_rate(pair)
    source, _, destination = pair.pair.partition(">")
    step = 512 * warps
    base = Schedule((Burst(step),), producers, warps, int(source), int(destination), "free", pair.flavour, pair.layout)
    sizes = range(step, LARGEST_BYTES + 1, step)
    quoted = max(step, QUOTED_BYTES // step * step)
    per_us = 1 / model.sm_clock_mhz

    def trains(size: int) -> tuple[str, PredictedSchedule]:
        """Return the least gap at which none of these bursts stalls, and the bursts with none."""
        longest = 2.0 * producers * size / (_rate(pair) or 1.0) / per_us / 1e3
        gaps = [round(i * longest / STEPS) for i in range(STEPS + 1)]
        found = predict_all(model, [replace(base, bursts=(Burst(size, gap),) * BURSTS) for gap in gaps])
        enough = next((g for g, p in zip(gaps, found, strict=True) if "stalled" not in p.regime), None)
        return "none" if enough is None else f"{number(enough * per_us, 2)} µs", found[0]

    try:
        alone = predict_all(model, [replace(base, start="isolated", bursts=tuple(map(Burst, sizes)))])[0]
        free = next((sizes[i - 1] if i else 0 for i, r in enumerate(alone.regime) if r == "stalled"), None)
        gap, packed = trains(quoted)
        if gap == "none" and free:
            gap = f"none: it stalls alone ({free / 1024:g} KiB: {trains(free)[0]})"
    except XStageError:
        return None
    worst = int(packed.issue_cycles.argmax())
    took, instead = packed.issue_cycles[worst] * per_us, packed.t0_cycles[worst] * per_us
    return [
        f"{name}: {arrow(pair.pair)}",
        f"all up to {LARGEST_BYTES >> 10} KiB" if free is None else f"{free / 1024:g} KiB",
        gap,
        MISSING if rate is None else estimate(rate[0]),
        f"{number(took, 2)} µs, not {number(instead, 2)}",
    ]


def matrix(model: Model, manifest: Manifest) -> dict[str, Any] | None:
    """Return the rates of all ordered pairs as rows of cells, each with its text, class, pair and words; None for a single pair."""
    gpus = [g.index for g in manifest.node.gpus]
    pairs = {p.pair: p for p in ranked(model, manifest)}
    if len(gpus) < 2 or not pairs:
        return None
    rates = sorted(_rate(p) or 0.0 for p in pairs.values())
    middle = rates[len(rates) // 2]

    def cell(source: int, destination: int) -> dict[str, str]:
        key = f"{source}>{destination}"
        if source == destination:
            return {"text": "", "kind": "own", "pair": "", "words": "own memory"}
        if key in manifest.failed_pairs:
            return {"text": "failed", "kind": "failed", "pair": "", "words": f"{arrow(key)}: failed"}
        if key not in pairs:
            return {"text": MISSING, "kind": "none", "pair": "", "words": f"{arrow(key)}: not measured"}
        rate = _rate(pairs[key]) or 0.0
        kind = "far" if rate < (1 - 2 * SLOW) * middle else "slow" if rate < (1 - SLOW) * middle else "usual"
        return {"text": number(rate), "kind": kind, "pair": key, "words": f"{arrow(key)}: {number(rate)} GB/s"}

    cells = [[cell(s, d) for d in gpus] for s in gpus]
    rows = [{"gpu": s, "cells": line} for s, line in zip(gpus, cells, strict=True)]
    slow = sum(c["kind"] in ("slow", "far", "failed") for line in cells for c in line)
    spread = f"{number(rates[0])} to {number(rates[-1])} GB/s, median {number(middle)}"
    said = f"{len(pairs)} pairs, {spread}; {slow} below {percent(1 - SLOW, 0)} of it or failed"
    return {"gpus": gpus, "rows": rows, "compact": len(gpus) > COMPACT_ABOVE, "said": said}
