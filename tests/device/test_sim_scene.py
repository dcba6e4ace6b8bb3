"""Scenes on the simulator: shared ports, the closed forms on one flow, every pattern on eight GPUs."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.device.sim import PRESETS, Faults, SimDevice
from xstage_bench.device.sim.scene import Ports, courses, max_min
from xstage_bench.errors import PairError, UsageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.patterns import PATTERNS, fan_out, incast, pair, ring
from xstage_bench.schedule.scenes import Scene
from xstage_bench.schedule.studies import gap_work, pulls

P = PRESETS["h200-nvswitch-x8"]
LONG = (Burst(1 << 20),)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_sharing_is_max_min_fair(flows: int, ports: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    through = (rng.random((ports, flows)) < 0.5).astype(float)
    own, port = rng.uniform(0.1, 10, flows), rng.uniform(0.1, 10, ports)
    wanted = np.where(rng.random(flows) < 0.2, 0.0, rng.uniform(0, 12, flows))
    rate = max_min(Ports(own, port, through), wanted)
    most = np.minimum(own, wanted)
    assert (rate <= most + 1e-5).all()
    assert (through @ rate <= port + 1e-5).all()
    for j in np.flatnonzero(rate < most - 1e-4):
        full = [i for i in np.flatnonzero(through[:, j]) if through[i] @ rate > port[i] - 1e-4]
        assert any(rate[j] >= rate[through[i] > 0].max() - 1e-4 for i in full), "held back, yet not among the fastest of a full port"


@pytest.mark.parametrize("gap", [0, 5000, 20000, 60000])
def test_one_flow_keeps_the_periodic_law(gap: int) -> None:
    s = Schedule(tuple(Burst(32 * 1024, gap) for _ in range(40)), 132, 4, 0, 1, "free")
    (ideal,) = courses(P, (s,), np.ones(1), 1.0, P.sm_clock_mhz)
    volume, rate = 132 * 32 * 1024, P.link_gb_per_s * 1e3 / P.sm_clock_mhz
    measured_gap = max(P.turnaround, gap + P.gap_overhead)
    alone = (volume - 132 * P.capacity_both_bytes) / rate
    law = max(ideal.free[30], volume / rate - measured_gap, alone)
    assert (ideal.end - ideal.start)[30, 0] == pytest.approx(law, rel=1e-6)


@pytest.mark.parametrize("size", [8192, 16384, 65536, 262144])
def test_an_isolated_burst_stalls_at_its_capacity(size: int) -> None:
    (ideal,) = courses(P, (Schedule((Burst(size),), 132, 4, 0, 1),), np.ones(1), 1.0, P.sm_clock_mhz)
    rate = P.link_gb_per_s * 1e3 / P.sm_clock_mhz
    law = max(ideal.free[0], (132 * size - 132 * P.capacity_both_bytes) / rate)
    assert (ideal.end - ideal.start)[0, 0] == pytest.approx(law, rel=1e-6)


def rates(scene: Scene, preset: str = "h200-nvswitch-x8") -> np.ndarray:
    device = SimDevice(preset, seed=1)
    found = device.measure_scene(scene, 4)
    assert [t.status for t in found] == ["warmup", "ok", "ok", "ok"]
    return np.median([t.gb_per_s() for t in found[1:]], axis=0)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_port_carries_more_than_it_can(name: str) -> None:
    node = SimDevice("h200-nvswitch-x8").node()
    scene = PATTERNS[name](node, LONG)
    found = rates(scene)
    out, into = np.zeros((2, 8))
    for s, rate in zip(scene.schedules, found, strict=True):
        out[s.source] += rate
        into[s.destination] += rate
    assert out.max() < 1.05 * P.egress_gb_per_s
    assert into.max() < 1.05 * P.ingress_gb_per_s
    assert max(out.max(), into.max()) > 0.85 * P.egress_gb_per_s


def test_an_incast_shares_the_ingress_and_a_ring_shares_nothing() -> None:
    node = SimDevice("h200-nvswitch-x8").node()
    np.testing.assert_allclose(rates(incast(node, LONG)), P.ingress_gb_per_s / 7, rtol=0.1)
    assert rates(ring(node, LONG)).min() > 0.9 * P.link_gb_per_s
    assert rates(fan_out(node, LONG)).sum() == pytest.approx(P.egress_gb_per_s, rel=0.1)


def test_flows_that_end_leave_their_share_to_the_others() -> None:
    long, short = Schedule(LONG, 132, 4, 1, 0), Schedule((Burst(1 << 18),), 132, 4, 2, 0)
    a, b = courses(P, (long, short), np.ones(2), 1.0, P.sm_clock_mhz)
    rate = P.ingress_gb_per_s * 1e3 / P.sm_clock_mhz
    drained = a.end[0, 0] + a.backlogged[0, 0]
    assert drained == pytest.approx(132 * (2**20 + 2**18) / rate, rel=0.01)
    assert b.end[0, 0] < 0.55 * a.end[0, 0]


def test_host_memory_is_a_path_of_its_own() -> None:
    bursts = (Burst(1 << 18),)
    host, peer = Schedule(bursts, tuple(range(66)), 4, 0, HOST), Schedule(bursts, tuple(range(66, 132)), 4, 0, 1)
    to_host, to_peer = rates(Scene((host, peer)), "h200-nv18-x2")
    assert to_host == pytest.approx(P.host_gb_per_s, rel=0.15)
    assert to_peer > 0.85 * P.link_gb_per_s


def test_isolated_bursts_to_host_memory_are_near_the_recorded_ones() -> None:
    """18 kB per SM as on NVLink and one shared buffer before PCIe explain most of what 2 x H200 recorded."""
    path = asset_dir("results") / "reference" / "h200-clean" / "host-isolated.csv.gz"
    with gzip.open(path, "rt") as text:
        table = [r for r in csv.DictReader(text) if r["destination"] == "-1" and r["probe"] == "isolated" and r["warps"] == "4"]
    schedules = [Schedule((Burst(int(r["bytes"])),), int(r["producers"]), 4, 0, HOST) for r in table]
    recorded = np.array([float(r["issue_mean_cycles"]) for r in table])
    traces = SimDevice(peer="host").measure([Execution(s) for s in schedules])
    error = np.abs(np.array([t.issue_cycles.mean() for t in traces]) / recorded - 1)
    assert len(table) > 200
    assert np.median(error) < 0.06


def test_timed_and_empty_bursts_run_to_their_end() -> None:
    bursts = (Burst(0), Burst(8192, start_ns=5000), Burst(0, start_ns=9000), Burst(8192, start_ns=9000))
    s = Schedule(bursts, 8, 4, 0, 1, "timed")
    (ideal,) = courses(P, (s,), np.ones(1), 1.0, P.sm_clock_mhz)
    assert ideal.start[1, 0] == pytest.approx(5000 * 1.98)
    assert (np.diff(ideal.start[:, 0]) > 0).all()


def test_what_the_simulator_does_not_know_is_refused_and_faults_reach_scenes() -> None:
    node = SimDevice().node()
    for scene in (next(s for s in pulls(node) if s.company), next(s for s in gap_work(node) if s.gap_work == "mma")):
        with pytest.raises(UsageError, match="knows nothing"):
            SimDevice().measure_scene(scene, 2)
    with pytest.raises(PairError):
        SimDevice(faults=Faults(dropped=frozenset({(0, 1)}))).measure_scene(pair(node, LONG), 2)
