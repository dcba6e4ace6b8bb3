"""What was imported, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xstage_bench.schedule.trace import Trace

_BURSTS_SHOWN = 16


def summary_of(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the schedule's shape, and per burst the issue time: mean over producers, median over launches."""
    schedule = traces[0].schedule
    issue = np.median([t.issue_cycles.mean(axis=1) for t in traces], axis=0)
    gaps = [None, *np.median([t.gap_cycles[1:].mean(axis=1) for t in traces], axis=0).tolist()]
    return {
        "pair": f"{schedule.source}>{schedule.destination}",
        "producers": schedule.producer_count,
        "warps": schedule.warps,
        "warps_meet": schedule.warps_meet,
        "launches": len(traces),
        "sm_clock_mhz": float(np.median([t.sm_clock_mhz for t in traces])),
        "bursts": [
            {"bytes": b.bytes, "gap_cycles": gap, "issue_mean_cycles": float(c)}
            for b, gap, c in zip(schedule.bursts, gaps, issue, strict=True)
        ],
    }


def text_of(document: dict[str, Any]) -> str:
    """Return the summary for people."""
    lines = []
    if "bursts" in document:
        d = document
        lines.append(
            f"pair {d['pair']}, {d['producers']} producers x {d['warps']} warps, {d['launches']} launches, {d['sm_clock_mhz']:.0f} MHz"
        )
        if not d["warps_meet"]:
            lines.append("a warp begins its next burst before all have ended the last one: outside what the models describe (warps_meet)")
        for i, b in enumerate(d["bursts"][:_BURSTS_SHOWN]):
            gap = "" if b["gap_cycles"] is None else f", {b['gap_cycles']:.0f} cycles after the one before"
            lines.append(f"burst {i}: {b['bytes']} bytes per producer in {b['issue_mean_cycles']:.0f} cycles{gap}")
        if len(d["bursts"]) > _BURSTS_SHOWN:
            lines.append(f"... and {len(d['bursts']) - _BURSTS_SHOWN} more bursts; --json has all")
    lines += [f"{name}: {document[name]}" for name in ("run", "schedule", "tasks") if name in document]
    return "\n".join(lines)
