"""The fit on real data of 2 x H200: the bars of the fitted laws. The data is reduced, one row per configuration."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.validate import validate

DATA = Path(__file__).parents[1] / "data" / "model_h200_clean.csv.gz"
CLOCK_MHZ = 1980.0
GRID = [(k, w) for k in (1, 8, 12, 16, 24, 32, 48, 64, 96, 132) for w in (1, 2, 4, 8, 16)]


def samples_of(path: Path) -> pd.DataFrame:
    """Rows of the reduced format as sample rows: one process, one repetition, 32 timed bursts of which some rows are kept."""
    d = pd.read_csv(path)
    isolated, periodic, timed = (d["mode"] == m for m in ("isolated", "periodic", "timed"))
    local = d["target"] == "local"
    group = d.groupby(["mode", "target", "sms", "warps", "stores", "gap_cycles", "period_ns"], sort=False).ngroup()
    before = (d["issue_mean"] + d["gap_measured"].where(d["burst"] > 0, 0)).groupby(group).cumsum() - d["issue_mean"]
    start = np.where(timed, d["burst"] * d["period_ns"], np.where(periodic, before * 1e3 / CLOCK_MHZ, 0.0))
    same = {
        "kind": "measure", "source": 0, "flavour": "st.v4", "layout": "contiguous", "producer_set": "even", "process": 0, "repetition": 0,
        "sm_clock_mhz": CLOCK_MHZ, "status": "ok",
    }  # fmt: skip
    return pd.DataFrame(
        {
            "schedule": group.map("{:016x}".format),
            "probe": np.where(isolated, np.where(local, "local", "isolated"), d["mode"]),
            "destination": np.where(local, 0, 1),
            "start": d["mode"].map({"isolated": "isolated", "periodic": "free", "timed": "timed"}),
            "producers": d["sms"],
            "warps": d["warps"],
            "burst": d["burst"],
            "bursts": np.select([timed, periodic], [32, 16], 1),
            "bytes": d["stores"] * d["warps"] * 512,
            "gap_cycles": np.where(periodic & (d["burst"] > 0), d["gap_cycles"], np.nan),
            "start_ns": np.where(timed, d["burst"] * d["period_ns"], np.nan),
            "issue_mean_cycles": d["issue_mean"],
            "issue_max_cycles": d["issue_max"],
            "gap_mean_cycles": np.where(periodic & (d["burst"] > 0), d["gap_measured"], np.nan),
            "start_mean_ns": start,
        }
    ).assign(**same)


@pytest.fixture(scope="module")
def samples():
    return samples_of(DATA)


@pytest.fixture(scope="module")
def model(samples):
    return calibrate(samples, backend="cuda", gpu="NVIDIA H200", sm_clock_mhz=CLOCK_MHZ)


@pytest.fixture(scope="module")
def pair(model):
    return model.find("0>1")


@pytest.fixture(scope="module")
def validation(model, samples):
    return validate(model, samples)


def test_the_isolated_law_holds_for_each_k_and_w(pair, validation):
    error = np.array([pair.find(k, w).median_error for k, w in GRID])
    assert (error <= 0.05).mean() >= 0.9
    assert error.max() <= 0.08
    table = {(e.producers, e.warps): e.median_error for e in validation.isolated_law if e.pair == "0>1"}
    np.testing.assert_allclose([table[g] for g in GRID], error, rtol=1e-6)


def test_r_and_q_at_all_sms(pair):
    assert next(d for d in pair.drain if d.producers == 132).makespan.value == pytest.approx(372, rel=0.03)
    for warps in (1, 2, 4, 8, 16):
        entry = pair.find(132, warps)
        assert entry.drain_gb_per_s.value == pytest.approx(372, rel=0.03)
        assert entry.drain_gb_per_s.statistic == "issue_max"
        assert 15_000 <= entry.capacity_bytes_per_producer.value <= 22_000
        assert entry.capacity_bytes.value == pytest.approx(132 * entry.capacity_bytes_per_producer.value)
        assert entry.limited_by == "link"
        if warps in (1, 4):  # where the recipe by hand has its points
            assert entry.recipe.drain_gb_per_s.value == pytest.approx(entry.drain_gb_per_s.value, rel=0.05)
            assert entry.recipe.capacity_bytes.value == pytest.approx(entry.capacity_bytes.value, rel=0.05)


def test_few_sms(pair):
    """The mean overstates R; one warp never stalls."""
    rate = next(d for d in pair.drain if d.producers == 16)
    assert 1.15 < rate.mean_slope.value / rate.makespan.value < 1.5
    for producers in (1, 8):
        entry = pair.find(producers, 1)
        assert entry.capacity_bytes.status == "not_identified"
        assert "never saturates" in entry.capacity_bytes.reason
        assert entry.t0_cycles.value == pytest.approx(64 * 20 + 64, rel=0.01)
    # 8 SMs with one warp issued 405 GB/s without a stall; R of 8 SMs with more warps is less, so it must not be taken over.
    assert pair.find(8, 1).drain_gb_per_s.status == "not_identified"
    assert pair.find(1, 4).limited_by == "producer"


def test_the_periodic_law_and_stalls_of_timed_schedules(validation):
    periodic = next(p for p in validation.periodic_law if p.producers == 132)
    assert periodic.n_points > 50
    assert periodic.median_error <= 0.06
    assert periodic.p90_error <= 0.12
    timed = next(t for t in validation.timed_stall if t.producers == 132)
    assert timed.n_stalled > 20
    assert timed.n_free > 10
    assert timed.balanced_accuracy >= 0.97


def test_the_link_is_what_a_local_destination_lacks(model, pair):
    local, remote = model.find("0>0"), pair.find(132, 4)
    assert local.is_local
    t0_per_byte = [e.t0_cycles.value / e.t0_bytes for e in (local.find(132, 4), remote)]
    assert t0_per_byte[0] == pytest.approx(t0_per_byte[1], rel=0.25)
    assert local.find(132, 4).drain_gb_per_s.value > 8 * remote.drain_gb_per_s.value


def test_one_process_is_said(model, pair):
    assert any("1 process" in note for note in model.notes)
    assert "1 process" in pair.find(132, 4).t0_cycles.reason
