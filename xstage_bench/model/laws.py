"""How well each closed form holds in its own regime: isolated, periodic and timed bursts, by K."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.burst_gap import STALLED, is_free_of_backpressure, ns_to_cycles, periodic_issue_ns
from xstage_bench.model.cells import cells
from xstage_bench.model.document import BurstGap, IsolatedLaw, PairModel, PeriodicLaw, TimedStall
from xstage_bench.model.interpolate import law_at
from xstage_bench.model.knee import law
from xstage_bench.model.periodic import steady
from xstage_bench.model.resample import typical
from xstage_bench.schedule.bursts import WARP_STORE_BYTES

if TYPE_CHECKING:
    import pandas as pd

#: Timed schedules are judged with a period in this range of V/R, and further than this from V/R itself.
PERIODS = (0.67, 1.5)
NOT_ON_THE_BOUNDARY = 0.05


def isolated_laws(model: PairModel, rows: pd.DataFrame) -> list[IsolatedLaw]:
    """Error of the fitted law on isolated bursts of each (K, W); `rows` are valid rows of the pair."""
    out = []
    for cell in cells(rows, _processes(rows)):
        entry = model.find(cell.producers, cell.warps)
        theta = None if entry is None else _theta(entry, model.flavour)
        if theta is None:
            continue
        measured = typical(cell.issue_mean_cycles)
        error = np.abs(law(theta, cell.stores) - measured) / measured
        out.append(
            IsolatedLaw(
                pair=model.pair,
                producers=cell.producers,
                warps=cell.warps,
                n_points=int(error.size),
                median_error=float(np.median(error)),
                p95_error=float(np.quantile(error, 0.95)),
            )
        )
    return out


def periodic_laws(model: PairModel, rows: pd.DataFrame, sm_clock_mhz: float) -> list[PeriodicLaw]:
    """Error of max(T0, V/R - G) where measured bursts take 1.1 T0 or more.

    R is that of the (K, W), T0 the large-gap plateau (where that gap was too short, T0(n)), G the measured gap, and the measured time
    the mean over the steady bursts, median over repetitions. One point is one schedule.
    """
    reduced = steady(rows)
    if not len(reduced):
        return []
    points = reduced.groupby(["producers", "warps", "bytes", "asked_gap_cycles"], sort=True)[["issue_cycles", "gap_cycles"]].median()
    plateaus = {(p.producers, p.warps, p.bytes): p.issue_cycles.value for p in model.plateaus}
    errors: dict[int, list[float]] = {}
    axes = np.array(points.index.to_list(), dtype=np.int64)
    for (producers, warps, size, _), (issue, gap) in zip(axes.tolist(), points.to_numpy(dtype=np.float64).tolist(), strict=True):
        entry = model.find(producers, warps)
        errors.setdefault(producers, [])
        rate = None if entry is None else entry.drain_gb_per_s.value
        t0 = plateaus.get((producers, warps, size)) or (None if entry is None else _free_cycles(entry, size, model.flavour))
        if not rate or t0 is None or issue < STALLED * t0:
            continue
        per_cycle = 1e3 / sm_clock_mhz
        predicted = ns_to_cycles(periodic_issue_ns(t0 * per_cycle, producers * size, rate, gap * per_cycle), sm_clock_mhz)
        errors[producers].append(abs(float(predicted) - issue) / issue)
    return [
        PeriodicLaw(
            pair=model.pair,
            producers=k,
            n_points=len(e),
            median_error=float(np.median(e)) if e else None,
            p90_error=float(np.quantile(e, 0.9)) if e else None,
        )
        for k, e in sorted(errors.items())
    ]


def timed_stalls(model: PairModel, rows: pd.DataFrame, sm_clock_mhz: float) -> list[TimedStall]:
    """Stall or no stall of equal bursts on a common deadline, by K, and of all K together.

    Measured: the mean over the last quarter of the bursts exceeds 1.1 times the unstalled time, which is that of the isolated burst of the
    same size where one below the knee was measured, else T0(n). Predicted: the average or the single burst does not fit,
    V/R > period or [V - R*T0]+ > Q. Only periods in `PERIODS` of V/R and further than `NOT_ON_THE_BOUNDARY` from it count.
    """
    timed = rows[(rows["probe"] == "timed") & (rows["start"] == "timed") & (rows["bursts"] >= 4) & (rows["bytes"] > 0)]
    if not len(timed):
        return []
    period = timed[timed["burst"] == 1].groupby("schedule")["start_ns"].first()
    late = timed[timed["burst"] >= timed["bursts"] - np.maximum(1, timed["bursts"] // 4)]
    by_execution = late.groupby(["schedule", "producers", "warps", "bytes", "process", "repetition"])["issue_mean_cycles"].mean()
    points = by_execution.groupby(level=["schedule", "producers", "warps", "bytes"]).median()
    unstalled = _unstalled(model, rows)
    counts: dict[int, list[tuple[bool, bool]]] = {}
    for (schedule, producers, warps, size), issue in zip(points.index.to_list(), points.to_numpy(dtype=np.float64).tolist(), strict=True):
        entry = model.find(int(producers), int(warps))
        seen = counts.setdefault(int(producers), [])
        if entry is None or schedule not in period.index:
            continue
        t0 = _free_cycles(entry, int(size), model.flavour)
        rate = entry.drain_gb_per_s.value or law_at(model, int(producers), int(warps), sm_clock_mhz).drain_gb_per_s
        if t0 is None or not np.isfinite(rate):
            continue
        volume, period_ns = float(producers * size), float(period[schedule])
        share = period_ns * rate / volume
        if not PERIODS[0] <= share <= PERIODS[1] or abs(share - 1) <= NOT_ON_THE_BOUNDARY:
            continue
        t0_ns = t0 * 1e3 / sm_clock_mhz
        capacity = entry.capacity_bytes.value
        free = is_free_of_backpressure(t0_ns, volume, rate, np.inf if capacity is None else capacity, period_ns - t0_ns)
        measured = issue > STALLED * unstalled.get((int(producers), int(warps), int(size)), t0)
        seen.append((bool(measured), not bool(free)))
    found: list[tuple[int | None, list[tuple[bool, bool]]]] = [*sorted(counts.items()), (None, [x for v in counts.values() for x in v])]
    return [_timed(model.pair, k, np.array(v, dtype=bool).reshape(-1, 2)) for k, v in found]


def balanced_accuracy(measured: BoolArray, predicted: BoolArray) -> float | None:
    """Mean of the shares of true and of false ones predicted right; None when one kind is absent."""
    if measured.all() or not measured.any():
        return None
    return float((predicted[measured].mean() + (~predicted[~measured]).mean()) / 2)


def _timed(pair: str, producers: int | None, found: BoolArray) -> TimedStall:
    measured, predicted = found[:, 0], found[:, 1]
    return TimedStall(
        pair=pair,
        producers=producers,
        n_stalled=int(measured.sum()),
        n_free=int((~measured).sum()),
        balanced_accuracy=balanced_accuracy(measured, predicted) if len(found) else None,
    )


def _unstalled(model: PairModel, rows: pd.DataFrame) -> dict[tuple[int, int, int], float]:
    """Measured issue time of isolated bursts below the knee, by (K, W, bytes)."""
    out = {}
    for cell in cells(rows, _processes(rows)):
        entry = model.find(cell.producers, cell.warps)
        if entry is None:
            continue
        knee = entry.knee_bytes.value
        sizes = cell.stores * cell.warps * WARP_STORE_BYTES[model.flavour]
        for size, cycles in zip(sizes.tolist(), typical(cell.issue_mean_cycles).tolist(), strict=True):
            if knee is None or size < knee:
                out[cell.producers, cell.warps, int(size)] = cycles
    return out


def _processes(rows: pd.DataFrame) -> IntArray:
    return np.unique(rows["process"].to_numpy(dtype=np.int64))


def _theta(entry: BurstGap, flavour: str) -> FloatArray | None:
    base, free = entry.issue_base_cycles.value, entry.issue_cycles_per_warp_store.value
    if base is None or free is None:
        return None
    slope, knee = entry.stalled_cycles_per_warp_store.value, entry.knee_bytes.value
    theta = np.full(6, np.nan)
    theta[:2] = base, free
    if slope is not None and knee is not None:
        theta[2:4] = slope - free, knee / (entry.warps * WARP_STORE_BYTES[flavour])
    return theta


def _free_cycles(entry: BurstGap, size: int, flavour: str) -> float | None:
    theta = _theta(entry, flavour)
    return None if theta is None else float(theta[0] + theta[1] * size / (entry.warps * WARP_STORE_BYTES[flavour]))
