"""One stage of K producers as a scheduler uses it: T0, R and Q with their intervals, and what follows for one more burst.

A `Stage` is what `xstage export` writes. ``cuda/xstage_stage.cuh`` has the same numbers and the same functions for C++ and CUDA; a test
compiles it and compares both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import Literal

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.document import BurstGap, Model, PairModel
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.interpolate import law_at
from xstage_bench.model.sms import sms_of
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What lies behind K producers of one pair, flavour and layout, when each stores with W warps.

    Sizes of bursts are bytes per producer; backlog and capacity are of all producers together. Times are SM cycles.

    Parameters
    ----------
    pair, flavour, layout : str
    producers, warps : int
        K and W.
    warp_store_bytes : int
        Bytes of one warp-store; a burst has whole warp-stores of all warps.
    sm_clock_mhz : float
        Of the calibration: it converts GB/s to bytes per cycle.
    bytes : int
        Reference burst per producer, at which `t0_cycles` stands.
    t0_cycles, drain_gb_per_s, capacity_bytes : Estimate
        T0, R and Q as fitted; null with a reason where the data does not determine them.
    limited_by : {'producer', 'link'} or None
        Whose rate R is; null where nothing saturates.
    issue_base_cycles, issue_cycles_per_store : float
        T0 of a burst of n warp-stores per warp: base + n * cycles.
    rate_gb_per_s : float or None
        At which the stage drains, where R itself is not identified taken from other counts of producers; null where none is known.
    stalled_gb_per_s, stalled_capacity_bytes : float or None
        The line of a stalled burst, mean over producers: (V - capacity)/rate. Null where no sweep saturated: nothing stalls.
    median_error, p90_error : float or None
        Of the law on the isolated bursts that it was fitted to.
    """

    pair: str
    flavour: str
    layout: str
    producers: int
    warps: int
    warp_store_bytes: int
    sm_clock_mhz: float
    bytes: int
    t0_cycles: Estimate
    drain_gb_per_s: Estimate
    capacity_bytes: Estimate
    limited_by: Literal["producer", "link"] | None
    issue_base_cycles: float
    issue_cycles_per_store: float
    rate_gb_per_s: float | None
    stalled_gb_per_s: float | None
    stalled_capacity_bytes: float | None
    median_error: float | None
    p90_error: float | None

    @property
    def step_bytes(self) -> int:
        """One warp-store of every warp: bursts are multiples of it."""
        return self.warps * self.warp_store_bytes

    @property
    def bytes_per_cycle(self) -> float:
        """Drain rate of all producers together; infinite where none is known."""
        return _per_cycle(self.rate_gb_per_s, self.sm_clock_mhz)

    def free_cycles(self, burst_bytes: float) -> float:
        """T0 of this burst; an empty one costs nothing."""
        stores = burst_bytes / self.step_bytes
        return self.issue_base_cycles + self.issue_cycles_per_store * stores if burst_bytes > 0 else 0.0

    def issue_cycles(self, burst_bytes: float, backlog_bytes: float = 0.0) -> float:
        """Issue time of a burst, mean over producers: max(T0, (V + q - Q)/R) on the line of the stalled mean.

        Parameters
        ----------
        burst_bytes : float
            Per producer.
        backlog_bytes : float
            q, not yet drained when the burst begins, all producers together.
        """
        free = self.free_cycles(burst_bytes)
        if self.stalled_gb_per_s is None or burst_bytes <= 0:
            return free
        over = burst_bytes * self.producers + backlog_bytes - (self.stalled_capacity_bytes or 0.0)
        return max(free, over / _per_cycle(self.stalled_gb_per_s, self.sm_clock_mhz))

    def stall_cycles(self, burst_bytes: float, backlog_bytes: float = 0.0) -> float:
        """What backpressure adds to this burst."""
        return self.issue_cycles(burst_bytes, backlog_bytes) - self.free_cycles(burst_bytes)

    def would_stall(self, burst_bytes: float, backlog_bytes: float = 0.0) -> bool:
        """Whether the burst takes more than 1.1 T0, which is what `predict` calls stalled."""
        return self.issue_cycles(burst_bytes, backlog_bytes) > STALLED * self.free_cycles(burst_bytes)

    def recovery_gap_cycles(self, burst_bytes: float) -> float:
        """Shortest gap at which periodic bursts cost no more than T0: [V/R - T0]+."""
        return max(0.0, burst_bytes * self.producers / self.bytes_per_cycle - self.free_cycles(burst_bytes))

    def period_cycles(self, burst_bytes: float, gap_cycles: float) -> float:
        """Steady period of such bursts: max(T0 + G, V/R)."""
        return max(self.free_cycles(burst_bytes) + gap_cycles, burst_bytes * self.producers / self.bytes_per_cycle)

    def largest_free_burst_bytes(self, backlog_bytes: float = 0.0) -> int | None:
        """Largest burst per producer, in whole steps, that does not stall behind this backlog; None when no size stalls."""
        if self.stalled_gb_per_s is None:
            return None
        rate = _per_cycle(self.stalled_gb_per_s, self.sm_clock_mhz)
        room = (self.stalled_capacity_bytes or 0.0) + rate * self.issue_base_cycles - backlog_bytes
        return self._steps(room, rate)

    def largest_steady_burst_bytes(self, gap_cycles: float) -> int | None:
        """Largest periodic burst that does not stall with this gap: V <= R (T0 + G), and one alone fits; None when no size stalls."""
        alone = self.largest_free_burst_bytes()
        if self.rate_gb_per_s is None:
            return alone
        steady = self._steps(self.bytes_per_cycle * (self.issue_base_cycles + gap_cycles), self.bytes_per_cycle)
        return min((size for size in (alone, steady) if size is not None), default=None)

    def backlog_after(self, backlog_bytes: float, burst_bytes: float, cycles: float) -> float:
        """Backlog `cycles` after a burst began that found this backlog: max(0, q + V - R t)."""
        return max(0.0, backlog_bytes + burst_bytes * self.producers - self.bytes_per_cycle * cycles)

    def with_producers(self, producers: int) -> Stage:
        """Return the stage of another number of producers: Q grows with them, and R too where the producers limit it.

        Good near the K of the fit; `stage_at` interpolates between fitted ones.
        """
        scale = producers / self.producers
        rate = scale if self.limited_by == "producer" else 1.0
        return replace(
            self,
            producers=producers,
            drain_gb_per_s=self.drain_gb_per_s.scaled(rate),
            capacity_bytes=self.capacity_bytes.scaled(scale),
            rate_gb_per_s=_times(self.rate_gb_per_s, rate),
            stalled_gb_per_s=_times(self.stalled_gb_per_s, rate),
            stalled_capacity_bytes=_times(self.stalled_capacity_bytes, scale),
        )

    def at_clock(self, sm_clock_mhz: float) -> Stage:
        """Return the stage at another SM clock: tensor-core work lowers it, and a slower SM sees a faster link."""
        return replace(self, sm_clock_mhz=sm_clock_mhz)

    def _steps(self, room: float, rate: float) -> int | None:
        """Most whole steps n with n steps of all producers <= room + rate * n * (cycles per store); None when any n will do."""
        each = self.producers * self.step_bytes - rate * self.issue_cycles_per_store
        return None if each <= 0 else max(0, floor(room / each)) * self.step_bytes


def stages(model: Model) -> list[Stage]:
    """Return the stage of every (K, W) that was fitted and has an issue time, pair after pair, as model.json has them."""
    return [_stage(model, pair, e) for pair in model.pairs for e in pair.burst_gap if e.issue_cycles_per_warp_store.value]


def stage_at(model: Model, producers: int, warps: int, *, pair: str = "0>1", flavour: str = "st.v4", layout: str = "contiguous") -> Stage:
    """Return the stage of K producers with W warps, between fitted ones by interpolation.

    Intervals are those of the fitted (K, W) that is nearest, moved to K producers; T0 stands at its reference burst.

    Raises
    ------
    UsageError
        The model has no such pair, flavour and layout; K or W is not positive; or K is above the SMs of the GPU.
    DataError
        Nothing was identified for the pair.
    """
    found = model.find(pair, flavour, layout)
    if found is None:
        have = ", ".join(f"{p.pair} {p.flavour} {p.layout}" for p in model.pairs) or "none"
        raise UsageError(f"the model has no pair {pair} with {flavour} {layout}", f"it has: {have}")
    if producers < 1 or warps < 1:
        raise UsageError(f"{producers} producers with {warps} warps: both must be at least 1", "give K and W of the kernel")
    require_sms(model, found, producers)
    exact = found.find(producers, warps)
    if exact is not None and exact.issue_cycles_per_warp_store.value:
        return _stage(model, found, exact)
    law = law_at(found, producers, warps, model.sm_clock_mhz)
    near = min(
        (e for e in found.burst_gap if e.issue_cycles_per_warp_store.value),
        key=lambda e: (_apart(e.warps, warps), _apart(e.producers, producers)),
    )
    moved = _stage(model, found, near).with_producers(producers)
    step = warps * moved.warp_store_bytes
    size = max(1, round(moved.bytes / step)) * step
    origin = f"interpolated; the interval is that of {near.producers} producers with {near.warps} warps"
    return replace(
        moved,
        warps=warps,
        bytes=size,
        t0_cycles=_at(moved.t0_cycles, law.issue_base_cycles + law.issue_cycles_per_store * size / step, origin),
        drain_gb_per_s=_at(moved.drain_gb_per_s, law.drain_gb_per_s, origin),
        capacity_bytes=_at(moved.capacity_bytes, moved.capacity_bytes.value, origin),
        issue_base_cycles=law.issue_base_cycles,
        issue_cycles_per_store=law.issue_cycles_per_store,
        rate_gb_per_s=_finite(law.drain_gb_per_s),
        stalled_gb_per_s=_finite(law.mean_gb_per_s),
        stalled_capacity_bytes=_finite(law.mean_capacity_bytes),
    )


def require_sms(model: Model, pair: PairModel, producers: int) -> None:
    """Refuse more producers than the GPU of the model has SMs (`sms_of`).

    Raises
    ------
    UsageError
        It names how many there are.
    """
    seen = pair.calibrated_range.producers
    if seen is not None and producers > seen[1] and producers > (most := sms_of(model, pair.pair)):
        has = f"the {model.gpu} of the model has {most} SMs"
        raise UsageError(f"{producers} producers asked for, but {has}", f"use at most {most} producers")


def _stage(model: Model, pair: PairModel, e: BurstGap) -> Stage:
    if pair.flavour not in FLAVOURS:
        raise DataError(f"the model has the flavour {pair.flavour}, which is not known here", "register its .cuh: flavour.load_flavour")
    law = law_at(pair, e.producers, e.warps, model.sm_clock_mhz)
    saturated = e.stalled_cycles_per_warp_store.value is not None
    return Stage(
        pair=pair.pair,
        flavour=pair.flavour,
        layout=pair.layout,
        producers=e.producers,
        warps=e.warps,
        warp_store_bytes=LAYOUTS[pair.layout].warp_store_bytes(FLAVOURS[pair.flavour]),
        sm_clock_mhz=model.sm_clock_mhz,
        bytes=e.bytes,
        t0_cycles=e.t0_cycles,
        drain_gb_per_s=e.drain_gb_per_s,
        capacity_bytes=e.capacity_bytes,
        limited_by=e.limited_by,
        issue_base_cycles=law.issue_base_cycles,
        issue_cycles_per_store=law.issue_cycles_per_store,
        rate_gb_per_s=_finite(e.drain_gb_per_s.value or law.drain_gb_per_s),
        stalled_gb_per_s=_finite(law.mean_gb_per_s) if saturated else None,
        stalled_capacity_bytes=_finite(law.mean_capacity_bytes) if saturated else None,
        median_error=e.median_error,
        p90_error=e.p90_error,
    )


def _per_cycle(gb_per_s: float | None, sm_clock_mhz: float) -> float:
    return inf if gb_per_s is None else gb_per_s * 1e3 / sm_clock_mhz


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _at(estimate: Estimate, value: float | None, origin: str) -> Estimate:
    """Return the estimate with its interval around another value, as wide relative to it."""
    if not estimate.value or value is None or not isfinite(value):
        return estimate
    return replace(estimate.scaled(value / estimate.value), reason=origin)


def _apart(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
