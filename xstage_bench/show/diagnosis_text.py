"""A diagnosis as text and as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xstage_bench.model.advise.choose import TaskAdvice
from xstage_bench.model.diagnose.lost import CAUSES, Diagnosis
from xstage_bench.show.advice_text import tasks_document

_US = 1e-3


def diagnosis_document(found: Diagnosis, advice: TaskAdvice | None) -> dict[str, Any]:
    """Return a diagnosis as plain values; each part also as a share of the kernel's time."""
    parts = []
    for part in found.parts:
        shares = {f"share{end}": None if ns is None else ns / found.total_ns for end, ns in _ends(part)}
        parts.append({**asdict(part), **shares})
    whole = {k: v for k, v in asdict(found).items() if k not in ("parts", "notes")}
    share = None if found.lost_ns is None else found.lost_ns / found.total_ns
    advised = None if advice is None else tasks_document(advice)
    return {**whole, "lost_share": share, "parts": parts, "notes": list(found.notes), "advice": advised}


def diagnosis_text(found: Diagnosis, advice: TaskAdvice | None) -> str:
    """Return a diagnosis in a few lines: does it stall, where the time goes, what would help."""
    head = f"kernel {found.total_ns * _US:.1f} us"
    if found.local_ns is not None:
        head += f", with local stores {found.local_ns * _US:.1f} us"
    if found.lost_ns is not None:
        head += f": the stores cost {max(0.0, found.lost_ns) * _US:.1f} us, {_percent(found.lost_ns, found.total_ns)} of the time"
    lines = [head, f"stalls: {found.stalls}; {found.reason}"]
    for part in found.parts:
        if part.ns is None:
            lines.append(f"  {CAUSES[part.cause]:22}not determined: {part.evidence}")
            continue
        span = f"({_percent(part.low_ns, found.total_ns)} to {_percent(part.high_ns, found.total_ns)})"
        share = _percent(part.ns, found.total_ns)
        lines.append(f"  {CAUSES[part.cause]:22}{part.ns * _US:9.2f} us {share:>7} {span}; {part.evidence}")
    lines += [f"note: {note}" for note in found.notes]
    if advice is None:
        return "\n".join(lines)
    if not advice.helps:
        return "\n".join([*lines, f"nothing to change: {advice.reason}"])
    ends = advice.gain_interval
    words = "" if ends is None else f" (90 %: {ends[0]:.3f} to {ends[1]:.3f})"
    return "\n".join([*lines, f"advised: {advice.recipe.words()}; predicted gain {advice.gain:.3f} times{words}"])


def _ends(part: Any) -> list[tuple[str, float | None]]:
    return [("", part.ns), ("_low", part.low_ns), ("_high", part.high_ns)]


def _percent(ns: float | None, total_ns: float) -> str:
    return f"{100 * max(0.0, ns or 0.0) / total_ns:.1f} %"
