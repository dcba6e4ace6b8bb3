"""What the figures draw over the data: the fitted law as numbers, points of the onset map, outliers among pairs."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.io.assets import asset_dir
from xstage_bench.io.loader import load_folder
from xstage_bench.model.document import BurstGap, PairModel
from xstage_bench.model.estimate import Estimate

FILES = {path.stem: module for path, module in load_folder(asset_dir("analysis")).items()}
COMMON: Any = __import__(FILES["gap"].__name__.rpartition(".")[0] + "._common", fromlist=["x"])


def known(value: float) -> Estimate:
    return Estimate(value=value, standard_error=0.0, low=0.9 * value, high=1.2 * value)


def entry(base: float = 60.0, free: float = 30.0, stalled: float = 1400.0, knee: float | None = 20480.0, rate: float = 370.0) -> BurstGap:
    none = Estimate.missing("never saturates")
    return BurstGap(
        producers=132, warps=4, bytes=65536, t0_cycles=known(base + 32 * free), drain_gb_per_s=known(rate), capacity_bytes=none,
        capacity_bytes_per_producer=none, issue_base_cycles=known(base), issue_cycles_per_warp_store=known(free),
        stalled_cycles_per_warp_store=known(stalled), knee_bytes=none if knee is None else known(knee), recovery_gap_cycles=none,
        peak_backlog_bytes=none,
    )  # fmt: skip


@given(st.floats(0, 500), st.floats(1, 100), st.floats(1, 50), st.floats(2048, 1e6), st.lists(st.floats(2048, 1e7), min_size=2, max_size=9))
def test_isolated_law_is_free_up_to_the_knee_and_then_on_the_stalled_line(
    base: float, free: float, ratio: float, knee: float, sizes: list[float]
) -> None:
    e = entry(base, free, free * ratio, knee)
    size = np.sort(np.array(sizes))
    cycles, t0 = COMMON.isolated_cycles(e, size, "st.v4"), COMMON.free_cycles(e, size, "st.v4")
    expected = np.where(size <= knee, t0, base + free * knee / 2048 + free * ratio * (size - knee) / 2048)
    np.testing.assert_allclose(cycles, expected, rtol=1e-9)
    assert (np.diff(cycles) >= -1e-6).all()
    np.testing.assert_array_equal(COMMON.isolated_cycles(entry(base, free, knee=None), size, "st.v4"), t0)
    assert COMMON.drain_ns(entry(), 65536) == pytest.approx(132 * 65536 / 370)


def test_interval_bars_are_distances_not_ends() -> None:
    np.testing.assert_allclose(COMMON.interval_bars([known(100.0)]), [[10.0], [20.0]])
    unknown = Estimate(value=5.0, standard_error=None, low=None, high=None)
    np.testing.assert_array_equal(COMMON.interval_bars([unknown]), [[0.0], [0.0]])


@pytest.mark.parametrize(("count", "expected"), [(6, [1, 8, 12, 16]), (3, [1, 12, 16]), (2, [1, 16])])
def test_pick_keeps_the_ends(count: int, expected: list[int]) -> None:
    assert COMMON.pick([16, 1, 8, 12, 8], count) == expected


def timed_rows(period_ns: int, issue: list[float]) -> pd.DataFrame:
    n = len(issue)
    return pd.DataFrame(
        {
            "schedule": "a", "producers": 132, "warps": 4, "bytes": 65536, "burst": range(n), "bursts": n,
            "start_ns": [float(i * period_ns) for i in range(n)], "issue_us": issue,
        }
    )  # fmt: skip


def test_onset_point_has_the_period_asked_for_and_the_stall_of_the_last_half() -> None:
    fitted = PairModel(pair="0>1", flavour="st.v4", layout="contiguous", burst_gap=[entry()])
    t0_us = (60 + 32 * 30) / 2000
    rows = timed_rows(9000, [t0_us] * 4 + [3 * t0_us] * 4)
    (point,) = FILES["onset"].onset_points(rows, fitted, 2000.0).to_dict("records")
    expected = {"period_us": 9.0, "stall": 3.0, "load": 9.0 / (132 * 65536 / 370 / 1e3), "n": 4}
    assert {name: point[name] for name in expected} == pytest.approx(expected)
    rows = timed_rows(9000, [1.0] * 4)
    for some in (rows.assign(bytes=[2048, 4096, 2048, 4096]), rows.assign(producers=64), rows.iloc[:0]):
        assert len(FILES["onset"].onset_points(some, fitted, 2000.0)) == 0


PAIRS = [(a, b) for a in range(4) for b in range(4) if a != b]


@given(st.integers(0, 10_000))
def test_pairs_that_differ_by_noise_have_no_outlier_but_a_slow_one_among_many(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(1.0, 0.008, len(PAIRS))
    rates = {key: 370.0 * f for key, f in zip(PAIRS, noise, strict=True)}
    outliers = FILES["pairs"].outliers
    assert outliers(rates) == outliers({(0, 1): 370.0, (1, 0): 180.0}) == set()
    assert outliers({**rates, (2, 1): 180.0}) == {(2, 1)}
