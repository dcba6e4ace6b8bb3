"""Where issue first stalls, on curves whose onset is known; and stretches of a run that something disturbed."""

import numpy as np
import pandas as pd
import pytest

from xstage_bench.model.knee import fit_knee
from xstage_bench.model.onset import find_onset
from xstage_bench.model.resample import Resampled, beyond_noise, combine, estimate
from xstage_bench.model.stretches import LENGTH, bad_stretches

QUICK, FULL = (1, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128), (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128)


def line(n: np.ndarray) -> np.ndarray:
    return 60 + 20.0 * n


def floor(n: np.ndarray) -> np.ndarray:
    return np.maximum(187.0, 54 * n - 5)  # as four warps of an H200: the smallest bursts cost a floor


@pytest.mark.parametrize("sizes", [QUICK, FULL])
@pytest.mark.parametrize(("t0", "onset", "free"), [(line, 9.5, 8), (floor, 9.4, 8), (line, 13.0, 12), (floor, 13.0, 12)])
@pytest.mark.parametrize("late", [1500.0, 1300.0])  # the stalled line bends far behind the knee, where fast producers have finished
def test_the_onset_does_not_move_with_what_lies_far_behind_it(sizes, t0, onset, free, late):
    n = np.array(sizes, dtype=float)
    mean = np.maximum(t0(n), t0(np.array(onset)) + 1500 * np.minimum(n - onset, 30) + late * np.maximum(0, n - onset - 30))
    found = find_onset(fit_knee(n, mean, mean), n, mean)
    assert n[found.free] == free
    assert float(found.stores(n, mean)) == pytest.approx(onset, rel=0.012)
    assert abs(float(found.bend(n, mean))) < 0.1


def test_the_choice_of_sizes_widens_the_interval_and_not_the_standard_error():
    each = np.array([0.99, 1.0, 1.01])
    plain, chosen = (estimate(Resampled(1.0, each, each, 7, choice), statistic="x") for choice in (0.0, 0.05))
    assert plain.choice_error is None
    assert (chosen.choice_error, chosen.standard_error) == (0.05, plain.standard_error)
    assert chosen.high - 1 == pytest.approx(np.hypot(plain.high - 1, 1.96 * 0.05), rel=1e-3)
    both = combine(lambda a, b: a * b, Resampled(2.0, each, each, 7, 0.3), Resampled(5.0, each, each, 7, 0.4))
    assert both.choice == pytest.approx(np.hypot(5 * 0.3, 2 * 0.4))
    assert (beyond_noise(0.01, np.random.default_rng(0).normal(0, 0.01, 200)), beyond_noise(0.3, each)) == (
        0.0,
        pytest.approx(0.3, rel=1e-2),
    )


def made_run(length: int, every: int, *, by: float) -> pd.DataFrame:
    """Isolated bursts of 20 sizes in random order, three processes of 9 repetitions; each `every`-th stretch is slower by up to `by`."""
    rng = np.random.default_rng(4)
    frames = []
    for process in range(3):
        size = rng.permutation(np.repeat(np.arange(1, 21), 9 * 3))
        order = np.arange(size.size)
        late = np.where((order // length) % every == 1, by * rng.random(size.size), 0.0)
        cycles = 1000.0 * size * np.exp(0.004 * rng.standard_normal(size.size)) * (1 + late)
        frames.append(pd.DataFrame({"process": process, "order": order, "bytes": size * 512, "issue_mean_cycles": cycles}))
    same = {"probe": "isolated", "start": "isolated", "burst": 0, "source": 0, "destination": 1}
    rows = pd.concat(frames, ignore_index=True).assign(**same)
    return rows.assign(schedule=rows["bytes"].map("{:x}".format))


@pytest.mark.parametrize(("length", "by", "least"), [(LENGTH, 0.3, 5), (20, 0.5, 3), (2 * LENGTH, 0.1, 5), (LENGTH, 0.0, 0)])
def test_a_minority_of_disturbed_stretches_is_found_and_named(length, by, least):
    rows = made_run(length, 5, by=by)
    found = bad_stretches(rows)
    assert (found.bad >= least) if least else (found.bad == 0)
    if length % LENGTH == 0 and least:
        inside = (rows["order"] // length) % 5 == 1
        assert (found.rows == inside).mean() > 0.95
        assert "process 0, from execution" in found.sentence()
    assert not bad_stretches(rows.drop(columns="order")).bad, "an imported run has no order"
