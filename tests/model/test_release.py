"""The law of fences and releases: known truth comes back, and the recorded sweep says what results/h200-x2/fences says."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from xstage_bench.model.release import fit_release, release_laws

CLOCK = 1980.0
STORES = np.array([0, 1, 2, 4, 8, 10, 16, 32, 64])


def rows(empty: float, rate: float, held: float, producers: int = 128, noise: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    fixed = {"probe": "fences", "start": "isolated", "burst": 0, "completion": "fence.gpu", "producers": producers, "warps": 4}
    table = []
    for process, size, repetition in product(range(3), STORES * 4 * 512, range(5)):
        cost = (empty + min(size * producers, held) / rate * CLOCK * 1e-3) * (1 + noise * rng.standard_normal())
        own = {"bytes": size, "process": process, "repetition": repetition, "drain_mean_cycles": cost, "completed_mean_cycles": np.nan}
        table.append({**fixed, **own})
    return pd.DataFrame(table)


def test_the_law_comes_back_from_exact_data() -> None:
    volume = STORES * 4 * 512.0 * 128
    cost = 700 + np.minimum(volume, 2.3e6) / 380 * CLOCK * 1e-3
    empty, slope, held = fit_release(volume, cost)
    assert empty == pytest.approx(700, rel=0.02)
    assert CLOCK * 1e-3 / slope == pytest.approx(380, rel=0.02)
    assert held == pytest.approx(2.3e6, rel=0.03)


def test_truth_lies_in_the_intervals_of_noisy_processes() -> None:
    (law,) = release_laws(rows(700, 380, 2.3e6, noise=0.02), CLOCK)
    for estimate, truth in ((law.empty_cycles, 700), (law.drain_gb_per_s, 380), (law.held_bytes, 2.3e6)):
        assert estimate.value == pytest.approx(truth, rel=0.1)
        assert estimate.low < estimate.high
    assert law.cost_cycles(1e9, CLOCK) == pytest.approx(law.saturated_cycles.value, rel=0.01)


def test_a_cost_that_does_not_grow_has_no_rate() -> None:
    (law,) = release_laws(rows(560, 1e9, 2.3e6, noise=0.02), CLOCK)
    assert law.drain_gb_per_s.status == "not_identified"
    assert law.cost_cycles(1e9, CLOCK) == pytest.approx(560, rel=0.05)


def test_a_bulk_copy_is_waited_for_before_its_fence() -> None:
    table = rows(700, 380, 2.3e6)
    table["completed_mean_cycles"] = 5000.0
    table["drain_mean_cycles"] += 5000.0
    (law,) = release_laws(table, CLOCK)
    assert law.empty_cycles.value == pytest.approx(700, rel=0.02)


def test_tables_of_before_there_were_completions_have_no_law() -> None:
    assert release_laws(rows(700, 380, 2.3e6).drop(columns="completion"), CLOCK) == []
