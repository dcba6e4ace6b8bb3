"""Validation against a world that follows the model exactly, and against one that does not."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_rows import CLOCK, fit, rows_of, sweep

from xstage_bench.errors import DataError
from xstage_bench.model.laws import balanced_accuracy
from xstage_bench.model.loggp import fit_loggp
from xstage_bench.model.node.data import measured
from xstage_bench.model.predict import predict
from xstage_bench.model.validate import validate
from xstage_bench.schedule.bursts import Burst, Schedule

#: One and four warps: T0 = 80 + 20 n, or 30 n.
SWEEP = sweep(1, ((1, 20.0), (4, 30.0)))


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
    return fit(SWEEP)


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
    assert (found.n_schedules, found.n_bursts, found.pair, found.statistic) == (12, 72, "0>1", "issue_mean")
    assert max(found.issue_time.p95_error, found.total_time.p95_error) < 1e-9
    assert (found.regime_balanced_accuracy, found.interval_coverage_90) == (1, 1)


def test_errors_are_relative_to_what_was_measured(model):
    found = score(validate(model, world(model, random_schedules(9), factor=1.25)), "burst_gap")
    assert [found.issue_time.median_error, found.issue_time.p90_error] == pytest.approx([0.2, 0.2])
    assert found.interval_coverage_90 < 1
    assert 0 < found.total_time.median_error < 0.2


def test_models_without_capacity_do_worse_and_their_nulls_have_a_reason(model):
    validation = validate(model, pd.concat([SWEEP, world(model, random_schedules(12))], ignore_index=True))
    assert [m.model for m in validation.models] == ["burst_gap", "bandwidth_only", "loggp"]
    for name in ("bandwidth_only", "loggp"):
        found = score(validation, name)
        assert found.issue_time.median_error > 0.05
        assert found.interval_coverage_90 is None
        assert "interval_coverage_90" in found.reasons


def test_loggp_is_fitted_to_the_calibration_probes_and_never_to_what_is_held_out(model):
    schedules = random_schedules(12)
    rows = world(model, schedules)
    alone = fit_loggp(measured(SWEEP, 0, 1, ("isolated",)))
    errors = [np.abs(alone.issue_cycles([s]) / predict(model, s).issue_cycles - 1) for s in schedules]
    found = score(validate(model, pd.concat([SWEEP, rows], ignore_index=True)), "loggp")
    assert found.issue_time.median_error == pytest.approx(np.median(np.concatenate(errors)), rel=1e-6)
    without = validate(model, rows)
    assert "loggp" not in {m.model for m in without.models}
    assert any("no LogGP beside it" in note for note in without.notes)


def test_throttled_held_out_rows_do_not_count(model):
    rows = world(model, random_schedules(6))
    bad = rows.assign(issue_mean_cycles=1e7, status="throttled", repetition=rows["repetition"] + 10)
    assert validate(model, pd.concat([rows, bad], ignore_index=True)).models == validate(model, rows).models
    none = validate(model, rows.assign(status="throttled"))
    assert (none.models, any("no valid samples" in n for n in none.notes)) == ([], True)


def test_a_run_without_held_out_schedules_says_so(model):
    validation = validate(model, SWEEP)
    assert (validation.models, any("holdout" in n for n in validation.notes)) == ([], True)
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
    found = validate(model, pd.concat([SWEEP, judged, passed_over], ignore_index=True)).timed_stall[0]
    assert (found.producers, found.n_stalled, found.n_free) == (132, 3, 3)
    assert found.balanced_accuracy == 1
    free = judged["start_ns"].groupby(judged["schedule"]).transform("max") > judged["start_ns"].max() * 0.75
    wrong = judged.assign(issue_mean_cycles=judged["issue_mean_cycles"].where(~free, 1e5))
    assert validate(model, pd.concat([SWEEP, wrong], ignore_index=True)).timed_stall[0].n_stalled > 3


def test_periodic_law_on_stalled_points(model):
    schedules = [Schedule((Burst(32 * 512, gap),) * 16, 132, start="free") for gap in (0, 1000, 4000, 64_000)]
    rows = pd.concat([rows_of(s, "periodic", (p := predict(model, s)).issue_cycles, p.start_ns) for s in schedules], ignore_index=True)
    every = pd.concat([SWEEP, rows], ignore_index=True)
    fitted = fit(every)
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
        validate(model, SWEEP.drop(columns="bytes"))
