"""Issue laws of flavours: known constants come back, a queue shows, and what is no law is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from xstage_bench.errors import DataError
from xstage_bench.flavour import FLAVOURS
from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.issue import QUEUE_WARPS, IssueLaw, by_warps, free_cycles
from xstage_bench.model.node.issue_fit import fit_issue
from xstage_bench.schedule import Burst, Schedule


def made(flavour: str, bursts: Sequence[tuple[int, int, int]], cost: dict[tuple[int, int, int], float]) -> Measured:
    """Isolated bursts (K, W, operations of each warp) and what they cost."""
    size = FLAVOURS[flavour].warp_store_bytes
    schedules = tuple(Schedule((Burst(n * w * size),), k, w, flavour=flavour) for k, w, n in bursts)
    issue = np.array([cost[b] for b in bursts])
    count = len(bursts)
    return Measured(
        keys=tuple(s.key() for s in schedules),
        schedules=schedules,
        probes=("flavour_issue",) * count,
        first=np.arange(count + 1),
        issue_cycles=issue,
        issue_max_cycles=issue,
        start_ns=np.zeros(count),
        by_process=issue[None, :],
        sm_clock_mhz=1980.0,
    )


ALONE = [(1, w, n) for w in QUEUE_WARPS for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)]


@pytest.mark.parametrize("unheld", [0.0, 1.0])
def test_the_pace_and_the_port_of_a_store_come_back(unheld: float) -> None:
    truth = IssueLaw(base=50.0, port_base=-150.0, port_cycles=9.0, round_cycles=3.0, store_bytes=256.0, tail_unheld=unheld)
    cost = {b: float(free_cycles(truth, 15.0, b[1], b[2], True)) for b in ALONE}
    law, pace = fit_issue(made("st.v2", ALONE, cost), "st.v2")
    assert pace == pytest.approx(15.0, rel=0.03)
    assert law.store_bytes == 256.0
    again = [float(free_cycles(law, pace, w, n, True)) for _, w, n in ALONE if n * w * 256 <= 24576]
    wanted = [cost[b] for b in ALONE if b[1] * b[2] * 256 <= 24576]
    assert np.median(np.abs(np.array(again) / np.array(wanted) - 1)) < 0.02


def test_the_queue_of_bulk_copies_shows_by_warps() -> None:
    held = (4.0, 5.5, 7.0, 6.0)
    drain, size = 25.6, 8192
    cost = {}
    for k, w, n in ALONE:
        free = 77.0 + 99.0 * n + 7.0 * (w > 1)
        full = (n * w - by_warps(held, w)) * size / drain
        cost[k, w, n] = float(max(free, full if n > 1 else 0.0))
    law, pace = fit_issue(made("bulk.8192", ALONE, cost), "bulk.8192")
    assert pace == pytest.approx(99.0, rel=0.03)
    assert law.engine_operations == pytest.approx(held, abs=0.2)
    assert law.engine_cycles == pytest.approx(size / drain, rel=0.01)
    assert law.queue_bytes(4) == pytest.approx(7.0 * size, rel=0.05)


def test_operations_that_wait_for_each_other_are_no_law() -> None:
    cost = {b: 1800.0 * b[2] for b in ALONE}
    with pytest.raises(DataError, match=r"1[78]\d\d cycles for each operation"):
        fit_issue(made("st.v4.release.sys", ALONE, cost), "st.v4.release.sys")


def test_too_few_bursts_are_refused_with_the_probe_to_measure() -> None:
    few = ALONE[:3]
    with pytest.raises(DataError, match=r"3 bursts of st\.v2 by one SM alone") as caught:
        fit_issue(made("st.v2", few, dict.fromkeys(few, 100.0)), "st.v2")
    assert "flavour_issue" in (caught.value.hint or "")


def test_a_tail_that_is_not_waited_for() -> None:
    law = replace(IssueLaw(), tail_unheld=1.0)
    assert law.unheld_bytes(4, [3, 4, 5]).tolist() == [2048.0, 0.0, 2048.0]
    assert IssueLaw().unheld_bytes(4, [3, 4, 5]).tolist() == [0.0, 0.0, 0.0]
