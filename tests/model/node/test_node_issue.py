"""T0 of the issue law against what an H200 costs when nothing holds a burst back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.model.node.issue import IssueLaw, free_cycles

LAW = IssueLaw()
# (warps, stores per warp, fresh): median of isolated bursts, or of later bursts of a sequence, on two H200 nodes
MEASURED = {
    (1, 1, True): 92, (1, 1, False): 81, (1, 2, True): 137, (1, 3, False): 171, (1, 4, True): 118,
    (1, 5, False): 160, (1, 7, False): 250, (1, 8, True): 194, (1, 31, True): 706, (1, 32, True): 650,
    (2, 1, True): 101, (2, 4, True): 127, (2, 12, True): 279, (2, 16, True): 378, (3, 4, False): 141,
    (3, 8, True): 251, (4, 4, True): 166, (4, 4, False): 161, (4, 6, True): 254, (4, 8, True): 381,
    (5, 1, False): 126, (8, 1, True): 147, (8, 3, True): 267, (8, 4, True): 395, (9, 1, False): 164,
    (13, 1, False): 191, (16, 1, False): 195, (16, 2, True): 413,
}  # fmt: skip


@pytest.mark.parametrize(("key", "cycles"), MEASURED.items())
def test_the_law_meets_the_measured_cost_within_six_per_cent(key: tuple[int, int, bool], cycles: int) -> None:
    warps, stores, fresh = key
    assert float(free_cycles(LAW, 19.0, warps, stores, fresh)) == pytest.approx(cycles, rel=0.06)


@given(st.integers(1, 16), st.integers(0, 600), st.booleans())
def test_a_whole_turn_more_never_costs_less(warps: int, stores: int, fresh: bool) -> None:
    less, more = free_cycles(LAW, 19.0, warps, np.array([stores, stores + 4]), fresh)
    assert more > less or 0 < stores < 4  # a tail of single stores costs more than the turn that replaces it


@given(st.integers(1, 16), st.integers(4, 600))
def test_a_fresh_burst_costs_no_less_than_a_later_one(warps: int, stores: int) -> None:
    assert free_cycles(LAW, 19.0, warps, stores, True) >= free_cycles(LAW, 19.0, warps, stores, False)


def test_many_warps_leave_through_the_port_at_its_own_pace() -> None:
    low, high = free_cycles(LAW, 19.0, 8, np.array([100, 200]), False)
    assert (high - low) / 800 == pytest.approx(LAW.port_cycles)
