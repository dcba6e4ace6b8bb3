"""The map of smid to unit: as a value, and inferred from who slows whom."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.errors import DataError
from xstage_bench.model.node.infer import infer_placement
from xstage_bench.model.node.placement import Placement, adjusted_rand_index, uniform

PAIRS = 24
# Units of two and three pairs, scattered over the smids as on an H200.
UNITS = [(0, 8, 16), (1, 9, 17), (2, 10, 18), (3, 11, 19), (4, 12), (5, 13), (6, 14, 20), (7, 15, 21), (22, 23)]


def _frames(rng: np.random.Generator, subsets: int, noise: float, coupled: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Issue time of an SM = how many SMs share its unit, times how many units are active: a tree with fair shares."""
    unit = np.empty(PAIRS, dtype=int)
    for i, pairs in enumerate(UNITS):
        unit[list(pairs)] = i
    samples, producers = [], []
    for k in range(subsets):
        chosen = np.sort(rng.choice(2 * PAIRS, 16, replace=False))
        mine = unit[chosen // 2]
        load = np.bincount(mine, minlength=len(UNITS))
        times = 1000.0 * (load[mine] if coupled else np.full(chosen.size, 2.0)) * np.count_nonzero(load)
        samples.append({"schedule": f"s{k}", "probe": "placement", "source": 0, "destination": 1, "producer_set": "smid:x"})
        producers += [
            {"schedule": f"s{k}", "smid": int(s), "issue_cycles": float(t * np.exp(noise * rng.standard_normal()))}
            for s, t in zip(chosen, times, strict=True)
        ]
    return pd.DataFrame(samples), pd.DataFrame(producers)


def _truth(smids: np.ndarray) -> list[int]:
    return [next(i for i, u in enumerate(UNITS) if s // 2 in u) for s in smids.tolist()]


def test_the_map_is_found_through_noise_and_called_stable() -> None:
    found = infer_placement(*_frames(np.random.default_rng(1), 160, 0.1), source=0)
    smids = np.arange(2 * PAIRS)
    assert adjusted_rand_index(found.unit_of(smids), _truth(smids)) == 1.0
    assert (found.stability > 0.8, found.coupling > 0.2) == (True, True)


def test_no_structure_is_said_and_not_made_up() -> None:
    with pytest.raises(DataError, match="no groups"):
        infer_placement(*_frames(np.random.default_rng(2), 120, 0.1, coupled=False), source=0)
    with pytest.raises(DataError, match="subsets"):
        infer_placement(*_frames(np.random.default_rng(3), 10, 0.05), source=0)


def test_smids_that_never_produced_get_units_of_their_own() -> None:
    found = infer_placement(*_frames(np.random.default_rng(4), 160, 0.05), source=0, smids=np.arange(2 * PAIRS + 2))
    assert {(48,), (49,)} <= set(found.units)


def test_a_foreign_smid_is_named() -> None:
    with pytest.raises(DataError, match="smid 9"):
        Placement(((0, 1), (2, 3))).unit_of([0, 9])
    with pytest.raises(DataError):
        Placement(((0, 1), (1, 2)))


@given(st.integers(1, 200), st.integers(1, 12))
def test_a_uniform_map_holds_every_sm_once(count: int, size: int) -> None:
    found = uniform(np.arange(count), size)
    assert found.smids == tuple(range(count))
    assert not found.measured
    sizes = found.members(np.arange(count))
    assert sizes.max() - sizes.min() <= 1


@given(st.lists(st.integers(0, 4), min_size=2, max_size=40))
def test_the_rand_index_is_one_for_equal_partitions_whatever_their_names(labels: list[int]) -> None:
    assert adjusted_rand_index(labels, [7 - x for x in labels]) == pytest.approx(1.0)


def test_the_rand_index_of_chance_is_near_zero() -> None:
    rng = np.random.default_rng(0)
    found = [adjusted_rand_index(rng.integers(0, 8, 132), rng.integers(0, 8, 132)) for _ in range(50)]
    assert abs(float(np.mean(found))) < 0.02
