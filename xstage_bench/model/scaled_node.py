"""The model of a node that was not measured: that of the reference, scaled to another GPU and link by the rules of the registry.

What an SM does is in cycles and stays, but for its capacity and its own drain; what the link does follows the link. The eight parameters
of the node model and the fitted laws of every (K, W) move by the same ratios, so both say the same. `results/public/transfer` shows how
far off that is where somebody has measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.facts import Fact, GpuFacts, StageFacts
from xstage_bench.machine.gpus import REFERENCE_NODE, RegisteredNode, find_entry
from xstage_bench.machine.scaling import clock_of, completed_stage
from xstage_bench.model.document import BurstGap, CalibratedRange, DrainRate, Model, PairModel, load_model
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.entry import NodeBasis
from xstage_bench.model.node.placement import Placement, uniform
from xstage_bench.schedule.bursts import WARP_STORE_BYTES

#: How the backend of a scaled model begins: nobody measured it.
SCALED = "scaled:"


@dataclass(frozen=True, slots=True)
class Ratio:
    """What a number is multiplied by, and how far down and up from that its interval is stretched by the rule's own."""

    value: float = 1.0
    low: float = 1.0
    high: float = 1.0

    @classmethod
    def of(cls, own: Fact, lent: Fact) -> Ratio:
        """Return this entry's number over the reference's."""
        if not own.value or not lent.value:
            return cls()
        return cls(own.value / lent.value, (own.low or own.value) / own.value, (own.high or own.value) / own.value)

    def __mul__(self, other: Ratio) -> Ratio:
        return Ratio(self.value * other.value, self.low * other.low, self.high * other.high)

    def __truediv__(self, other: Ratio) -> Ratio:
        return Ratio(self.value / other.value, self.low / other.high, self.high / other.low)

    def apply(self, estimate: Estimate) -> Estimate:
        """Scale an estimate; its interval takes in the rule's."""
        moved = estimate.scaled(self.value)
        low, high = (None if end is None else end * wide for end, wide in ((moved.low, self.low), (moved.high, self.high)))
        return replace(moved, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Transfer:
    """From the reference to one entry: ratios of the link's rate, of one SM's bytes a cycle and capacity, of the SM clock; then its SMs,
    its clock in MHz, its R and what one SM drains, the same of the reference (10^9 bytes per second), and the reference's `curve`.
    """

    link: Ratio
    sm: Ratio
    capacity: Ratio
    clock: Ratio
    sms: int
    clock_mhz: float
    drain_gb_per_s: float
    own_sm_gb_per_s: float
    their_drain_gb_per_s: float
    their_sm_gb_per_s: float
    curve: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())

    def reached(self, asked: float) -> float:
        """Return the share of R that producers reach who could drain `asked` times R on their own, as on the reference."""
        if not self.curve[0] or asked <= self.curve[0][0]:
            return min(asked, 1.0)
        return min(asked, float(np.interp(np.log(asked), np.log(self.curve[0]), self.curve[1])))


def transfer_of(facts: GpuFacts, lent: GpuFacts) -> Transfer:
    """Return what a model of `lent` is multiplied by to become one of `facts`.

    Raises
    ------
    DataError
        The registry does not know the SMs of the one or the rate of its link.
    """
    own, their = completed_stage(facts), completed_stage(lent)
    if facts.sm_count.value is None or own.drain_gb_per_s.value is None:
        raise DataError(
            "nothing can be scaled without the number of SMs and the nominal rate of the link", "give both in a file of your own"
        )
    mhz, their_mhz = clock_of(facts), clock_of(lent)
    clock = Ratio.of(mhz, their_mhz)
    sm = Ratio.of(own.sm_gb_per_s, their.sm_gb_per_s) / clock
    assert mhz.value and own.sm_gb_per_s.value and their.sm_gb_per_s.value and their.drain_gb_per_s.value  # noqa: PT018 - measured or scaled
    return Transfer(
        Ratio.of(own.drain_gb_per_s, their.drain_gb_per_s), sm, Ratio.of(own.sm_capacity_bytes, their.sm_capacity_bytes), clock,
        int(facts.sm_count.value), mhz.value, own.drain_gb_per_s.value, own.sm_gb_per_s.value,
        their.drain_gb_per_s.value, their.sm_gb_per_s.value,
    )  # fmt: skip


def registered_model(name: str) -> Model:
    """Return the model of an entry of the registry: its own, else the reference's scaled to it.

    Raises
    ------
    UsageError
        There is no such entry.
    DataError
        It has no model and nothing to scale one by.
    """
    entry = find_entry(name)
    if entry.model_path is not None:
        return _own(entry, entry.model_path)
    lent = find_entry(REFERENCE_NODE)
    assert lent.model_path is not None
    return scaled_model(_own(lent, lent.model_path), lent.facts, entry)


def _own(entry: RegisteredNode, path: Path) -> Model:
    if not path.is_file():
        raise UsageError(f"the model of {entry.name} is missing: {path}", "reinstall xstage-bench, or measure one: xstage profile")
    return load_model(path)


def scaled_model(model: Model, lent: GpuFacts, entry: RegisteredNode) -> Model:
    """Scale a fitted model of one entry to another.

    Parameters
    ----------
    model : Model
    lent : GpuFacts
        Whose model that is.
    entry : RegisteredNode
        Whose it shall be.

    Notes
    -----
    Hold-out verdicts, plateaus and release laws stay behind: they are of the GPU that was measured.
    """
    t = transfer_of(entry.facts, lent)
    stage = completed_stage(entry.facts)
    most = max((e.producers for p in model.pairs for e in p.burst_gap), default=t.sms)
    return replace(
        model,
        backend=f"{SCALED}{REFERENCE_NODE}",
        gpu=entry.facts.names[0] if entry.facts.names else entry.name,
        sm_clock_mhz=t.clock_mhz,
        pairs=[_pair(p, t, most, stage) for p in model.pairs if not p.is_local],
        timer=None,
        notes=[f"{entry.name} was not measured: scaled from {REFERENCE_NODE}", *rules_used(stage)],
    )


def rules_used(stage: StageFacts) -> list[str]:
    """Say every number of a stage that a rule made."""
    facts = {name: getattr(stage, name) for name in stage.__struct_fields__}
    return [f"{name} {fact.words()}" for name, fact in facts.items() if fact.status == "scaled"]


def _pair(pair: PairModel, t: Transfer, most: int, stage: StageFacts) -> PairModel:
    known = sorted((d.producers, r) for d in pair.drain if (r := d.makespan.value or d.sustained.value))
    if known:
        asked = tuple(k * t.their_sm_gb_per_s / t.their_drain_gb_per_s for k, _ in known)
        t = replace(t, curve=(asked, tuple(min(a, r / known[-1][1]) for a, (_, r) in zip(asked, known, strict=True))))
    laws = [_law(e, t, most, WARP_STORE_BYTES[pair.flavour]) for e in pair.burst_gap if e.producers == most or e.producers < t.sms]
    drain = [_rates(d, t, most) for d in pair.drain if d.producers == most or d.producers < t.sms]
    seen = pair.calibrated_range
    wide = None if seen.producers is None else (seen.producers[0], t.sms)
    reach = CalibratedRange(producers=wide, warps=seen.warps, bytes=seen.bytes, gap_cycles=seen.gap_cycles)
    node = {name: _factor(name, t).apply(e) for name, e in pair.node.items()}
    basis = None if pair.node_basis is None else _basis(pair.node_basis, t, stage)
    return replace(
        pair, burst_gap=laws, drain=drain, node=node, node_basis=basis, calibrated_range=reach, plateaus=[], release=[], holdout=None
    )


def _factor(name: str, t: Transfer) -> Ratio:
    """Return what one parameter of the node model is multiplied by; those in cycles of the SM, and the spread of the units, stay."""
    return {
        "link_gb_per_s": t.link,
        "sm_bytes_per_cycle": t.sm,
        "sm_capacity_bytes": t.capacity,
        "unit_capacity_bytes": t.capacity,
        "link_buffer_bytes": t.link,
    }.get(name, Ratio())


def _basis(basis: NodeBasis, t: Transfer, stage: StageFacts) -> NodeBasis:
    """Move what predictions stand on: with another number of SMs, or on another die, the map is one that knows nothing."""
    units, same = int(stage.units.value or 1), len(basis.placement.smids) == t.sms
    return replace(
        basis,
        used={name: value * _factor(name, t).value for name, value in basis.used.items()},
        placement=Placement(basis.placement.units, measured=False) if same else uniform(range(t.sms), max(1, t.sms // units)),
        sm_clock_mhz=t.clock_mhz,
        notes=[*basis.notes, f"scaled from {REFERENCE_NODE}"],
    )


def _rate(producers: int, t: Transfer, most: int) -> float:
    """Return by what the rate of K producers is multiplied: both nodes lose as much of R where their SMs ask for as many times R."""
    new = t.drain_gb_per_s * t.reached(_count(producers, t, most) * t.own_sm_gb_per_s / t.drain_gb_per_s)
    return new / (t.their_drain_gb_per_s * t.reached(producers * t.their_sm_gb_per_s / t.their_drain_gb_per_s))


def _count(producers: int, t: Transfer, most: int) -> int:
    """All SMs stay all SMs."""
    return t.sms if producers == most else producers


def _law(e: BurstGap, t: Transfer, most: int, warp_store_bytes: int) -> BurstGap:
    """Move one law: its rate by what limits it here, its capacity with the SMs that hold it, its knee to where the lines meet then."""
    producers = _count(e.producers, t, most)
    more = Ratio(producers / e.producers)
    link = producers * t.own_sm_gb_per_s > t.drain_gb_per_s
    wide = t.link if link else t.sm
    rate = Ratio(_rate(e.producers, t, most), wide.low, wide.high)
    stalled = (t.clock * more / rate).apply(e.stalled_cycles_per_warp_store)
    return replace(
        e,
        producers=producers,
        drain_gb_per_s=rate.apply(e.drain_gb_per_s),
        capacity_bytes=(t.capacity * more).apply(e.capacity_bytes),
        capacity_bytes_per_producer=t.capacity.apply(e.capacity_bytes_per_producer),
        stalled_cycles_per_warp_store=stalled,
        knee_bytes=_knee(e, stalled.value, t.capacity, warp_store_bytes),
        recovery_gap_cycles=Estimate.missing("not scaled: it follows from T0 and R"),
        peak_backlog_bytes=Estimate.missing("not scaled: it follows from T0 and R"),
        limited_by=None if e.limited_by is None else "link" if link else "producer",
        recipe=None,
    )


def _knee(e: BurstGap, stalled: float | None, capacity: Ratio, warp_store_bytes: int) -> Estimate:
    """Return where T0 and the stalled line of the same intercept, scaled, meet."""
    base, cost, slope, knee = (
        x.value for x in (e.issue_base_cycles, e.issue_cycles_per_warp_store, e.stalled_cycles_per_warp_store, e.knee_bytes)
    )
    if base is None or not cost or not slope or knee is None or stalled is None:
        return e.knee_bytes
    if stalled <= cost:
        return Estimate.missing("the link takes the stores as fast as they are issued")
    store = e.warps * warp_store_bytes
    held = knee - (base + cost * knee / store) * store / slope
    moved = (held * capacity.value + base * store / stalled) / (1 - cost / stalled)
    return Ratio(moved / knee, capacity.low, capacity.high).apply(e.knee_bytes)


def _rates(rates: DrainRate, t: Transfer, most: int) -> DrainRate:
    rate = Ratio(_rate(rates.producers, t, most), t.link.low, t.link.high)
    every = {name: rate.apply(getattr(rates, name)) for name in ("makespan", "sustained", "zero_gap", "mean_slope")}
    return DrainRate(producers=_count(rates.producers, t, most), **every)
