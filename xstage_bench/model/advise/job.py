"""Advice for a kernel that is not written down task by task: from the size of its tiles and the time that they take.

A producer works in rounds: `quiet_tiles` tiles that store nothing (Linear-1) and `tiles` that store (Linear-2), which wait for the quiet
tiles of their round. The present order has whole waves of rounds, first all quiet tiles, then all storing ones.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.io.short_repr import short_repr
from xstage_bench.model.advise.choose import TaskAdvice, advise_tasks
from xstage_bench.model.document import Model
from xstage_bench.model.sms import sms_of
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import NONE, TaskSchedule

#: The fewest SMs that drain this share of what all of them do are enough.
NEARLY_ALL = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a kernel does, in the words of its author.

    Parameters
    ----------
    bytes : int
        That one storing tile of one producer sends to the destination.
    tile_ns : float
        Compute time of a storing tile when nothing is stored.
    tiles : int
        Storing tiles of a producer.
    quiet_tile_ns : float
    quiet_tiles : int
        Time and number of a producer's tiles that store nothing; 0: there are none.
    waves : int
        Parts in which the present order has first all quiet, then all storing tiles; as many as rounds: nearly interleaved already.
    producers : int or None
        SMs; None: all of the model's GPU, which `advise_job` puts in.
    warps : int
        That store in each.
    with_stores_ns : float or None
        Measured time of a storing tile with its stores, if known: shows what they cost now.
    both_ways : bool
        The destination stores back at the same time.
    pair, flavour : str
    """

    bytes: int
    tile_ns: float
    tiles: int
    quiet_tile_ns: float = 0.0
    quiet_tiles: int = 0
    waves: int = 1
    producers: int | None = None
    warps: int = 4
    with_stores_ns: float | None = None
    both_ways: bool = False
    pair: str = "0>1"
    flavour: str = "st.v4"

    def __post_init__(self) -> None:
        if (
            min(self.bytes, self.tiles, self.waves, self.warps, *([] if self.producers is None else [self.producers])) < 1
            or self.quiet_tiles < 0
        ):
            raise UsageError("bytes, tiles, waves, producers and warps must be at least 1, quiet tiles not negative", "see --help")
        times = [self.tile_ns, self.quiet_tile_ns, *([] if self.with_stores_ns is None else [self.with_stores_ns])]
        if not all(math.isfinite(t) and t >= 0 for t in times) or self.tile_ns == 0:
            raise UsageError("times must be finite and not negative, that of a storing tile above 0", "nanoseconds")
        if self.flavour not in FLAVOURS:
            raise UsageError(f"unknown flavour '{self.flavour}'", f"use one of: {', '.join(FLAVOURS)}")
        if not re.fullmatch(r"\d+>\d+", self.pair):
            raise UsageError(f"'{self.pair}' is no pair of GPUs", "for example 0>1")
        if bool(self.quiet_tiles) != bool(self.quiet_tile_ns):
            raise UsageError("quiet tiles need both their number and their time", "--quiet-tiles N --quiet-tile-ns NS")

    @property
    def sms(self) -> int:
        """`producers`, where they are known.

        Raises
        ------
        UsageError
            All SMs are meant, and no model has said yet how many.
        """
        if self.producers is None:
            raise UsageError("a job on all SMs needs a model's number of them", "advise_job(model, job), or producers=K")
        return self.producers

    @property
    def unit_bytes(self) -> int:
        """One warp-store of each warp: the least that a tile can store."""
        return self.warps * FLAVOURS[self.flavour].warp_store_bytes

    @property
    def stored_bytes(self) -> int:
        """`bytes`, rounded up to whole `unit_bytes`: what a tile stores, and what is predicted."""
        return -(-self.bytes // self.unit_bytes) * self.unit_bytes

    @property
    def compute_ns(self) -> float:
        """Of one producer, nothing stored."""
        return self.tiles * self.tile_ns + self.quiet_tiles * self.quiet_tile_ns

    @property
    def rounds(self) -> int:
        """Rounds of dependencies: each has at least one tile of each kind."""
        return min(self.tiles, self.quiet_tiles) or self.tiles

    def tasks(self, sm_clock_mhz: float) -> TaskSchedule:
        """Return the present schedule: all producers alike, in waves."""
        source, destination = (int(end) for end in self.pair.split(">"))
        size = self.stored_bytes
        kind = np.repeat([0, 1], [self.quiet_tiles, self.tiles])
        index = np.concatenate([np.arange(self.quiet_tiles), np.arange(self.tiles)])
        of_round = index * self.rounds // np.where(kind == 0, max(self.quiet_tiles, 1), self.tiles)
        order = np.lexsort((index, kind, of_round * min(self.waves, self.rounds) // self.rounds))
        kind, of_round = np.tile(kind[order], self.sms), np.tile(of_round[order], self.sms)
        depends = of_round if self.quiet_tiles else np.full(of_round.size, NONE)
        cycles = [round(t * sm_clock_mhz * 1e-3) for t in (self.quiet_tile_ns, self.tile_ns)]
        return TaskSchedule(
            producers=self.sms,
            producer=np.repeat(np.arange(self.sms), self.tiles + self.quiet_tiles),
            compute_cycles=np.where(kind == 1, cycles[1], cycles[0]),
            bytes=np.where(kind == 1, size, 0),
            remote_bytes=np.where(kind == 1, size, 0),
            waits_for=np.where(kind == 1, depends, NONE),
            signals=np.where(kind == 1, NONE, depends),
            phase=kind,
            phases=("quiet", "storing"),
            warps=self.warps,
            source=source,
            destination=destination,
            both_ways=self.both_ways,
            flavour=self.flavour,
            name="job",
        )


@dataclass(frozen=True, slots=True)
class FlavourRow:
    """One flavour of the model for this job: its rate, and the period of one storing tile with its share of quiet work."""

    flavour: str
    drain_gb_per_s: float | None
    t0_ns: float
    period_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdvice:
    """What to change about a job, with what follows from T0, R and Q alone.

    Parameters
    ----------
    job : Job
    stage : Stage
        Of the job's producers.
    drain_ns : float
        V/R of all storing tiles: what they need at least.
    largest_free_burst_bytes : int or None
        Per producer, on a drained stage; None: no size stalls.
    smallest_gap_ns : float
        Between the stores of two tiles of the present size.
    quiet_per_storing : float or None
        Quiet tiles needed for each storing one so that the drain keeps up; 0: none; None: there are none to put between.
    storing_sms : int
        The fewest SMs that drain at nearly the rate of all.
    flavours : tuple of FlavourRow
        Every flavour that the model has for this pair, the fastest first.
    minimum_lead : float or None
        Shortest lead, in quiet tiles of a producer, within 1 % of the best; None: not interleaved.
    tasks : TaskAdvice
        The predicted schedules, present and advised.
    """

    __repr__ = short_repr

    job: Job
    stage: Stage
    drain_ns: float
    largest_free_burst_bytes: int | None
    smallest_gap_ns: float
    quiet_per_storing: float | None
    storing_sms: int
    flavours: tuple[FlavourRow, ...] = field(default=())
    minimum_lead: float | None
    tasks: TaskAdvice

    @property
    def drain_over_compute(self) -> float:
        """V/R over the compute time: above 1 the job is limited by the drain, and no order helps beyond it."""
        return self.drain_ns / self.job.compute_ns

    @property
    def bound_ns(self) -> float:
        """max(compute, V/R): nothing is faster."""
        return max(self.drain_ns, self.job.compute_ns)


def advise_job(model: Model, job: Job, *, sm_clock_mhz: float | None = None, splitting: bool = False) -> JobAdvice:
    """Return the advice for a job.

    Parameters
    ----------
    model : Model
    job : Job
        On all SMs of the model's GPU where it names no number.
    sm_clock_mhz : float, optional
        Default: the model's.
    splitting : bool
        As of `advise_tasks`.

    Raises
    ------
    UsageError
        The model has no such pair or flavour.
    DataError
        Nothing was identified for the pair, or it has no node model.
    """
    clock = model.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
    if job.producers is None:
        job = replace(job, producers=sms_of(model, job.pair))
    stage = stage_at(model, job.sms, job.warps, pair=job.pair, flavour=job.flavour)
    per_ns = 1e3 / stage.sm_clock_mhz
    drain_ns = job.stored_bytes * job.sms * job.tiles / stage.bytes_per_cycle * per_ns
    tasks = advise_tasks(model, job.tasks(clock), pair=job.pair, sm_clock_mhz=sm_clock_mhz, splitting=splitting)
    lack_ns = drain_ns / job.tiles - job.tile_ns
    needed = max(0.0, lack_ns / job.quiet_tile_ns) if job.quiet_tiles else 0.0 if lack_ns <= 0 else None
    return JobAdvice(
        job=job,
        stage=stage,
        drain_ns=drain_ns,
        largest_free_burst_bytes=stage.largest_free_burst_bytes(),
        smallest_gap_ns=stage.recovery_gap_cycles(job.stored_bytes) * per_ns,
        quiet_per_storing=needed,
        storing_sms=storing_sms(model, job, stage),
        flavours=_flavours(model, job),
        minimum_lead=_minimum_lead(tasks),
        tasks=tasks,
    )


def storing_sms(model: Model, job: Job, stage: Stage) -> int:
    """Return the fewest SMs whose drain rate is `NEARLY_ALL` of that of the job's producers."""
    if stage.rate_gb_per_s is None:
        return job.sms
    wanted = NEARLY_ALL * stage.rate_gb_per_s
    for count in range(1, job.sms):
        rate = stage_at(model, count, job.warps, pair=job.pair, flavour=job.flavour).rate_gb_per_s
        if rate is not None and rate >= wanted:
            return count
    return job.sms


def _flavours(model: Model, job: Job) -> tuple[FlavourRow, ...]:
    gap_ns = job.tile_ns + job.quiet_tile_ns * job.quiet_tiles / job.tiles
    rows = []
    for found in model.pairs:
        if found.pair == job.pair and found.layout == "contiguous" and found.flavour in FLAVOURS and found.burst_gap:
            s = stage_at(model, job.sms, job.warps, pair=job.pair, flavour=found.flavour)
            per_ns, size = 1e3 / s.sm_clock_mhz, replace(job, flavour=found.flavour).stored_bytes
            period = s.period_cycles(size, gap_ns / per_ns) * per_ns
            rows.append(FlavourRow(found.flavour, s.rate_gb_per_s, s.free_cycles(size) * per_ns, period))
    return tuple(sorted(rows, key=lambda r: r.period_ns))


def _minimum_lead(tasks: TaskAdvice) -> float | None:
    if tasks.recipe.lead is None:
        return None
    leads = [(c.recipe.lead, c.total_ns) for c in tasks.candidates if c.recipe.lead is not None and c.recipe.parts == 1]
    best = min(total for _, total in leads)
    return min(lead for lead, total in leads if total <= 1.01 * best)
