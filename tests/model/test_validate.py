"""Validation against a world that follows the model exactly, and against one that does not."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from xstage_bench.errors import DataError
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.laws import balanced_accuracy
from xstage_bench.model.loggp import fit_loggp
from xstage_bench.model.node.data import measured
from xstage_bench.model.predict import predict
from xstage_bench.model.validate import validate
from xstage_bench.schedule.bursts import Burst, Schedule

CLOCK = 2000.0
SIZES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 384, 512)


def rows_of(schedule, probe, issue_cycles, start_ns, *, process=0, repetition=0):
    count = len(schedule.bursts)
    return pd.DataFrame(
        {
            "schedule": schedule.key(),
            "probe": probe,
            "kind": "measure",
            "source": 0,
            "destination": 1,
            "flavour": "st.v4",
            "layout": "contiguous",
            "start": schedule.start,
            "producers": schedule.producer_count,
            "producer_set": schedule.producer_set,
            "warps": schedule.warps,
            "burst": np.arange(count),
            "bursts": count,
            "bytes": [b.bytes for b in schedule.bursts],
            "gap_cycles": [float(b.gap_cycles) if i and schedule.start == "free" else np.nan for i, b in enumerate(schedule.bursts)],
            "start_ns": [float(b.start_ns) if schedule.start == "timed" else np.nan for b in schedule.bursts],
            "process": process,
            "repetition": repetition,
            "issue_mean_cycles": issue_cycles,
            "issue_max_cycles": issue_cycles,
            "gap_mean_cycles": [float(b.gap_cycles) if i and schedule.start == "free" else np.nan for i, b in enumerate(schedule.bursts)],
            "start_mean_ns": start_ns,
            "sm_clock_mhz": CLOCK,
            "status": "ok",
        }
    )


def isolated_sweep():
    """132 SMs, one and four warps: T0 = 80 + 20 n (or 30 n), R = 400 GB/s, Q = 19 kB per SM."""
    parts = []
    for warps, cost in ((1, 20.0), (4, 30.0)):
        for n in SIZES:
            issue = max(80 + cost * n, (n * warps * 512 - 19_000) * 132 / 400 * CLOCK / 1e3)
            for process in range(3):
                schedule = Schedule((Burst(n * warps * 512),), 132, warps)
                parts.append(rows_of(schedule, "isolated", [issue], [0.0], process=process, repetition=process))
    return pd.concat(parts, ignore_index=True)


def random_schedules(count, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        start = ("free", "timed", "isolated")[i % 3]
        stores = rng.integers(1, 200, 6)
        at = np.concatenate([[0], np.cumsum(rng.integers(300, 30_000, 5))])
        bursts = tuple(Burst(int(n) * 512, int(rng.integers(0, 50_000)), int(t)) for n, t in zip(stores, at, strict=True))
        out.append(Schedule(bursts, 132, 1, start=start))
    return out


@pytest.fixture(scope="module")
def model():
    return calibrate(isolated_sweep(), backend="made", gpu="none", sm_clock_mhz=CLOCK, resamples=20)


def world(model, schedules, factor=1.0):
    """Held-out rows as the model itself would have it, issue times multiplied by `factor`."""
    parts = []
    for schedule in schedules:
        p = predict(model, schedule)
        parts += [rows_of(schedule, "holdout", p.issue_cycles * factor, p.start_ns, repetition=r) for r in range(3)]
    return pd.concat(parts, ignore_index=True)


def score(validation, name):
    return next(m for m in validation.models if m.model == name)


def test_a_world_like_the_model_has_no_error(model):
    found = score(validate(model, world(model, random_schedules(12))), "burst_gap")
    assert (found.n_schedules, found.n_bursts) == (12, 72)
    assert found.issue_time.p95_error < 1e-9
    assert found.total_time.p95_error < 1e-9
    assert found.regime_balanced_accuracy == 1
    assert found.interval_coverage_90 == 1
    assert found.pair == "0>1"
    assert found.statistic == "issue_mean"


def test_errors_are_relative_to_what_was_measured(model):
    found = score(validate(model, world(model, random_schedules(9), factor=1.25)), "burst_gap")
    assert found.issue_time.median_error == pytest.approx(0.2)
    assert found.issue_time.p90_error == pytest.approx(0.2)
    assert found.interval_coverage_90 < 1
    assert 0 < found.total_time.median_error < 0.2


def test_models_without_capacity_do_worse_and_their_nulls_have_a_reason(model):
    validation = validate(model, pd.concat([isolated_sweep(), world(model, random_schedules(12))], ignore_index=True))
    assert [m.model for m in validation.models] == ["burst_gap", "bandwidth_only", "loggp"]
    for name in ("bandwidth_only", "loggp"):
        found = score(validation, name)
        assert found.issue_time.median_error > 0.05
        assert found.interval_coverage_90 is None
        assert "interval_coverage_90" in found.reasons


def test_loggp_is_fitted_to_the_calibration_probes_and_never_to_what_is_held_out(model):
    schedules = random_schedules(12)
    rows = world(model, schedules)
    alone = fit_loggp(measured(isolated_sweep(), 0, 1, ("isolated",)))
    errors = [np.abs(alone.issue_cycles([s]) / predict(model, s).issue_cycles - 1) for s in schedules]
    found = score(validate(model, pd.concat([isolated_sweep(), rows], ignore_index=True)), "loggp")
    assert found.issue_time.median_error == pytest.approx(np.median(np.concatenate(errors)), rel=1e-6)
    without = validate(model, rows)
    assert "loggp" not in {m.model for m in without.models}
    assert any("no LogGP beside it" in note for note in without.notes)


def test_throttled_held_out_rows_do_not_count(model):
    rows = world(model, random_schedules(6))
    bad = rows.assign(issue_mean_cycles=1e7, status="throttled", repetition=rows["repetition"] + 10)
    assert validate(model, pd.concat([rows, bad], ignore_index=True)).models == validate(model, rows).models
    none = validate(model, rows.assign(status="throttled"))
    assert none.models == []
    assert any("no valid samples" in n for n in none.notes)


def test_a_run_without_held_out_schedules_says_so(model):
    validation = validate(model, isolated_sweep())
    assert validation.models == []
    assert any("holdout" in n for n in validation.notes)
    assert {(e.producers, e.warps) for e in validation.isolated_law} == {(132, 1), (132, 4)}
    assert max(e.p95_error for e in validation.isolated_law) < 0.02


def test_one_regime_only_has_no_balanced_accuracy(model):
    free = [Schedule((Burst(512),) * 3, 132), Schedule((Burst(1024),) * 3, 132)]
    found = score(validate(model, world(model, free)), "burst_gap")
    assert found.regime_balanced_accuracy is None
    assert "one regime" in found.reasons["regime_balanced_accuracy"]


def timed_schedules(shares, stores=16, bursts=16):
    period = {share: round(132 * stores * 512 / 400 * share) for share in shares}
    return [Schedule(tuple(Burst(stores * 512, start_ns=i * p) for i in range(bursts)), 132, start="timed") for p in period.values()]


def timed_rows(model, schedules):
    return pd.concat([rows_of(s, "timed", (p := predict(model, s)).issue_cycles, p.start_ns) for s in schedules], ignore_index=True)


def test_stall_of_timed_schedules_near_the_boundary_and_outside_is_not_judged(model):
    judged = timed_rows(model, timed_schedules((0.7, 0.8, 0.9, 1.1, 1.2, 1.4)))
    passed_over = timed_rows(model, timed_schedules((0.3, 0.97, 1.03, 2.0)))
    found = validate(model, pd.concat([isolated_sweep(), judged, passed_over], ignore_index=True)).timed_stall[0]
    assert (found.producers, found.n_stalled, found.n_free) == (132, 3, 3)
    assert found.balanced_accuracy == 1
    free = judged["start_ns"].groupby(judged["schedule"]).transform("max") > judged["start_ns"].max() * 0.75
    wrong = judged.assign(issue_mean_cycles=judged["issue_mean_cycles"].where(~free, 1e5))
    assert validate(model, pd.concat([isolated_sweep(), wrong], ignore_index=True)).timed_stall[0].n_stalled > 3


def test_periodic_law_on_stalled_points(model):
    schedules = [Schedule((Burst(32 * 512, gap),) * 16, 132, start="free") for gap in (0, 1000, 4000, 64_000)]
    rows = pd.concat([rows_of(s, "periodic", (p := predict(model, s)).issue_cycles, p.start_ns) for s in schedules], ignore_index=True)
    every = pd.concat([isolated_sweep(), rows], ignore_index=True)
    fitted = calibrate(every, backend="made", gpu="none", sm_clock_mhz=CLOCK, resamples=20)
    found = validate(fitted, every).periodic_law[0]
    assert found.n_points == 3
    assert found.p90_error < 0.02
    slower = dataclasses.replace(fitted, sm_clock_mhz=CLOCK / 2)
    assert validate(slower, every).periodic_law[0].median_error > 0.3


def test_balanced_accuracy_weighs_both_kinds_alike():
    measured = np.array([True] * 90 + [False] * 10)
    assert balanced_accuracy(measured, np.ones(100, dtype=bool)) == 0.5
    assert balanced_accuracy(measured, measured) == 1
    assert balanced_accuracy(np.ones(3, dtype=bool), np.ones(3, dtype=bool)) is None


def test_samples_that_lack_a_column_are_refused(model):
    with pytest.raises(DataError, match="bytes"):
        validate(model, isolated_sweep().drop(columns="bytes"))
