"""Medians with gaps, resamples of whole repetitions, and intervals that widen when processes differ."""

import numpy as np
import pytest
from scipy import stats

from xstage_bench.model.resample import Resampled, combine, estimate, resample_medians, typical


def test_medians_agree_with_numpy_also_with_gaps():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 7, 50))
    values[rng.random(values.shape) < 0.3] = np.nan
    values[1, :, 4] = np.nan
    with pytest.warns(RuntimeWarning):
        expected = np.nanmedian(values, axis=1)
    _, _, apart = resample_medians(values, 5, rng)
    np.testing.assert_allclose(apart, expected)
    np.testing.assert_allclose(typical(values), np.nanmean(expected, axis=0))


def test_the_same_repetitions_are_drawn_for_all_columns():
    values = np.repeat(np.random.default_rng(1).normal(size=(3, 9, 1)), 4, axis=2)
    _, draws, _ = resample_medians(values, 50, np.random.default_rng(2))
    assert (draws == draws[:, :1]).all()
    assert np.unique(draws[:, 0]).size > 5


def test_a_column_of_fewer_repetitions_is_resampled_from_those_it_has():
    values = np.random.default_rng(3).normal(size=(3, 14, 400))
    short = values.copy()
    short[:, 3:, 1:] = np.nan  # a rule stopped all but one after three
    _, draws, _ = resample_medians(short, 200, np.random.default_rng(4))
    _, alone, _ = resample_medians(values[:, :3, 1:], 200, np.random.default_rng(5))
    assert np.isfinite(draws).all()
    assert draws[:, 1:].std(axis=0).mean() == pytest.approx(alone.std(axis=0).mean(), rel=0.05)
    _, whole, _ = resample_medians(values, 200, np.random.default_rng(4))
    assert (draws[:, 0] == whole[:, 0]).all(), "and the others are drawn as ever"


def test_a_column_without_any_value_is_nan_and_spoils_no_other():
    values = np.ones((3, 5, 2))
    values[:, :, 1] = np.nan
    centre, _, _ = resample_medians(values, 5, np.random.default_rng(0))
    assert centre[0] == 1
    assert np.isnan(centre[1])


def test_three_processes_give_the_t_interval():
    apart = np.array([10.0, 10.3, 9.9])
    e = estimate(Resampled(float(apart.mean()), np.full(50, apart.mean()), apart, 7), statistic="x")
    low, high = stats.t.interval(0.95, 2, apart.mean(), apart.std(ddof=1) / np.sqrt(3))
    assert (e.low, e.high) == pytest.approx((low, high))
    assert e.standard_error == pytest.approx(stats.sem(apart))
    assert e.reason is None


def test_processes_that_agree_by_chance_do_not_hide_the_spread_of_repetitions():
    draws = np.random.default_rng(0).normal(10, 1, 400)
    e = estimate(Resampled(10.0, draws, np.array([10.0, 10.0, 10.0]), 7), statistic="x")
    assert 0.6 < (e.high - e.low) / 2 < 1.1


def test_fewer_than_three_processes_are_said_and_still_give_an_interval():
    draws = np.random.default_rng(0).normal(10, 1, 400)
    for count in (1, 2):
        e = estimate(Resampled(10.0, draws, np.full(count, 10.0), 7), statistic="x")
        assert e.reason is not None
        assert f"{count} process" in e.reason
        assert e.low < 9 < 11 < e.high


def test_the_interval_is_cut_at_zero_and_nothing_finite_is_not_identified():
    e = estimate(Resampled(1.0, np.ones(50), np.array([0.1, 1.0, 1.9]), 7), statistic="x")
    assert e.low == 0
    gone = estimate(Resampled(np.nan, np.ones(50), np.ones(3), 7), statistic="x")
    assert gone.status == "not_identified"
    assert gone.value is None


def test_combine_keeps_the_correlation_of_parts_of_one_fit():
    draws = np.random.default_rng(0).normal(5, 1, 200)
    part = Resampled(5.0, draws, np.array([4.0, 5.0, 6.0]), 7)
    nothing = combine(np.subtract, part, part)
    assert nothing.value == 0
    assert not nothing.draws.any()
