"""Scenes on the simulator: fluid flows that share ports (`flows`). Simpler than the model of one pair, for any number of GPUs.

Left out, beside what docs/simulator.md lists: the tree of arbiters and the stagger that it causes, credits, company.
"""

from __future__ import annotations

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.core import Ideal, places
from xstage_bench.device.sim.flows import Flow, Ports, run_flows, shared_ports
from xstage_bench.device.sim.port import issue_cycles
from xstage_bench.device.sim.presets import Preset
from xstage_bench.schedule.bursts import HOST, Schedule


def ports_of(preset: Preset, schedules: tuple[Schedule, ...], link: Array, mhz: float) -> Ports:
    """Return who shares what on a preset's node; `link` is a factor on each pair's link, `mhz` the SM clock."""
    per_cycle = 1e3 / mhz
    own = []
    for s, factor in zip(schedules, link, strict=True):
        most = s.producer_count * (preset.local_sm_bytes_per_cycle if s.is_local else preset.sm_bytes_per_cycle)
        pair = preset.host_gb_per_s if s.destination == HOST else preset.link_gb_per_s
        own.append(most if s.is_local else min(most, pair * factor * per_cycle))
    rates = {"host": preset.host_gb_per_s, "egress": preset.egress_gb_per_s, "ingress": preset.ingress_gb_per_s}
    return shared_ports(schedules, np.array(own), lambda kind, gpu: rates[kind] * per_cycle)


def courses(preset: Preset, schedules: tuple[Schedule, ...], link: Array, capacity: float, mhz: float) -> list[Ideal]:
    """Run all schedules from a common start to their ends.

    Parameters
    ----------
    capacity : float
        Factor on what an SM may have outstanding.

    Returns
    -------
    list of Ideal
        In the order of the schedules; all producers of a schedule have the same times.
    """
    flows = [_fresh(preset, s, capacity, mhz) for s in schedules]
    run_flows(flows, ports_of(preset, schedules, link, mhz))
    return [_ideal(preset, f) for f in flows]


def _fresh(preset: Preset, s: Schedule, factor: float, mhz: float) -> Flow:
    place = places(preset.groups, s.smids(preset.smids))
    each = preset.local_capacity_bytes if s.is_local else np.where(place[2], preset.capacity_both_bytes, preset.capacity_alone_bytes)
    free = issue_cycles(preset.port, s.warps, s.stores_per_warp())
    total = float(np.broadcast_to(each, place[2].shape).sum()) * factor + (preset.host_buffer_bytes if s.destination == HOST else 0.0)
    return Flow(s, free, total, mhz / 1e3, preset.turnaround, preset.gap_overhead)


def _ideal(preset: Preset, f: Flow) -> Ideal:
    k = f.schedule.producer_count
    left = np.full(f.size.size, np.nan)
    left[-1] = max(0.0, f.empty_at - f.end[-1])
    smids = f.schedule.smids(preset.smids)
    wide = np.ones(k)
    return Ideal(smids, f.start[:, None] * wide, f.end[:, None] * wide, left[:, None] * wide, f.free, np.zeros((f.size.size, k)))
