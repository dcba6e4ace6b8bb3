"""Shares in the tree of arbiters: conserving, fair, and as worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from xstage_bench.device.sim.arbiter import level_of, rates


@settings(max_examples=100, deadline=None)
@given(demand=npst.arrays(float, (5, 3), elements=st.floats(0, 100)), total=st.floats(0.1, 400))
def test_the_level_hands_out_all_that_is_wanted_or_all_there_is(demand: np.ndarray, total: float) -> None:
    level = level_of(np.full(3, total), demand)
    given_out = np.minimum(demand, level)
    assert given_out.sum(axis=0) == pytest.approx(np.minimum(total, demand.sum(axis=0)), rel=1e-9, abs=1e-9)


def shares(members: list[list[list[int]]], link: float, group: float = 1e9) -> np.ndarray:
    array = np.array(members, dtype=float)[..., None]
    return rates(array > 0, array, np.array([link]), np.array([25.6]), np.array([group]))[..., 0]


def test_groups_of_unequal_size_get_the_same_and_their_members_do_not() -> None:
    # Two groups of 2 and 8 SMs, each alone in its pair, on a link of 40: 20 for each group.
    rate = shares([[[2, 0]], [[8, 0]]], 40.0)
    assert rate[0, 0, 0] == pytest.approx(10.0)
    assert rate[1, 0, 0] == pytest.approx(2.5)


def test_an_sm_that_shares_its_pair_gets_half() -> None:
    rate = shares([[[2, 4]]], 40.0)  # 2 SMs alone, 2 pairs of 2: four pairs
    assert rate[0, 0, 0] == pytest.approx(10.0)
    assert rate[0, 0, 1] == pytest.approx(5.0)


def test_what_one_group_cannot_use_goes_to_the_others() -> None:
    rate = shares([[[1, 0]], [[8, 0]]], 100.0)
    assert rate[0, 0, 0] == pytest.approx(25.6)
    assert rate[1, 0, 0] == pytest.approx((100 - 25.6) / 8)


def test_subgroups_share_evenly_whatever_their_size() -> None:
    rate = shares([[[1, 0], [3, 0]]], 24.0)
    assert rate[0, 0, 0] == pytest.approx(12.0)
    assert rate[0, 1, 0] == pytest.approx(4.0)


@settings(max_examples=60, deadline=None)
@given(
    members=npst.arrays(np.int64, (4, 2, 2), elements=st.integers(0, 6)),
    link=st.floats(5, 2000),
    group=st.sampled_from([60.0, 1e9]),
)
def test_no_limit_of_the_tree_is_exceeded_and_nothing_is_wasted(members: np.ndarray, link: float, group: float) -> None:
    members[:, :, 1] *= 2  # whole pairs
    array = members[..., None].astype(float)
    rate = rates(array > 0, array, np.array([link]), np.array([25.6]), np.array([group]))
    total = (rate * array).sum(axis=(1, 2))[:, 0]
    assert rate.max(initial=0) <= 25.6 + 1e-9
    assert total.max() <= group + 1e-9
    wanted = np.minimum(25.6 * array.sum(axis=(1, 2))[:, 0], group)
    assert total.sum() == pytest.approx(min(link, wanted.sum()), rel=1e-9, abs=1e-9)
