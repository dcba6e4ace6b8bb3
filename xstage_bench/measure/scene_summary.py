"""The repetitions of a scene, reduced to plain data: every number an Estimate with the spread between processes in its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.estimate import Estimate, over_processes
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.scenes import Scene, SceneTrace
from xstage_bench.schedule.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class SceneRepetition:
    """One repetition of a scene and the fresh process that it was measured in."""

    process: int
    trace: SceneTrace


def summarise(found: Sequence[SceneRepetition]) -> dict[str, Any]:
    """Reduce all repetitions of one scene.

    Returns
    -------
    dict
        Medians over the repetitions of a process, then the mean over processes with a t interval; null where a quantity does not
        exist. Repetitions that are not ``ok`` are counted by status and left out.
    """
    good = [m for m in found if m.trace.status == "ok"]
    scene = found[0].trace.scene
    left_out: dict[str, int] = {}
    for m in found:
        if m.trace.status != "ok":
            left_out[m.trace.status] = left_out.get(m.trace.status, 0) + 1
    head: dict[str, Any] = {"name": scene.name, "gap_work": scene.gap_work, "repetitions": len(good), "left_out": left_out}
    reasons = list(dict.fromkeys(t.detail for m in found for t in m.trace.traces if t.detail))
    if reasons:
        head["reasons"] = reasons[:3]
    if not good:
        return head

    def over(value: Callable[[SceneTrace], float], statistic: str) -> Estimate:
        return over_processes(np.array([value(m.trace) for m in good]), np.array([m.process for m in good]), statistic)

    head["overlap"] = float(np.median([m.trace.overlap() for m in good]))
    head["start_skew_bound_ns"] = float(np.max([m.trace.start_skew_bound_ns for m in good]))
    head["total_gb_per_s"] = over(total_gb_per_s, "all bytes stored over first start to last end")
    head["schedules"] = [_schedule(i, s, over) for i, s in enumerate(scene.schedules)]
    head["company"] = [_companion(scene, i, over) for i in range(len(scene.company))]
    return head


def total_gb_per_s(trace: SceneTrace) -> float:
    """All bytes stored over the time from the first start to the last end, 10^9 bytes per second; NaN without schedules."""
    if not trace.traces:
        return float("nan")
    volume = sum(b.bytes * t.schedule.producer_count for t in trace.traces for b in t.schedule.bursts)
    return float(volume / (max(t.end_ns.max() for t in trace.traces) - min(t.start_ns.min() for t in trace.traces)))


_Over = Callable[[Callable[[SceneTrace], float], str], Estimate]


def _schedule(index: int, s: Schedule, over: _Over) -> dict[str, Any]:
    n = len(s.bursts)
    # Steady state: the first bursts fill the stage, in the last ones some producers are already done.
    middle = slice(n // 4, max(n // 4 + 1, 3 * n // 4))

    def steady(values: NDArray[np.float64]) -> float:
        part = values[middle]
        return float(np.mean(part[np.isfinite(part)])) if np.isfinite(part).any() else float("nan")

    def cycles(trace: Trace, name: str) -> float:
        return steady(np.asarray(trace.summary()[name], dtype=float))

    def mean_ns(t: SceneTrace) -> float:
        return cycles(t.traces[index], "issue_mean_cycles") / t.traces[index].sm_clock_mhz * 1e3

    return {
        "source": s.source,
        "destination": s.destination,
        "producers": s.producer_count,
        "warps": s.warps,
        "start": s.start,
        "bursts": n,
        "bytes": s.bursts[n // 2].bytes,
        "asked_gap_cycles": s.bursts[n // 2].gap_cycles if s.start == "free" else None,
        "gb_per_s": over(lambda t: float(t.gb_per_s()[index]), "bytes over makespan"),
        "issue_mean_cycles": over(lambda t: cycles(t.traces[index], "issue_mean_cycles"), "mean over producers"),
        "issue_max_cycles": over(lambda t: cycles(t.traces[index], "issue_max_cycles"), "slowest producer"),
        "issue_mean_ns": over(mean_ns, "mean over producers"),
        "gap_mean_cycles": over(lambda t: cycles(t.traces[index], "gap_mean_cycles"), "mean over producers"),
        "drain_mean_cycles": over(lambda t: float(t.traces[index].summary()["drain_mean_cycles"][-1]), "after the last burst"),
        "sm_clock_mhz": over(lambda t: t.traces[index].sm_clock_mhz, "around the repetition"),
        "gap_work_ops": over(lambda t: float(t.gap_work_ops[index]), "per warp, all gaps"),
    }


def _companion(scene: Scene, index: int, over: _Over) -> dict[str, Any]:
    c = scene.company[index]
    return {
        "kind": c.kind,
        "gpu": c.gpu,
        "other": c.other,
        "sms": len(c.smids),
        "warps": c.warps,
        "footprint_bytes": c.footprint_bytes,
        "gb_per_s": over(lambda t: float(t.company_gb_per_s()[index]), "while the schedules were under way"),
    }
