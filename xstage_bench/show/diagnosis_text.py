"""A diagnosis as text and as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xstage_bench.model.advise.choose import TaskAdvice
from xstage_bench.model.advise.job import JobAdvice
from xstage_bench.model.diagnose.lost import CAUSES, Diagnosis
from xstage_bench.show.advice_text import gain_words, job_document, job_lines, tasks_document

_US = 1e-3


def diagnosis_document(found: Diagnosis, advice: JobAdvice | TaskAdvice | None) -> dict[str, Any]:
    """Return a diagnosis as plain values; each part also as a share of the kernel's time."""
    parts = []
    for part in found.parts:
        shares = {f"share{end}": None if ns is None else ns / found.total_ns for end, ns in _ends(part)}
        parts.append({**asdict(part), **shares})
    whole = {k: v for k, v in asdict(found).items() if k not in ("parts", "notes")}
    share = None if found.lost_ns is None else found.lost_ns / found.total_ns
    if isinstance(advice, JobAdvice):
        job = job_document(advice)
        advised: Any = {**job.pop("tasks"), "closed_form": job}
    else:
        advised = None if advice is None else tasks_document(advice)
    return {**whole, "lost_share": share, "parts": parts, "notes": list(found.notes), "advice": advised}


def diagnosis_text(found: Diagnosis, advice: JobAdvice | TaskAdvice | None) -> str:
    """Return a diagnosis in a few lines: does it stall, where the time goes, what would help."""
    head = f"kernel {found.total_ns * _US:.1f} us"
    if found.local_ns is not None:
        head += f", with local stores {found.local_ns * _US:.1f} us"
    if found.lost_ns is not None:
        head += f": the stores cost {max(0.0, found.lost_ns) * _US:.1f} us, {_percent(found.lost_ns, found.total_ns)} of the time"
    lines = [head, f"stalls: {found.stalls}; {found.reason}"]
    unknown: dict[str, list[str]] = {}
    for part in found.parts:
        if part.ns is None:
            unknown.setdefault(part.evidence, []).append(CAUSES[part.cause])
            continue
        span = f"({_percent(part.low_ns, found.total_ns)} to {_percent(part.high_ns, found.total_ns)})"
        share = _percent(part.ns, found.total_ns)
        lines.append(f"  {CAUSES[part.cause]:22}{part.ns * _US:9.2f} us {share:>7} {span}; {part.evidence}")
    lines += [f"  not determined: {', '.join(causes)}; {why}" for why, causes in unknown.items()]
    lines += [f"note: {note}" for note in found.notes]
    if isinstance(advice, JobAdvice):
        lines += job_lines(advice)
        advice = advice.tasks
    if advice is not None and not advice.helps:
        lines.append(f"nothing to change: {advice.reason}")
    elif advice is not None:
        lines.append(f"advised: {advice.recipe.words()}; predicted gain {gain_words(advice)}")
    return "\n".join(lines)


def _ends(part: Any) -> list[tuple[str, float | None]]:
    return [("", part.ns), ("_low", part.low_ns), ("_high", part.high_ns)]


def _percent(ns: float | None, total_ns: float) -> str:
    return f"{100 * max(0.0, ns or 0.0) / total_ns:.1f} %"
