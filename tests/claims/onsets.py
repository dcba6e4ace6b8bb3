"""Onset, recovery gap and transient: three things a kernel author asks for, read off measured and predicted schedules in the same way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import predict_node

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One reading, measured and predicted; None where the data shows none. `what` is ``onset``, ``recovery`` or ``transient``.

    onset: the smallest burst, in warp-stores per warp, whose mean issue time is 1.1 T0. recovery: the gap in cycles at which the falling
    line of issue time against gap meets T0. transient: the free bursts at the beginning of a timed train; `factor` is its period over V/R.
    """

    what: str
    producers: int
    stores: int
    factor: float | None
    measured: float | None
    predicted: float | None

    @property
    def within(self) -> bool | None:
        """Whether the prediction is near enough: max(1, 5 %), 5 %, max(1, 20 %); None when there is nothing to compare."""
        if self.measured is None or self.predicted is None:
            return None if self.measured is None else False
        slack = {"onset": max(1.0, 0.05 * self.measured), "recovery": 0.05 * self.measured, "transient": max(1.0, 0.2 * self.measured)}
        return bool(abs(self.predicted - self.measured) <= slack[self.what])


def onset_readings(model: NodeModel, data: MeasuredSchedules) -> list[Found]:
    """Read all three off the probe ``onset``: isolated bursts at steps of one warp-store, equal free bursts at gaps, timed trains."""
    predicted = predict_node(model, data.schedules, sm_clock_mhz=data.sm_clock_mhz)
    issue, real, t0 = predicted.issue_cycles, data.issue_cycles, predicted.t0_cycles
    out: list[Found] = []
    groups: dict[tuple[str, int, int], list[int]] = {}
    for i, s in enumerate(data.schedules):
        stores = 0 if s.start == "isolated" else int(s.stores_per_warp()[0])
        groups.setdefault((s.start, s.producer_count, stores), []).append(i)
    for (start, producers, stores), members in sorted(groups.items()):
        first = data.first[members]
        if start == "isolated":
            size = np.array([int(data.schedules[i].stores_per_warp()[0]) for i in members])
            readings = [_smallest(size, x[first] / t0[first]) for x in (real, issue)]
            out.append(Found(what="onset", producers=producers, stores=0, factor=None, measured=readings[0], predicted=readings[1]))
        elif start == "free":
            gap = np.array([data.schedules[i].bursts[1].gap_cycles for i in members], dtype=np.float64)
            steady = [np.array([np.median(x[data.first[i] + 4 : data.first[i + 1]]) for i in members]) for x in (real, issue)]
            flat = float(np.median(t0[first]))
            line = [_meets(gap, x, flat) for x in steady]
            out.append(Found(what="recovery", producers=producers, stores=stores, factor=None, measured=line[0], predicted=line[1]))
        else:
            for i in members:
                s = data.schedules[i]
                span = slice(int(data.first[i]), int(data.first[i + 1]))
                volume = producers * s.bursts[0].bytes
                factor = s.bursts[1].start_ns * model.link_gb_per_s / volume
                counts = [_free_bursts(x[span] / t0[span]) for x in (real, issue)]
                out.append(
                    Found(what="transient", producers=producers, stores=stores, factor=factor, measured=counts[0], predicted=counts[1])
                )
    return out


def _smallest(size: NDArray[np.int64], ratio: FloatArray) -> float | None:
    over = size[ratio >= STALLED]
    return float(over.min()) if over.size else None


def _meets(gap: FloatArray, issue: FloatArray, flat: float) -> float | None:
    """Where the straight line through the stalled points meets T0; None with fewer than three of them."""
    stalled = (issue > STALLED * flat) & np.isfinite(issue)
    if stalled.sum() < 3:
        return None
    slope, level = np.polyfit(gap[stalled], issue[stalled], 1)
    return float((flat - level) / slope) if slope < 0 else None


def _free_bursts(ratio: FloatArray) -> float:
    stalled = np.flatnonzero(ratio >= STALLED)
    return float(stalled[0] if stalled.size else ratio.size)
