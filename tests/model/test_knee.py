"""The fit of one (K, W) on data whose lines are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.model import knee as k

STORES = np.array([1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512], dtype=float)


def lines(base, free, excess, knee, makespan):
    mean = base + free * STORES + excess * np.maximum(0, STORES - knee)
    longest = np.where(knee < STORES, base + free * knee + makespan * (STORES - knee), mean)
    return mean, longest


@settings(max_examples=60, deadline=None)
@given(st.floats(20, 300), st.floats(15, 200), st.floats(1.0, 20), st.floats(2.5, 150), st.floats(1.0, 1.4))
def test_lines_without_noise_come_back(base, free, ratio, knee, unequal):
    excess = free * ratio
    mean, longest = lines(base, free, excess, knee, (free + excess) * unequal)
    fit = k.fit_knee(STORES, mean, longest)
    assert fit.saturated
    np.testing.assert_allclose(fit.theta[:4], [base, free, excess, knee], rtol=2e-3, atol=1e-3)
    assert fit.theta[k.MAKESPAN] == pytest.approx((free + excess) * unequal, rel=1e-3)


def test_a_sweep_that_never_stalls_has_no_knee():
    mean, _ = lines(75, 20, 0, 10, 20)
    fit = k.fit_knee(STORES, mean, mean)
    assert not fit.saturated
    np.testing.assert_allclose(fit.theta[:2], [75, 20], rtol=1e-9)
    assert np.isnan(fit.theta[2:]).all()
    assert not fit.makespan_sizes.any()
    mean[-1] *= 1.5
    assert not k.fit_knee(STORES, mean, mean).saturated, "one slow size at the end"
    for seed in range(20):
        noisy = lines(75, 20, 0, 10, 20)[0] * np.exp(0.02 * np.random.default_rng(seed).normal(size=mean.size))
        assert not k.fit_knee(STORES, noisy, noisy).saturated


def test_a_spike_at_one_size_moves_the_fit_little():
    mean, longest = lines(75, 20, 340, 39, 360)
    mean[5] *= 2
    fit = k.fit_knee(STORES, mean, longest)
    np.testing.assert_allclose(fit.theta[:4], [75, 20, 340, 39], rtol=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_no_parameter_is_ever_negative(seed):
    rng = np.random.default_rng(seed)
    mean = np.exp(rng.normal(6, 2, STORES.size))
    fit = k.fit_knee(STORES, mean, mean * np.exp(rng.normal(0, 0.5, STORES.size)))
    theta = np.delete(fit.theta, k.OFFSET)
    assert (theta[np.isfinite(theta)] >= 0).all()


def test_an_issue_cost_without_overhead_ends_on_its_bound_and_says_so():
    mean = 203 * STORES + 2600 * np.maximum(0, STORES - 5) - np.where(STORES < 5, 20.0, 0.0)
    fit = k.fit_knee(STORES, mean, mean)
    assert "base" in fit.at_bound
    assert fit.theta[k.BASE] == pytest.approx(0, abs=1e-3)


def test_refits_of_resamples_agree_with_full_fits():
    mean, longest = lines(75, 20, 340, 39, 400)
    rng = np.random.default_rng(0)
    means = mean * np.exp(0.01 * rng.normal(size=(20, STORES.size)))
    longests = longest * np.exp(0.01 * rng.normal(size=(20, STORES.size)))
    fit = k.fit_knee(STORES, mean, longest)
    quick = k.refit(fit, STORES, means, longests)
    full = np.array([k.fit_knee(STORES, a, b).theta for a, b in zip(means, longests, strict=True)])
    scale = full.std(axis=0)
    assert (np.abs(quick - full).max(axis=0) < 0.1 * scale)[[0, 1, 2, 3, 5]].all()


@pytest.mark.parametrize(("slowest", "size", "left_out"), [(False, 3, True), (False, -1, True), (True, -1, True), (True, 0, False)])
def test_a_resample_that_lacks_a_size_is_left_out(slowest, size, left_out):
    """Of the slowest producer only sizes past the knee matter."""
    mean, longest = lines(75, 20, 340, 39, 400)
    fit = k.fit_knee(STORES, mean, longest)
    both = np.stack([mean, mean]), np.stack([longest, longest])
    both[slowest][1, size] = np.nan
    again = k.refit(fit, STORES, *both)
    np.testing.assert_allclose(again[0], fit.theta, rtol=1e-6)
    assert np.isnan(again[1]).all() == left_out
