"""Two timings of one kernel, its stores local and to a peer, into causes; nothing else is known of it but bytes, tiles and SMs.

What a time line would show is bracketed instead. If the SMs stay in step, every burst meets all others: the closed form. If they drift
apart as soon as they may, the fewest do: the predictor of tasks. The measured loss lies between both, or something else costs time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.advise.job import Job
from xstage_bench.model.diagnose.lost import CAUSES, Diagnosis, LostPart, Stalls
from xstage_bench.model.document import Model
from xstage_bench.model.sms import sms_of
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.model.tuner import lost_cycles
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import NONE, TaskSchedule

#: Tiles that the predictor of tasks is asked for; longer kernels are predicted by their first waves, which bounds the loss from below.
MOST_TILES = 1024
_BLIND = "two timings cannot tell: stamps or a time line of the kernel can"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """What is known of a kernel without a look inside.

    Parameters
    ----------
    local_ns : float or None
        Its time with the stores kept local; None: nobody measured it.
    remote_ns : float
        With them at the peer.
    bytes : int
        Stored to the peer by the whole kernel.
    tiles : int
        That store them.
    sms : int or None
        On which they run; None: all of the model's GPU.
    tile_bytes : int or None
        Of a full tile; None: all tiles store the same.
    warps : int
        That store in each SM.
    noise : float
        By which share either timing may be off.
    both_ways : bool
    flavour, pair : str
    """

    local_ns: float | None
    remote_ns: float
    bytes: int
    tiles: int
    sms: int | None = None
    tile_bytes: int | None = None
    warps: int = 4
    noise: float = 0.02
    both_ways: bool = False
    flavour: str = "st.v4"
    pair: str = "0>1"

    def __post_init__(self) -> None:
        times = [t for t in (self.local_ns, self.remote_ns) if t is not None]
        if not all(np.isfinite(t) and t > 0 for t in times) or not 0 <= self.noise < 1:
            raise UsageError(
                "both times must be above 0 and finite, the noise a share below 1", "microseconds: --local-us 210 --remote-us 290"
            )
        if min(self.bytes, self.tiles, self.warps, *(n for n in (self.sms, self.tile_bytes) if n is not None)) < 1:
            raise UsageError("bytes, tiles, SMs and warps must be at least 1", "count what the whole kernel stores to the peer")
        if self.bytes < self.tiles or (self.tile_bytes or 0) > self.bytes:
            raise UsageError(f"{self.tiles} tiles cannot store {self.bytes} bytes so", "--bytes is of all tiles, --tile-bytes of one")

    @property
    def local(self) -> float:
        """`local_ns` where it is needed.

        Raises
        ------
        UsageError
            It is not known.
        """
        if self.local_ns is None:
            raise UsageError("the time of the same kernel with local stores is needed", "--local-us, --local-kernel or --local")
        return self.local_ns

    def producers(self, model: Model) -> int:
        """SMs that have a tile."""
        return min(self.tiles, self.sms or sms_of(model, self.pair))

    def waves(self, producers: int) -> int:
        """Tiles of the busiest SM."""
        return -(-self.tiles // producers)

    @property
    def burst_bytes(self) -> int:
        """Of one tile, in whole warp-stores of all warps."""
        unit = self.warps * FLAVOURS[self.flavour].warp_store_bytes
        return -(-(self.tile_bytes or round(self.bytes / self.tiles)) // unit) * unit

    def job(self, model: Model) -> Job:
        """Return the kernel as `advise` takes it: its first waves, where it has very many."""
        producers = self.producers(model)
        waves = self.waves(producers)
        shown = min(waves, max(1, MOST_TILES // producers))
        return Job(
            bytes=self.burst_bytes, tile_ns=self.local / waves, tiles=shown, producers=producers, warps=self.warps,
            with_stores_ns=self.remote_ns / waves, both_ways=self.both_ways, flavour=self.flavour, pair=self.pair,
        )  # fmt: skip


def diagnose_timings(model: Model, times: KernelTimes, *, sm_clock_mhz: float | None = None) -> Diagnosis:
    """Say what a kernel loses to its stores, and how much of that their drain and the stage's capacity explain.

    Parameters
    ----------
    model : Model
    times : KernelTimes
    sm_clock_mhz : float, optional
        Default: the model's.

    Raises
    ------
    UsageError
        The model has no such pair or flavour.
    DataError
        Nothing was identified for the pair.
    """
    producers = times.producers(model)
    waves = times.waves(producers)
    stage = stage_at(model, producers, times.warps, pair=times.pair, flavour=times.flavour)
    stage = stage if sm_clock_mhz is None else stage.at_clock(sm_clock_mhz)
    ratio = times.bytes / (stage.bytes_per_cycle * stage.sm_clock_mhz * 1e-3)
    if times.local_ns is None:
        return _alone(times, stage, ratio)
    lost = times.remote_ns - times.local
    unsure = times.noise * times.local
    stalls: Stalls = "yes" if lost > unsure else "no"
    share = lost / times.local
    reason = (
        f"stores to the peer add {share:.1%} to the local time, timings are good to {times.noise:.1%}"
        if stalls == "yes"
        else f"the two timings differ by {share:.1%}, within their {times.noise:.1%}"
    )
    low, high, notes = _bracket(model, times, stage, waves)
    needs = _drain_bounds(times, stage, waves, producers)
    drain, drain_low, drain_high = (min(max(0.0, x), max(0.0, lost)) for x in needs)
    low = max(low, drain_low)
    high = max(low, high, drain)
    measured = (max(0.0, lost - unsure), max(0.0, lost + unsure))
    capacity = max(0.0, min(lost, high) - drain)
    known = stalls == "yes"
    rest = lost - drain - capacity
    why_rest = (
        f"the stores explain {low * 1e-3:.1f} us (SMs drift apart) to {high * 1e-3:.1f} us (SMs stay in step); "
        "what the other causes cost is in here"
    )
    parts = (
        LostPart.of(
            "capacity", capacity if known else 0.0, min(measured[0], low) - drain_high, min(measured[1], high) - drain_low,
            f"bursts of {times.burst_bytes} bytes by {producers} SMs hold "
            f"{_kb(times.burst_bytes * producers)}, the stage {_kb(stage.stalled_capacity_bytes)}",
        ),
        LostPart.of(
            "drain", drain if known else 0.0, min(drain_low, measured[0]), min(drain_high, measured[1]),
            f"V/R is {ratio * 1e-3:.1f} us; {_available(times, waves) * 1e-3:.1f} us pass between the first tile's end and the last's",
        ),
        *(LostPart.unknown(cause, _BLIND) for cause in ("late_operands", "publishing", "out_of_step")),
        LostPart.of("none_of_these", rest if known else 0.0, measured[0] - high, measured[1] - low, why_rest),
    )  # fmt: skip
    if known and rest > 0.5 * lost and rest > 2 * unsure:
        rate = times.bytes / times.remote_ns
        notes.append(
            f"most of the loss is not that of whole lines: the stores go at {rate:.0f} GB/s where R is {stage.rate_gb_per_s or 0:.0f}. "
            "Do warps store pieces of less than a line? Measure their layout: xstage profile --only layouts"
        )
    if low > measured[1]:
        notes.append(
            f"{low * 1e-3:.1f} us at least are predicted, more than measured: are the stores really to a peer, and is --bytes theirs?"
        )
    return Diagnosis(
        source="timings", total_ns=times.remote_ns, local_ns=times.local_ns, lost_ns=lost, lost_low_ns=lost - unsure,
        lost_high_ns=lost + unsure, stalls=stalls, reason=reason, bytes=times.bytes, drain_ns=ratio or None,
        drain_gb_per_s=stage.rate_gb_per_s, parts=parts, notes=tuple(notes),
    )  # fmt: skip


def _alone(times: KernelTimes, stage: Stage, drain_ns: float) -> Diagnosis:
    """What one timing tells: how much of it the drain needs, and nothing of what is lost."""
    why = "the time of the same kernel with local stores says what is lost"
    return Diagnosis(
        source="timings", total_ns=times.remote_ns, local_ns=None, lost_ns=None, lost_low_ns=None, lost_high_ns=None,
        stalls="not determined", reason=f"V/R is {drain_ns / times.remote_ns:.0%} of the time; {why}", bytes=times.bytes,
        drain_ns=drain_ns or None, drain_gb_per_s=stage.rate_gb_per_s, parts=tuple(LostPart.unknown(cause, why) for cause in CAUSES),
    )  # fmt: skip


def _available(times: KernelTimes, waves: int) -> float:
    """Time in which stores can drain behind compute: not while the first tile is computed, ns."""
    return times.local * (1 - 1 / waves)


def _drain_bounds(times: KernelTimes, stage: Stage, waves: int, producers: int) -> tuple[float, float, float]:
    """What the drain alone costs at R and at the ends of its interval: what does not fit behind compute, or the last tiles, ns."""
    rate = stage.rate_gb_per_s
    if rate is None:
        return 0.0, 0.0, 0.0
    fitted = stage.drain_gb_per_s
    rates = (rate, fitted.high or rate, fitted.low or rate)
    last = times.bytes - times.burst_bytes * producers * (waves - 1)
    last = min(max(last, times.burst_bytes), times.burst_bytes * producers)
    first, low, high = (max(times.bytes / r - _available(times, waves), min(last, times.bytes) / r) for r in rates)
    return first, low, high


def _bracket(model: Model, times: KernelTimes, stage: Stage, waves: int) -> tuple[float, float, list[str]]:
    """Least and most that stores to the peer are predicted to add to the local time, ns."""
    per_ns = 1e3 / stage.sm_clock_mhz
    tile_cycles = times.local / waves / per_ns
    free = waves * stage.free_cycles(times.burst_bytes)  # local stores are issued too
    in_step = max(0.0, lost_cycles(stage, times.burst_bytes, waves, tile_cycles) - free) * per_ns
    try:
        remote, here, factor = _apart(model, times, stage, waves, tile_cycles)
    except DataError as error:
        return 0.0, in_step, [f"no least loss is predicted: {error.message}"]
    apart = max(0.0, remote - here)
    ends = [apart * factor[0], apart * factor[1], in_step * factor[0], in_step * factor[1]]
    return min(ends), max(ends), []


def _apart(model: Model, times: KernelTimes, stage: Stage, waves: int, tile_cycles: float) -> tuple[float, float, tuple[float, float]]:
    """Predicted time with stores to the peer and with local ones, ns, and the 90 % interval of a stalled burst over its prediction."""
    producers = stage.producers
    tiles = min(times.tiles, max(producers, MOST_TILES // producers * producers))
    size, nothing = np.full(tiles, times.burst_bytes), np.full(tiles, NONE)
    source, destination = (int(end) for end in times.pair.split(">"))
    schedule = TaskSchedule(
        producers=producers, producer=np.sort(np.arange(tiles) % producers), compute_cycles=np.full(tiles, round(tile_cycles)),
        bytes=size, remote_bytes=size, waits_for=nothing, signals=nothing, warps=times.warps, form="single", publish="relaxed",
        source=source, destination=destination, both_ways=times.both_ways, flavour=times.flavour,
    )  # fmt: skip
    remote = predict_tasks(model, schedule, sm_clock_mhz=stage.sm_clock_mhz, twin=False)
    here = predict_tasks(model, schedule.local(), sm_clock_mhz=stage.sm_clock_mhz, twin=False)
    stalled = remote.stall_ns > 0
    wide = [
        float(np.nanmean(x[stalled] / remote.issue_ns[stalled])) if stalled.any() else 1.0
        for x in (remote.issue_low_ns, remote.issue_high_ns)
    ]
    factor = tuple(x if np.isfinite(x) else 1.0 for x in wide)
    return max(remote.total_ns, remote.all_visible_ns), here.total_ns, (factor[0], factor[1])


def _kb(value: float | None) -> str:
    return "any amount" if value is None else f"{value * 1e-3:.0f} kB"
