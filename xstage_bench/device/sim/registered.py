"""Simulated nodes of the registry: the recorded node's queueing model with another entry's SMs, clock, links and capacities."""

from __future__ import annotations

from dataclasses import replace

from xstage_bench.device.sim.presets import PRESETS, Groups, Preset
from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.facts import Fact
from xstage_bench.machine.gpus import REFERENCE_NODE, RegisteredNode, entry_names, find_entry, reference_gpu
from xstage_bench.machine.scaling import clock_of, completed_stage

#: The preset that was calibrated on the reference.
_BASE = "h200-nv18-x2"


def find_preset(name: str) -> Preset:
    """Return the preset called `name`, or two GPUs of the registry's entry of that name.

    Raises
    ------
    UsageError
        There is neither; the hint lists those there are.
    DataError
        The registry does not know how many SMs the entry has, or nothing of its link.
    """
    if name in PRESETS:
        return PRESETS[name]
    try:
        entry = find_entry(name)
    except UsageError:
        known = ", ".join([*PRESETS, "burst-gap", *entry_names()])
        raise UsageError(f"the simulator has no preset '{name}'", f"use one of: {known}") from None
    return preset_of(entry)


def preset_of(entry: RegisteredNode) -> Preset:
    """Return two GPUs of a registry's entry.

    Notes
    -----
    Rates and capacities are those of `completed_stage`, relative to the reference's, times those that the simulator was calibrated to: the
    reference itself gives the recorded node. What the registry has no word for, such as the port's cycles and the noise, stays as recorded.
    """
    base, facts = PRESETS[_BASE], entry.facts
    stage, lent = completed_stage(facts), completed_stage(reference_gpu())
    sms = facts.sm_count.value
    if not sms or stage.drain_gb_per_s.value is None:
        missing = "how many SMs" if not sms else "the nominal rate of the link"
        raise DataError(
            f"the registry does not know {missing} of {entry.name}", f"give it in a file of your own: xstage nodes show {entry.name}"
        )
    mhz = clock_of(facts).value or base.sm_clock_mhz
    link = _ratio(stage.drain_gb_per_s, lent.drain_gb_per_s)
    each = _ratio(stage.sm_gb_per_s, lent.sm_gb_per_s) * base.sm_clock_mhz / mhz
    held = _ratio(stage.sm_capacity_bytes, lent.sm_capacity_bytes)
    line = facts.link.line_gb_per_s.value or facts.link.nominal_gb_per_s.value
    scaled = entry.name != REFERENCE_NODE
    return replace(
        base,
        name=entry.name,
        gpu=f"{facts.names[0] if facts.names else entry.name} (simulated)",
        provenance=f"the registry's {entry.name}: two GPUs, {'scaled from' if scaled else 'as'} {_BASE}; xstage nodes show {entry.name}",
        sm_count=int(sms),
        sm_clock_mhz=mhz,
        line_rate_gb_per_s=line or base.line_rate_gb_per_s * link,
        link_gb_per_s=base.link_gb_per_s * link,
        egress_gb_per_s=base.egress_gb_per_s * link,
        ingress_gb_per_s=base.ingress_gb_per_s * link,
        link_buffer_bytes=base.link_buffer_bytes * link,
        sm_bytes_per_cycle=base.sm_bytes_per_cycle * each,
        capacity_alone_bytes=base.capacity_alone_bytes * held,
        capacity_both_bytes=base.capacity_both_bytes * held,
        groups=base.groups if int(sms) == base.sm_count else dealt(int(sms), base.groups),
    )


def dealt(sms: int, like: Groups) -> Groups:
    """Deal pairs of neighbouring smids to groups and subgroups as unequal as those given: the recorded form, of no particular die."""
    wanted = [[len(members) for members in group] for group in like]
    found: list[list[list[int]]] = [[[] for _ in group] for group in like]
    places = [(g, s) for g, group in enumerate(wanted) for s in range(len(group))]
    for pair in range((sms + 1) // 2):
        g, s = min(places, key=lambda at: (len(found[at[0]][at[1]]) + 0.5) / wanted[at[0]][at[1]])
        found[g][s].append(pair)
    return tuple(tuple(tuple(members) for members in group if members) for group in found)


def _ratio(own: Fact, lent: Fact) -> float:
    return own.value / lent.value if own.value and lent.value else 1.0
