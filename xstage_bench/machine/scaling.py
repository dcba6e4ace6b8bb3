"""From one kind of GPU to another: what an entry of the registry does not have is scaled from entries that have it, by a rule with a name.

The rules carry single numbers. What scales a whole node model from them is `model.scaled_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from xstage_bench.machine.facts import UNKNOWN, Fact, GpuFacts, StageFacts
from xstage_bench.machine.gpus import REFERENCE_NODE, gpus, reference_gpu

#: Every rule by name, in the words that `xstage nodes show` and the page on transfer use.
RULES: dict[str, str] = {
    "share-of-nominal": "R is the share of the nominal rate that the reference reaches; the interval is that of the shares seen elsewhere",
    "share-of-pcie": "R is the share of PCIe's nominal rate that stores to host memory reach on the reference",
    "bytes-per-cycle": "an SM drains as many bytes in a cycle as one of the reference; the interval reaches to other entries",
    "capacity-per-sm": "an SM has as much outstanding as one of the same architecture, else of the reference; the interval holds all",
    "sum-of-sms": "the capacity of one SM times the number of SMs",
    "cycles": "an SM takes as many cycles as one of the reference",
    "same-clock": "the SM clock of the reference, where no source says another",
    "same-unit": "a unit has as many SMs as one of the reference",
}
#: Nominal rate of the PCIe link (5, 16 lanes) over which the reference stores to host memory.
PCIE_5_GB_PER_S = 64.0


def clock_of(facts: GpuFacts) -> Fact:
    """Return the SM clock of an entry, MHz: its own, else the reference's."""
    lent = reference_gpu().sm_clock_mhz
    return facts.sm_clock_mhz if facts.sm_clock_mhz.value is not None else _scaled(lent.value, "same-clock", lent.value, lent.value)


def completed_stage(facts: GpuFacts) -> StageFacts:
    """Return the stage of an entry, with scaled numbers where it has none of its own, and unknown ones where nothing scales.

    Parameters
    ----------
    facts : GpuFacts
    """
    own, lent, sms = facts.stage, reference_gpu(), facts.sm_count.value
    mhz, lent_mhz = clock_of(facts).value, lent.sm_clock_mhz.value
    their = lent.stage
    assert mhz and lent_mhz and their.t0_ns.value and their.sm_gb_per_s.value and their.units.value  # noqa: PT018 - the reference has all
    sm = _else(own.sm_gb_per_s, lambda: _per_cycle(mhz))
    found = {
        "sm_gb_per_s": sm,
        "drain_gb_per_s": _else(own.drain_gb_per_s, lambda: _drain(facts)),
        "sm_capacity_bytes": _else(own.sm_capacity_bytes, lambda: _capacity(facts)),
        "t0_ns": _else(own.t0_ns, lambda: _times(their.t0_ns, lent_mhz / mhz, "cycles")),
        "units": _else(own.units, lambda: _units(sms)),
    }
    each = found["sm_capacity_bytes"]
    found["capacity_bytes"] = _else(own.capacity_bytes, lambda: UNKNOWN if not sms else _times(each, sms, "sum-of-sms"))
    return msgspec.structs.replace(own, **found)


def _else(own: Fact, scaled: Callable[[], Fact]) -> Fact:
    return own if own.value is not None else scaled()


def _scaled(value: float | None, rule: str, low: float | None, high: float | None, of: str = REFERENCE_NODE) -> Fact:
    if value is None:
        return UNKNOWN
    return Fact(value=value, low=low, high=high, status="scaled", rule=rule, source=f"from {of}: {RULES[rule]}")


def _times(fact: Fact, factor: float, rule: str) -> Fact:
    value, low, high = (None if x is None else x * factor for x in (fact.value, fact.low, fact.high))
    return _scaled(value, rule, low, high)


def _drain(facts: GpuFacts) -> Fact:
    nominal, lent = facts.link.nominal_gb_per_s.value, reference_gpu()
    if nominal is None:
        return UNKNOWN
    if facts.link.kind == "pcie":
        host = lent.link.host_gb_per_s
        return _times(host, nominal / PCIE_5_GB_PER_S, "share-of-pcie")
    base = _share(lent)
    shares = [s for f in gpus().values() if f.link.kind == "nvlink" and (s := _share(f)) is not None]
    assert base is not None
    low, high = _ends(shares)
    return _scaled(nominal * base, "share-of-nominal", nominal * low, nominal * high)


def _share(facts: GpuFacts) -> float | None:
    drain, nominal = facts.stage.drain_gb_per_s.value, facts.link.nominal_gb_per_s.value
    return drain / nominal if drain and nominal else None


def _per_cycle(mhz: float) -> Fact:
    each = {name: s / clock_ for name, f in gpus().items() if (s := f.stage.sm_gb_per_s.value) and (clock_ := clock_of(f).value)}
    low, high = _ends(each.values())
    return _scaled(mhz * each[REFERENCE_NODE], "bytes-per-cycle", mhz * low, mhz * high)


def _capacity(facts: GpuFacts) -> Fact:
    known = {name: f for name, f in gpus().items() if f.stage.sm_capacity_bytes.value is not None}
    alike = [n for n, f in known.items() if facts.architecture is not None and _major(f.architecture) == _major(facts.architecture)]
    of = REFERENCE_NODE if REFERENCE_NODE in alike or not alike else alike[0]
    facts_of = [f.stage.sm_capacity_bytes for f in known.values()]
    ends = _ends(x for f in facts_of for x in (f.value, f.low, f.high) if x is not None)
    return _scaled(known[of].stage.sm_capacity_bytes.value, "capacity-per-sm", *ends, of=of)


def _units(sms: float | None) -> Fact:
    lent = reference_gpu()
    their, their_sms = lent.stage.units.value, lent.sm_count.value
    return UNKNOWN if not (sms and their and their_sms) else _scaled(float(round(sms * their / their_sms)), "same-unit", None, None)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def _major(architecture: str | None) -> str:
    """``sm_9`` of ``sm_90``, ``sm_10`` of ``sm_100`` and ``sm_103``."""
    return (architecture or "")[:-1]
