"""Issue costs read off one SM: the table gives back what was measured, a queue shows, and what has no law is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.errors import DataError
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.issue import QUEUE_WARPS, by_warps, free_cycles
from xstage_bench.model.node.issue_fit import FREE_BYTES, fit_issue
from xstage_bench.model.node.issue_table import IssueTable, table_cycles
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.flavour import FLAVOURS

Cost = dict[tuple[int, int, int], float]
WARPS = tuple(range(1, 17))
PACE, PORT, TURN = 19.75, 16.5, 4


def made(flavour: str, bursts: Sequence[tuple[int, int, int]], cost: Cost, processes: Sequence[float] = (1.0,)) -> MeasuredSchedules:
    """Isolated bursts (K, W, operations of each warp) and what they cost, in processes that measure so many times that."""
    size = FLAVOURS[flavour].warp_store_bytes
    schedules = tuple(Schedule((Burst(n * w * size),), k, w, flavour=flavour) for k, w, n in bursts)
    issue = np.array([cost[b] for b in bursts])
    count = len(bursts)
    return MeasuredSchedules(
        keys=tuple(s.key() for s in schedules), schedules=schedules, probes=("flavour_issue",) * count, first=np.arange(count + 1),
        issue_cycles=issue, issue_max_cycles=issue, start_ns=np.zeros(count), by_process=np.outer(processes, issue), sm_clock_mhz=1980.0,
    )  # fmt: skip


def truth(warps: int, stores: int) -> float:
    """A loop of turns: a turn that is not full costs 4 cycles a missing store less, and many warps leave through one port."""
    turns = -(-stores // TURN)
    own = 160.0 + 79.0 * (turns - 1) - 4.0 * (TURN * turns - stores)
    return max(own, PORT * stores * warps + 50.0)


ALONE = [(1, w, n) for w in WARPS for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48) if n * w <= 48]
SPARSE = [(1, w, n) for w in QUEUE_WARPS for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)]


def test_what_was_measured_comes_back_and_what_lies_between_is_close() -> None:
    law, pace = fit_issue(made("st.v4", ALONE, {b: truth(b[1], b[2]) for b in ALONE}), "st.v4")
    assert pace.value == pytest.approx(79.0 / TURN)
    for _, w, n in ALONE:
        assert float(free_cycles(law, 0.0, w, n, True)) == pytest.approx(truth(w, n))
    for w, n in [(1, 9), (1, 11), (1, 14), (1, 29), (2, 10), (2, 23), (3, 13)]:
        assert float(free_cycles(law, 0.0, w, n, True)) == pytest.approx(truth(w, n), rel=0.02)
    for w in (1, 8, 16):  # longer bursts go on at the pace of the loop, or of the port
        low, high = (float(free_cycles(law, 0.0, w, n, True)) for n in (100, 200))
        assert (high - low) / 100 == pytest.approx(max(79.0 / TURN, PORT * w), rel=0.02)


def test_later_bursts_have_a_table_of_their_own() -> None:
    cells = ((100.0, 200.0), (150.0, 300.0))
    later = ((90.0, None), (None, None))
    axes = {"warps": (1, 2), "stores": (4, 8), "store_cycles": 25.0, "port_cycles": 10.0, "group": 4}
    table = IssueTable(**axes, fresh=cells, following=later, half_width=((None,) * 2,) * 2)
    w, n = np.array([1, 1, 2]), np.array([4, 8, 4])
    assert table_cycles(table, w, n, np.array([True] * 3)).tolist() == [100.0, 200.0, 150.0]
    assert table_cycles(table, w, n, np.array([False] * 3)).tolist() == [90.0, 200.0, 150.0]
    assert table.numbers() == 5


def test_the_intervals_are_those_between_processes() -> None:
    bursts = [(1, 1, n) for n in (4, 8, 12, 16, 24, 32)]
    law, pace = fit_issue(made("st.v4", bursts, {b: 10.0 * b[2] for b in bursts}, (0.99, 1.0, 1.01)), "st.v4")
    assert pace.value == pytest.approx(10.0)
    assert pace.standard_error == pytest.approx(0.1 / np.sqrt(3))
    assert (pace.low, pace.high) == (pytest.approx(10.0 - 4.303 * 0.1 / np.sqrt(3), rel=1e-3), pytest.approx(10.2484, rel=1e-3))
    assert law.table.half_width[0][0] == pytest.approx(4.303 * 0.4 / np.sqrt(3), rel=1e-3)
    alone, _ = fit_issue(made("st.v4", bursts, {b: 10.0 * b[2] for b in bursts}), "st.v4")
    assert alone.table.half_width[0] == (None,) * 6


@given(st.integers(1, 20), st.integers(0, 600), st.booleans())
def test_a_whole_turn_more_never_costs_less(warps: int, stores: int, fresh: bool) -> None:
    law, _ = fit_issue(made("st.v4", ALONE, {b: truth(b[1], b[2]) for b in ALONE}), "st.v4")
    less, more = free_cycles(law, 0.0, warps, np.array([stores, stores + TURN]), fresh)
    assert more > less


def test_what_an_sm_cannot_hold_is_not_taken_for_issue_cost() -> None:
    bursts = [(1, 16, 1), (1, 16, 2), (1, 16, 3), *((1, 1, n) for n in (4, 8, 12)), (1, 16, 4)]
    cost = {b: 100.0 * b[2] for b in bursts} | {(1, 16, 4): 99_999.0}
    assert FREE_BYTES < 16 * 4 * 512
    law, _ = fit_issue(made("st.v4", bursts, cost), "st.v4")
    assert float(free_cycles(law, 0.0, 16, 4, True)) < 1000


def test_the_queue_of_bulk_copies_shows_by_warps() -> None:
    held = (4.0, 5.5, 7.0, 6.0)
    drain, size = 25.6, 8192
    cost = {}
    for k, w, n in SPARSE:
        free = 77.0 + 99.0 * n + 7.0 * (w > 1)
        full = (n * w - by_warps(held, w)) * size / drain
        cost[k, w, n] = float(max(free, full if n > 1 else 0.0))
    law, pace = fit_issue(made("bulk.8192", SPARSE, cost), "bulk.8192")
    assert pace.value == pytest.approx(99.0, rel=0.03)
    assert law.engine_operations == pytest.approx(held, abs=0.2)
    assert law.engine_cycles == pytest.approx(size / drain, rel=0.01)
    assert law.queue_bytes(4) == pytest.approx(7.0 * size, rel=0.05)


def test_operations_that_wait_for_each_other_are_no_law() -> None:
    cost = {b: 1800.0 * b[2] for b in SPARSE}
    with pytest.raises(DataError, match=r"1[78]\d\d cycles for each operation"):
        fit_issue(made("st.v4.release.sys", SPARSE, cost), "st.v4.release.sys")


def test_too_few_bursts_are_refused_with_the_probe_to_measure() -> None:
    few = SPARSE[:3]
    with pytest.raises(DataError, match=r"3 bursts of st\.v2 by one SM alone") as caught:
        fit_issue(made("st.v2", few, dict.fromkeys(few, 100.0)), "st.v2")
    assert "flavour_issue" in (caught.value.hint or "")
