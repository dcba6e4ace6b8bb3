"""Simpler models on the same schedules: V/R alone, LogGP with its numbers fitted as ours are, and any per-burst predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.node.data import Measured
from xstage_bench.schedule.bursts import Schedule

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LogGP:
    """A burst costs o + max(g n W + e n, G V) cycles: overhead, gap per warp-store and per store of a warp, gap per byte of all producers.

    No capacity: a message pays its bytes at once, and nothing is carried over (Alexandrov et al. 1995).
    """

    overhead_cycles: float
    store_cycles: float
    warp_store_cycles: float
    cycles_per_byte: float


def fit_loggp(data: Measured) -> LogGP:
    """Fit the four numbers by least squares on log issue times, every schedule with the same weight."""
    from scipy.optimize import least_squares

    stores, warps, volume = _sizes(data.schedules)
    keep = np.isfinite(data.issue_cycles) & (volume > 0)
    goal = np.log(data.issue_cycles[keep])
    weight = 1 / np.sqrt(np.diff(data.first)[data.owner][keep])

    def residual(x: FloatArray) -> FloatArray:
        return (np.log(_loggp(LogGP(*np.exp(x)), stores[keep], warps[keep], volume[keep])) - goal) * weight

    found = least_squares(residual, np.log([50.0, 19.0, 8.0, 1 / 190.0]))
    return LogGP(*(float(v) for v in np.exp(found.x)))


def loggp_cycles(model: LogGP, schedules: Sequence[Schedule]) -> FloatArray:
    """Predict the issue time of every burst, schedule after schedule."""
    return np.where(_sizes(schedules)[2] > 0, _loggp(model, *_sizes(schedules)), 0.0)


def bandwidth_cycles(schedules: Sequence[Schedule], link_bytes_per_cycle: float) -> FloatArray:
    """V/R of every burst, schedule after schedule."""
    return np.asarray(_sizes(schedules)[2] / link_bytes_per_cycle)


def time_line_ns(schedules: Sequence[Schedule], issue_cycles: FloatArray, sm_clock_mhz: float) -> FloatArray:
    """Time line of each schedule when these are the issue times and all producers go in step."""
    out, at = np.zeros(len(schedules)), 0
    scale = 1e3 / sm_clock_mhz
    for k, s in enumerate(schedules):
        end = 0.0
        for i, burst in enumerate(s.bursts):
            issue = float(issue_cycles[at + i]) * scale
            if s.start == "timed":
                end = max(end, float(burst.start_ns)) + issue
            else:
                end += issue + (burst.gap_cycles * scale if s.start == "free" and i else 0.0)
        out[k] = end
        at += len(s.bursts)
    return out


def _loggp(model: LogGP, stores: FloatArray, warps: FloatArray, volume: FloatArray) -> FloatArray:
    sent = model.store_cycles * stores + model.warp_store_cycles * stores * (warps - 1)
    return model.overhead_cycles + np.maximum(sent, model.cycles_per_byte * volume)


def _sizes(schedules: Sequence[Schedule]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Stores per warp, warps, bytes of all producers; per burst."""
    stores = np.concatenate([s.stores_per_warp() for s in schedules]).astype(np.float64)
    warps = np.concatenate([np.full(len(s.bursts), float(s.warps)) for s in schedules])
    volume = np.concatenate([np.array([b.bytes for b in s.bursts], dtype=np.float64) * s.producer_count for s in schedules])
    return stores, warps, volume
