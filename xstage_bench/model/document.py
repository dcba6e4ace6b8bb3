"""`model.json` and `validation.json` as typed documents. Keys are only ever added, never renamed.

Every fitted number is an `Estimate`; a number that the data does not determine is an Estimate with status ``not_identified``
and a reason. Lists hold one entry per (K, W) or per K, so that a reader needs no knowledge of key formats.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from xstage_bench.io.json_file import encode_json, read_json, write_json
from xstage_bench.io.short_repr import short_repr
from xstage_bench.model.document_check import checked
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.entry import NodeBasis
from xstage_bench.model.release import ReleaseLaw
from xstage_bench.model.tasks.costs import TaskCosts

SCHEMA_VERSION = 1
#: Keys that files of earlier versions lack: null, they must not make another model of such a file.
_LATER_KEYS = re.compile(rb',\s*"(choice_error|t0_bytes)": null')
ModelName = Literal["bandwidth_only", "loggp", "burst_gap", "node"]
HoldoutStatus = Literal["pass", "fail", "undetermined", "not_judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The three numbers by the paper's recipe (no refit), beside those of the joint fit.

    `t0_cycles` is the large-gap plateau of periodic bursts of `bytes` per producer, the largest size measured below the knee;
    `drain_gb_per_s` comes from zero-gap periodic bursts, `capacity_bytes` from the isolated knee minus R*T0.
    """

    bytes: int | None
    t0_cycles: Estimate
    drain_gb_per_s: Estimate
    capacity_bytes: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstGap:
    """The law of K producers with W warps each: max(T0(n), stalled line) for n warp-stores per warp.

    Parameters
    ----------
    producers, warps : int
    bytes : int
        Reference burst per producer at which `recovery_gap_cycles` and `peak_backlog_bytes` stand.
    t0_cycles : Estimate
        Issue time without backpressure, mean over producers, as measured at `t0_bytes`.
    drain_gb_per_s : Estimate
        R, all producers together, by makespan.
    capacity_bytes, capacity_bytes_per_producer : Estimate
        Q(K), all producers together, and Q(K) / K.
    issue_base_cycles, issue_cycles_per_warp_store : Estimate
        T0(n) = base + slope * n.
    stalled_cycles_per_warp_store : Estimate
        Slope of the mean over producers past the knee. It is smaller than K * W * 512 / R where producers are served unequally.
    knee_bytes : Estimate
        Burst per producer at which the two lines cross.
    recovery_gap_cycles : Estimate
        [V/R - T0]+ of the reference burst.
    peak_backlog_bytes : Estimate
        [V - R*T0]+ of the reference burst, all producers together.
    limited_by : {'producer', 'link'} or None
        What the stalled slope is the rate of: the SM's own drain (as slow with the fewest producers), or what they share.
    recipe : Recipe or None
    median_error, p90_error, p95_error : float or None
        |fitted - measured| / measured of the mean issue time over the sizes fitted.
    sizes, repetitions, processes : int
        How many burst sizes, valid repetitions of the scarcest of them, and processes entered.
    t0_bytes : int or None
        Burst per producer at which `t0_cycles` stands: the largest measured one below the knee, of at most 32 KiB. Null in files of
        earlier versions, whose T0 is extrapolated to `bytes`.
    """

    producers: int
    warps: int
    bytes: int
    t0_cycles: Estimate
    drain_gb_per_s: Estimate
    capacity_bytes: Estimate
    capacity_bytes_per_producer: Estimate
    issue_base_cycles: Estimate
    issue_cycles_per_warp_store: Estimate
    stalled_cycles_per_warp_store: Estimate
    knee_bytes: Estimate
    recovery_gap_cycles: Estimate
    peak_backlog_bytes: Estimate
    limited_by: Literal["producer", "link"] | None = None
    recipe: Recipe | None = None
    median_error: float | None = None
    p90_error: float | None = None
    p95_error: float | None = None
    sizes: int = 0
    repetitions: int = 0
    processes: int = 0
    t0_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRate:
    """R of K producers by each statistic that was measured: they should agree, and where they do not, all are shown.

    `makespan` is the slope of the slowest producer over isolated bursts, pooled over W >= 2; `sustained` one long burst;
    `zero_gap` the period of zero-gap periodic bursts, over several K/B splits; `mean_slope` the slope of the mean, which overstates R.
    """

    producers: int
    makespan: Estimate
    sustained: Estimate
    zero_gap: Estimate
    mean_slope: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Issue time of periodic bursts at the largest gap, where the gap no longer matters: the T0 of the periodic law.

    Past the knee it lies between T0(n) and the isolated burst, because producers that stalled once are staggered and collide less.
    """

    producers: int
    warps: int
    bytes: int
    gap_cycles: int
    issue_cycles: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedRange:
    """Lowest and highest value of each axis that the fit has seen, ends included; null where nothing valid was seen."""

    producers: tuple[int, int] | None = None
    warps: tuple[int, int] | None = None
    bytes: tuple[int, int] | None = None
    gap_cycles: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutVerdict:
    """How a pair's model did on the hold-out of its own run: what a prediction with it must say.

    `yardstick` is whose errors the limits were made from; `reasons` say what missed, one sentence each.
    """

    status: HoldoutStatus
    yardstick: str
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModel:
    """All that was fitted for one ordered pair (``"0>1"``), or for the LOCAL control (``"0>0"``), flavour and layout."""

    pair: str
    flavour: str
    layout: str
    burst_gap: list[BurstGap]
    node: dict[str, Estimate] = field(default_factory=dict)
    node_basis: NodeBasis | None = None
    calibrated_range: CalibratedRange = field(default_factory=CalibratedRange)
    drain: list[DrainRate] = field(default_factory=list)
    plateaus: list[Plateau] = field(default_factory=list)
    release: list[ReleaseLaw] = field(default_factory=list)
    holdout: HoldoutVerdict | None = None  # null until the run's hold-out has been predicted

    @property
    def holdout_status(self) -> HoldoutStatus:
        """How it did on its own run's hold-out."""
        return "not_judged" if self.holdout is None else self.holdout.status

    @property
    def is_local(self) -> bool:
        """True for the LOCAL control."""
        source, _, destination = self.pair.partition(">")
        return source == destination

    def find(self, producers: int, warps: int) -> BurstGap | None:
        """Return the entry of exactly this (K, W), or None."""
        return next((e for e in self.burst_gap if e.producers == producers and e.warps == warps), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFacts:
    """What the instrument itself costs, and what every issue time therefore contains.

    `clock_read_cycles`: an empty burst until *taken*, that is two clock reads, the empty loop and the read of shared memory behind it;
    `issued_read_cycles`: the same until *issued*. Then a system fence with nothing outstanding, and the timer's tick.
    """

    clock_read_cycles: Estimate
    empty_fence_cycles: Estimate
    globaltimer_tick_ns: Estimate
    issued_read_cycles: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`model.json`."""

    __repr__ = short_repr

    schema_version: int
    backend: str
    gpu: str
    sm_clock_mhz: float
    pairs: list[PairModel]
    timer: TimerFacts | None = None
    tasks: list[TaskCosts] = field(default_factory=list)
    seed: int = 0
    resamples: int = 0
    notes: list[str] = field(default_factory=list)

    def find(self, pair: str, flavour: str = "st.v4", layout: str = "contiguous") -> PairModel | None:
        """Return the model of one pair, flavour and layout, or None."""
        return next((p for p in self.pairs if (p.pair, p.flavour, p.layout) == (pair, flavour, layout)), None)

    @property
    def is_empty(self) -> bool:
        """True when nothing at all was fitted, not even what the timer costs."""
        pairs = any(p.drain or p.plateaus or p.release or p.node_basis or _identified(p.burst_gap) for p in self.pairs)
        return not pairs and not self.tasks and (self.timer is None or self.timer.clock_read_cycles.value is None)


def _identified(entries: list[BurstGap]) -> bool:
    return any(n.value is not None for e in entries for n in (e.t0_cycles, e.drain_gb_per_s, e.capacity_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueTimeError:
    """Quantiles of |predicted - measured| / measured over bursts (not over repetitions); null when there were none."""

    median_error: float | None
    p90_error: float | None
    p95_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalTimeError:
    """Quantiles of the error of a schedule's end of its last burst."""

    median_error: float | None
    p95_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """One model on the held-out schedules of one pair. `reasons` explains each null, by key.

    `family` is the probe that the schedules are of. `standard_errors` are those of the scores, by resampling whole schedules: other
    schedules of the same family would have given other scores.
    """

    model: ModelName
    pair: str
    flavour: str
    statistic: str
    n_schedules: int
    n_bursts: int
    issue_time: IssueTimeError
    total_time: TotalTimeError
    regime_balanced_accuracy: float | None
    interval_coverage_90: float | None
    interval_score: float | None
    reasons: dict[str, str] = field(default_factory=dict)
    family: str = "holdout"
    standard_errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What no model can be better than: |median of one process / median of the others - 1| over held-out bursts and processes.

    Null, with a reason, where there was one process.
    """

    pair: str
    flavour: str
    family: str
    processes: int
    n_bursts: int
    median: float | None
    p90: float | None
    p95: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedLaw:
    """Error of the fitted law max(T0, stalled line) over the burst sizes of one (K, W)."""

    pair: str
    producers: int
    warps: int
    n_points: int
    median_error: float | None
    p95_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicLaw:
    """Error of max(T0, V/R - G) on stalled points (measured >= 1.1 T0), burst 0 skipped, over schedules of one K."""

    pair: str
    producers: int
    n_points: int
    median_error: float | None
    p90_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStall:
    """Stall or no stall of timed schedules: period in [0.67, 1.5] V/R and more than 5 % away from V/R. `producers` is null for all K."""

    pair: str
    producers: int | None
    n_stalled: int
    n_free: int
    balanced_accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """`validation.json`.

    `models` are scores on the main hold-out of each pair and flavour; `families` those of the models that predict, on every family;
    `warps_apart` scores on schedules whose warps do not meet, which no model describes: in neither of the others.
    `fitted` is the digest of the model judged: another fit is not judged by this file.
    """

    schema_version: int
    backend: str
    models: list[ModelScore]
    warps_apart: list[ModelScore] = field(default_factory=list)
    families: list[ModelScore] = field(default_factory=list)
    noise_floor: list[NoiseFloor] = field(default_factory=list)
    fitted: str | None = None
    isolated_law: list[IsolatedLaw] = field(default_factory=list)
    periodic_law: list[PeriodicLaw] = field(default_factory=list)
    timed_stall: list[TimedStall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load_model(path: Path) -> Model:
    """Read a `model.json`.

    Raises
    ------
    UsageError
        `path` does not exist.
    DataError
        Not strict JSON, not a model, written by a newer version, or with a pair, number or interval that cannot be.
    """
    return checked(path, read_json(path, Model, newest=SCHEMA_VERSION))


def load_validation(path: Path) -> Validation:
    """Read a `validation.json`; errors as `load_model`."""
    return checked(path, read_json(path, Validation, newest=SCHEMA_VERSION))


def digest(model: Model) -> str:
    """Return a hash of what was fitted; the verdicts of a hold-out are no part of it, nor are later keys that a file does not have."""
    bare = replace(model, pairs=[replace(p, holdout=None) for p in model.pairs])
    return hashlib.blake2b(_LATER_KEYS.sub(b"", encode_json(bare)), digest_size=8).hexdigest()


def save(path: Path, document: Model | Validation) -> None:
    """Write a document strictly and atomically (temporary name, then renamed)."""
    write_json(path, document)
