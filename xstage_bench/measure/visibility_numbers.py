"""Sightings to numbers: the drain curve, the bytes under way, round trips; each with an interval from whole repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.machine.gpus import Default
from xstage_bench.schedule.watches import WARMUP, Sighting

_REPLICAS = 400
_GRID = 80
#: A flag counts as sent behind a full backlog from here on: after the free part of a burst, before the first producer is done. And an SM's
#: own stores count as drained so long after its last one was issued.
FULL_AFTER_NS, DRAINED_AFTER_NS = 12_000.0, 15_000.0
_SURVEY = "results/h200-x2/visibility: bursts of 512 KiB and 1 MiB by 8 to 132 SMs"
TUNED: tuple[Default, ...] = (
    Default(name="backlog full after", value=FULL_AFTER_NS, unit="ns", source=_SURVEY),
    Default(name="own stores drained after", value=DRAINED_AFTER_NS, unit="ns", source=_SURVEY),
)


@dataclass(frozen=True, slots=True)
class RepetitionSpread:
    """Median over all values, its 95 % interval by resampling whole repetitions, the 10th and 90th percentile, and how many values."""

    median: float | None
    low: float | None
    high: float | None
    p10: float | None
    p90: float | None
    n: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON, to one decimal."""
        return {k: getattr(self, k) for k in ("median", "low", "high", "p10", "p90", "n")}


def spread(groups: Sequence[NDArray[np.float64]], *, seed: int = 0) -> RepetitionSpread:
    """Reduce values that belong to repetitions.

    Parameters
    ----------
    groups : sequence of ndarray
        One per repetition; NaN is left out.
    """
    kept = [g[np.isfinite(g)] for g in groups]
    kept = [g for g in kept if g.size]
    if not kept:
        return RepetitionSpread(None, None, None, None, None, 0)
    every = np.concatenate(kept)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(kept), (_REPLICAS, len(kept)))
    medians = [np.median(np.concatenate([kept[i] for i in row])) for row in picks]
    low, high = np.percentile(medians, [2.5, 97.5]) if len(kept) > 1 else (None, None)
    p10, middle, p90 = np.percentile(every, [10, 50, 90])
    numbers = [None if v is None else round(float(v), 1) for v in (middle, low, high, p10, p90)]
    return RepetitionSpread(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], every.size)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Bytes issued and bytes visible against time, and what follows from them.

    Parameters
    ----------
    at_ns : ndarray, shape (80,)
    issued_bytes, visible_bytes : ndarray, shape (80,)
        Mean over repetitions. A byte is visible when the destination could have read it: the answer's way back, half of the idle round
        trip in the same launch, is taken off.
    echo_ns : float
        What was taken off.
    plateau_bytes, peak_bytes : RepetitionSpread
        Issued minus visible: median while every producer is still issuing (from 30 % of that time on), and the most at any time.
    end_bytes : RepetitionSpread
        Issued minus visible when the last producer has issued its last store.
    drain_gb_per_s : RepetitionSpread
        Slope of the visible bytes from 10 % to 90 % of the volume.
    first_ns : RepetitionSpread
        From the issue of a watched store, with nothing before it, to its visibility: over producers, the earliest.
    tail_ns : RepetitionSpread
        From the last store's issue to the visibility of the last byte: the drain as the destination sees it.
    """

    at_ns: NDArray[np.float64]
    issued_bytes: NDArray[np.float64]
    visible_bytes: NDArray[np.float64]
    echo_ns: float
    plateau_bytes: RepetitionSpread
    peak_bytes: RepetitionSpread
    end_bytes: RepetitionSpread
    drain_gb_per_s: RepetitionSpread
    first_ns: RepetitionSpread
    tail_ns: RepetitionSpread


def curve_of(sighting: Sighting) -> Curve:
    """Reduce a sighting of mode ``curve``."""
    watch = sighting.watch
    echo_ns = float(np.median(sighting.idle_round_trip_cycles())) / sighting.sm_clock_mhz * 1e3 / 2
    r = watch.repetitions - WARMUP
    seen_ns, issued_ns, end_ns = (a[WARMUP:] for a in (sighting.seen_ns, sighting.issued_ns, sighting.end_ns))
    unit, marked = 4 * watch.schedule.warp_store_bytes, watch.stride * watch.schedule.warp_store_bytes
    issued = np.sort(issued_ns.reshape(r, -1), axis=1)
    visible = np.sort((seen_ns - echo_ns).reshape(r, -1), axis=1)
    volume = float(issued.shape[1] * unit)
    grid = np.linspace(0.0, float(np.median(visible[:, -1])) * 1.05, _GRID)
    rows: dict[str, list[float]] = {n: [] for n in ("plateau", "peak", "end", "rate", "first", "tail")}
    sums = np.zeros((2, _GRID))
    for i in range(r):
        t_issued, t_visible = issued[i], visible[i]
        # At each issue: the moments when it is largest.
        under_way = _count(t_issued, t_issued) * unit - _count(t_visible, t_issued) * marked
        until = float(end_ns[i].min())
        busy = (t_issued > 0.3 * until) & (t_issued < until)
        rows["plateau"].append(float(np.median(under_way[busy])) if busy.any() else np.nan)
        rows["peak"].append(float(under_way.max()))
        rows["end"].append(volume - float(_count(t_visible, np.array([t_issued[-1]]))[0] * marked))
        low, high = (int(f * (t_visible.size - 1)) for f in (0.1, 0.9))
        seconds = t_visible[high] - t_visible[low]
        rows["rate"].append((high - low) * marked / seconds if seconds > 0 else np.nan)
        groups = max(watch.stride // 4, 1)
        rows["first"].append(float(np.min(seen_ns[i, ..., 0] - echo_ns - issued_ns[i, ..., groups - 1])))
        rows["tail"].append(float(t_visible[-1] - t_issued[-1]))
        sums += [_count(t_issued, grid) * unit, _count(t_visible, grid) * marked]
    made = {n: spread([np.array([v]) for v in values]) for n, values in rows.items()}
    return Curve(
        grid, sums[0] / r, sums[1] / r, echo_ns, made["plateau"], made["peak"], made["end"], made["rate"], made["first"], made["tail"]
    )


def _count(events: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.searchsorted(events, at, side="right").astype(np.float64)


def behind_backlog(sighting: Sighting) -> NDArray[np.bool_]:
    """Which flags or messages were sent while every producer was still issuing behind a full backlog; shape (R, pings). No warm-up."""
    until = sighting.end_ns.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        which = np.asarray((sighting.at_ns > FULL_AFTER_NS) & (sighting.at_ns < until))
    which[:WARMUP] = False
    return which


def own_sm_drained(sighting: Sighting) -> NDArray[np.bool_]:
    """Which flags were sent `DRAINED_AFTER_NS` after the end of the producer on the prober's own SM, while others were still issuing."""
    own = np.flatnonzero(sighting.smids == sighting.prober_smid)
    which = np.zeros(sighting.at_ns.shape, dtype=np.bool_)
    if own.size:
        after = sighting.end_ns[:, own[:1]] + DRAINED_AFTER_NS
        with np.errstate(invalid="ignore"):
            which = np.asarray((sighting.at_ns > after) & (sighting.at_ns < sighting.end_ns.max(axis=1, keepdims=True)))
        which[:WARMUP] = False
    return which


def chosen(values: NDArray[np.float64], which: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Values by repetition, only where `which`."""
    return [row[mask] for row, mask in zip(values, which, strict=True)]
