"""Fits against known truth: what is found, what is said not to be known, and how it is scored."""

from dataclasses import replace

import numpy as np
import pytest
from node_scores import score_node
from node_worlds import PLACE, TRUTH, Noise, quick_schedules, shorter, synthesize
from onsets import onset_readings

from xstage_bench.errors import DataError
from xstage_bench.model.loggp import LogGP, fit_loggp
from xstage_bench.model.node.calibrate import NodeFit, fit_measured, log_errors
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.intervals import REGIMES, BurstRange, ResidualQuantiles, in_range, interval, learn_spread
from xstage_bench.model.node.parameters import PARAMETERS
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node.targets import choose
from xstage_bench.schedule.bursts import Burst, Schedule

SCHEDULES = shorter(quick_schedules(36, 0, 1, link_gb_per_s=100.0), 5)


@pytest.fixture(scope="module")
def data() -> MeasuredSchedules:
    return synthesize(TRUTH, SCHEDULES, np.random.default_rng(7))


@pytest.fixture(scope="module")
def fit(data: MeasuredSchedules) -> NodeFit:
    return fit_measured(data, PLACE)


def test_a_fit_finds_the_truth_it_was_made_from(fit: NodeFit) -> None:
    assert fit.model.values() == pytest.approx(TRUTH.values(), rel=0.12)
    for name, estimate in fit.estimates.items():
        assert estimate.status == "ok", name
        width = estimate.high - estimate.low
        truth = getattr(TRUTH, name)
        assert estimate.low - width <= truth <= estimate.high + width, name  # its coverage is counted by tests/claims/node_truth.py
        assert 0 < width < truth


def test_without_noise_the_fit_predicts_what_it_has_not_seen() -> None:
    clean = synthesize(TRUTH, SCHEDULES, np.random.default_rng(1), noise=Noise(0.0, 0.0))
    found = fit_measured(clean, PLACE)
    unseen = [Schedule((Burst(24 * 1536, 700), Burst(6 * 1536, 900), Burst(50 * 1536, 3000)), k, 3, start="free") for k in (12, 20, 36)]
    truth = predict_node(TRUTH, unseen).issue_cycles
    assert predict_node(found.model, unseen).issue_cycles == pytest.approx(truth, rel=0.02)


def test_what_the_schedules_do_not_touch_is_not_identified() -> None:
    alone = [Schedule((Burst(n * w * 512),), 1, w) for w in (1, 4) for n in (4, 8, 16, 64, 256)]
    found = fit_measured(synthesize(TRUTH, alone, np.random.default_rng(2)), PLACE)
    for name in ("link_gb_per_s", "link_buffer_bytes", "service_spread"):
        one = found.estimates[name]
        assert (one.status, one.value, bool(one.reason)) == ("not_identified", None, True), name
    assert {found.estimates[name].status for name in ("sm_bytes_per_cycle", "issue_cycles_per_store")} == {"ok"}


def test_a_fixed_parameter_stays_and_says_so(data: MeasuredSchedules) -> None:
    found = fit_measured(data, PLACE, replace(TRUTH, service_spread=0.0), fixed=("service_spread",))
    assert found.model.service_spread == 0.0
    assert found.estimates["service_spread"].value is None
    assert tuple(found.estimates) == tuple(PARAMETERS)


def test_too_little_data_is_refused() -> None:
    one = synthesize(TRUTH, [Schedule((Burst(2048),), 4, 1)], np.random.default_rng(0))
    with pytest.raises(DataError, match="measure more"):
        fit_measured(one, PLACE)
    few = synthesize(TRUTH, [Schedule((Burst(2048),) * 3, 4, 1, start="free")], np.random.default_rng(0))
    with pytest.raises(DataError, match="four numbers"):
        fit_loggp(few)


def test_choosing_is_repeatable_and_keeps_every_kind(data: MeasuredSchedules) -> None:
    first, again = (choose(data, 30, 3) for _ in range(2))
    assert first.keys == again.keys
    assert len(first.keys) == 30
    assert set(first.probes) == {"isolated", "periodic", "timed"}


def test_intervals_hold_what_they_promise(data: MeasuredSchedules, fit: NodeFit) -> None:
    rng = np.random.default_rng(11)
    sizes, gaps = rng.integers(4, 90, (5, 6)) * 1024, rng.integers(0, 9000, (5, 6))
    others = [
        Schedule(tuple(Burst(int(n), int(g)) for n, g in zip(sizes[i], gaps[i], strict=True)), k, 2, start="free")
        for i, k in enumerate((8, 16, 24, 30, 36))
    ]
    heldout = synthesize(TRUTH, others, rng)
    spread = learn_spread(fit, data)
    low, high = interval(predict_node(fit.model, others), spread, heldout.isolated)
    assert ((low <= heldout.issue_cycles) & (heldout.issue_cycles <= high)).mean() > 0.8
    assert in_range(spread, fit.model, np.array([8.0, 40.0]), np.array([2.0, 2.0]), np.array([4096.0, 4096.0])).tolist() == [True, False]


def test_a_perfect_prediction_scores_zero_and_a_wrong_one_its_error() -> None:
    clean = synthesize(TRUTH, SCHEDULES, np.random.default_rng(1), noise=Noise(0.0, 0.0))
    perfect = score_node(TRUTH, None, clean)
    assert [perfect.median_error, perfect.p95_error, perfect.balanced_accuracy] == pytest.approx([0, 0, 1], abs=1e-9)
    spread = ResidualQuantiles((np.log(1.1),) * len(REGIMES), (np.log(1.3),) * len(REGIMES), BurstRange((1, 36), (1, 8), (512, 1 << 20)))
    wrong = score_node(TRUTH, spread, replace(clean, issue_cycles=clean.issue_cycles / 1.2))
    assert wrong.median_error == pytest.approx(0.2)
    assert wrong.interval_coverage_90 == 0.0
    assert wrong.interval_score == pytest.approx(1.2 * 0.2 + 20 * 0.32)


def test_the_true_model_scores_within_the_noise_and_better_than_loggp(data: MeasuredSchedules) -> None:
    ours = score_node(TRUTH, None, data).median_error
    assert ours < 0.02
    rival = np.abs(fit_loggp(data).issue_cycles(data.schedules) / data.issue_cycles - 1)
    assert np.median(rival) > 3 * ours


def test_loggp_finds_its_own_numbers() -> None:
    truth = LogGP(60.0, 19.0, 10.0, 0.02)
    some = [Schedule((Burst(n * w * 512),), k, w) for w in (1, 4, 8) for n in (2, 16, 128) for k in (1, 8, 36)]
    found = fit_loggp(replace(synthesize(TRUTH, some, np.random.default_rng(0)), issue_cycles=truth.issue_cycles(some)))
    assert (found.overhead_cycles, found.store_cycles, found.cycles_per_byte) == pytest.approx((60.0, 19.0, 0.02), rel=0.02)
    assert truth.issue_cycles([Schedule((Burst(0), Burst(512)), 1)]).tolist() == [0.0, 79.0]


def test_onset_recovery_and_transient_of_the_truth_meet_themselves() -> None:
    knee = [Schedule((Burst(n * 512),), 36, 1) for n in range(30, 75)]
    need = 36 * 32 * 512 / 100.0
    trains = [Schedule(tuple(Burst(32 * 512, start_ns=round(i * f * need)) for i in range(24)), 36, 1, start="timed") for f in (0.8, 1.1)]
    gaps = [Schedule((Burst(32 * 512, round(f * need * 1.98)),) * 12, 36, 1, start="free") for f in (0.3, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2)]
    data = synthesize(TRUTH, knee + trains + gaps, np.random.default_rng(0), noise=Noise(0.0, 0.0))
    found = onset_readings(TRUTH, data)
    assert {f.what for f in found} == {"onset", "recovery", "transient"}
    assert all(f.within for f in found if f.measured is not None)
    assert next(f for f in found if f.what == "onset").measured is not None
    assert next(f for f in found if f.what == "transient" and f.factor is not None and f.factor > 1).measured == 24


def test_log_errors_skip_what_was_not_measured(data: MeasuredSchedules) -> None:
    holes = replace(data, issue_cycles=np.where(np.arange(data.issue_cycles.size) == 3, np.nan, data.issue_cycles))
    found = log_errors(TRUTH, holes)
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [3]
