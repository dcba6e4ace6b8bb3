"""Pieces of the node model that a fit hides, each against a truth small enough to write down."""

from dataclasses import replace

import numpy as np
import pytest
from node_worlds import PLACE, TRUTH, Noise, quick_schedules, shorter, synthesize

from xstage_bench.model.node.calibrate import NodeFit, fit_measured, guess
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.intervals import LEVEL, REGIMES, BurstRange, ResidualQuantiles, in_range, interval, learn_spread, regimes
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import Burst, Schedule

SCHEDULES = shorter(quick_schedules(36, 0, 1, link_gb_per_s=100.0), 5)


@pytest.mark.parametrize(
    ("producers", "warps", "size", "inside"),
    [
        (8, 1, 512, True), (24, 4, 65_536, True), (16, 2, 4096, True), (7, 2, 4096, False), (25, 2, 4096, False),
        (16, 0, 4096, False), (16, 5, 4096, False), (16, 2, 511, False), (16, 2, 65_537, False),
    ],
)  # fmt: skip
def test_a_burst_is_in_range_from_the_least_to_the_most_calibrated(producers: int, warps: int, size: int, inside: bool) -> None:
    spread = ResidualQuantiles((-0.1,) * len(REGIMES), (0.1,) * len(REGIMES), BurstRange((8, 24), (1, 4), (512, 65_536)))
    assert in_range(spread, TRUTH, *(np.array([float(x)]) for x in (producers, warps, size))).tolist() == [inside]
    more = replace(spread, calibrated=BurstRange((8, 99), (1, 4), (512, 65_536)))
    assert in_range(more, TRUTH, np.array([36.0, 37.0]), np.full(2, 2.0), np.full(2, 4096.0)).tolist() == [True, False], (
        "SMs that there are"
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_unlike_service_has_evened_out_by_half_at_128_kb(compiled: bool) -> None:
    """Two units before a link so slow that they wait for nothing else: who has the share x of it ends at V/2x, and the other at V."""
    if compiled:
        pytest.importorskip("numba", exc_type=ImportError)
    two = Placement((tuple(range(4)), tuple(range(4, 8))))
    model = NodeModel(19.0, 2.0, 25.6, 1.0, 0.0, 0.0, 0.0, 0.3, two, 1980.0)
    sizes = (1024, 128_000, 384_000)
    found = predict_node(model, [Schedule((Burst(size),), 8, 1) for size in sizes], compiled=compiled, exact=True)
    share = 1 / (4 * found.issue_cycles / found.issue_max_cycles - 2)
    unlike = np.log(share / (1 - share))
    weights = model.weights()
    assert unlike[0] == pytest.approx(abs(np.log(weights[0] / weights[1])), rel=0.03)
    assert unlike[1:] / unlike[0] == pytest.approx([1 / 2, 1 / 4], rel=0.03)


def test_processes_that_differ_widen_the_intervals_of_what_they_share() -> None:
    """Bursts hardly scatter, but each process has its own link: three of them know its mean no better than their spread allows."""
    apart = synthesize(TRUTH, SCHEDULES, np.random.default_rng(3), noise=Noise(process=0.03, burst=0.002))
    found = fit_measured(apart, PLACE, TRUTH).estimates
    rates = [np.nanmax(36 * 2048 * 64 / row) for row in apart.by_process]
    assert np.std(rates) / np.mean(rates) > 0.01, "the processes do differ"
    for name in ("link_gb_per_s", "issue_cycles_per_store"):
        one = found[name]
        assert one.standard_error / one.value > 0.004
        assert (one.high - one.low) / 2 > 3.5 * one.standard_error, "t of three processes is 4.3"
        assert one.low < getattr(TRUTH, name) < one.high


def carried(seed: int, noise: Noise) -> MeasuredSchedules:
    """Trains of unlike bursts that stall and leave something behind, as a hold-out has them."""
    rng = np.random.default_rng(seed)
    sizes, gaps = rng.integers(20, 60, (60, 8)) * 1024, rng.integers(0, 24_000, (60, 8))
    trains = [
        Schedule(tuple(Burst(int(n), int(g)) for n, g in zip(sizes[i], gaps[i], strict=True)), int(rng.integers(20, 37)), 2, start="free")
        for i in range(60)
    ]
    return synthesize(TRUTH, trains, rng, noise=noise)


def test_intervals_allow_for_bursts_less_regular_than_the_calibration_s() -> None:
    """Residuals are known here: a stall with a backlog from before gets more than their own spread, what is free gets just that."""
    data = carried(5, Noise(0.0, 0.3))
    fit = NodeFit(TRUTH, {}, np.eye(8), ())
    spread = learn_spread(fit, data)
    predicted = predict_node(TRUTH, data.schedules)
    residual = np.log(data.issue_cycles / predicted.issue_cycles)
    which = regimes(predicted, data.isolated)
    seen = {name: residual[which == i] for i, name in enumerate(REGIMES)}
    ends = [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2]
    factors = {
        name: (np.array([spread.low[i], spread.high[i]]) / np.quantile(seen[name], ends)).tolist()
        for i, name in enumerate(REGIMES)
        if seen[name].size >= 30
    }
    assert set(factors) >= {"mild_carried", "deep_carried"}
    assert all(f >= 1.0 - 1e-9 for both in factors.values() for f in both)
    assert min(*factors["mild_carried"], *factors["deep_carried"]) > 1.2, "a factor of 1 covers the calibration and not what comes after it"
    low, high = interval(predicted, spread, data.isolated)
    stalled = which >= 4
    assert ((low <= data.issue_cycles) & (data.issue_cycles <= high))[stalled].mean() > LEVEL + 0.04


def test_a_search_starts_near_what_single_sms_and_the_largest_bursts_show() -> None:
    """Small bursts and few SMs, however many of them there are, say nothing of the link."""
    few = [Schedule((Burst(n * w * 512),), k, w) for k in (1, 2, 4) for w in (1, 2, 4) for n in (2, 4, 8, 16, 24)]
    large = [Schedule((Burst(n * 4 * 512),), k, 4) for k in (1, 36) for n in (128, 256)]
    found = guess(synthesize(TRUTH, few + large, np.random.default_rng(0), noise=Noise(0.0, 0.002)), PLACE)
    assert found.link_gb_per_s == pytest.approx(TRUTH.link_gb_per_s, rel=0.25)
    assert found.sm_bytes_per_cycle == pytest.approx(TRUTH.sm_bytes_per_cycle, rel=0.15)
    assert found.issue_cycles_per_store == pytest.approx(TRUTH.issue_cycles_per_store, rel=0.1)
