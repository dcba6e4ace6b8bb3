"""Tasks with dependencies: what is refused, and that what is accepted can always finish."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.schedule.tasks import NONE, TaskSchedule, stuck_task


def tasks(producer: list[int], waits: list[int], signals: list[int], **more: object) -> TaskSchedule:
    n = len(producer)
    given = {"compute_cycles": [1000] * n, "bytes": [8192] * n, "remote_bytes": [7168] * n, **more}
    return TaskSchedule(producers=max(producer) + 1, producer=producer, waits_for=waits, signals=signals, **given)  # type: ignore[arg-type]


def test_a_wave_counts_its_signals_and_the_key_is_of_what_is_executed() -> None:
    s = tasks([0, 0, 1, 1], [NONE, 0, NONE, 0], [0, NONE, 0, NONE])
    assert s.signals_of_event.tolist() == [2]
    assert s.first.tolist() == [0, 2, 4]
    assert s.volume_bytes == 4 * 7168
    assert s.without_stores().bytes.sum() == 0
    assert s.local().volume_bytes == 0
    assert not s.compute_cycles.flags.writeable

    s = tasks([0, 1], [NONE, 0], [0, NONE])
    assert s.key() == replace(s, name="other", phases=("a", "b"), phase=np.array([0, 1])).key()
    assert s.key() != replace(s, publish="relaxed").key()
    assert s.key() != s.local().key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": [100, 8192]}, "whole warp-stores"),
        ({"remote_bytes": [9000, 0]}, "out of range"),
        ({"remote_bytes": [100, 0]}, "whole warp-stores"),
        ({"compute_cycles": [-1, 0]}, "compute_cycles"),
        ({"compute_cycles": [0.5, 0]}, "whole numbers"),
        ({"waits_for": [NONE, 3]}, "no task signals"),
        ({"waits_for": [-2, 0]}, "below -1"),
        ({"producer": [1, 0]}, "ascending"),
        ({"signals": [0, NONE, NONE]}, "differ in length"),
        ({"warps": 9}, "warps"),
        ({"form": "solo"}, "form"),
        ({"publish": "none"}, "publish"),
        ({"flavour": "st.v5"}, "flavour"),
        ({"both_ways": True, "destination": 0}, "both_ways"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    s = tasks([0, 1], [NONE, 0], [0, NONE])
    with pytest.raises(UsageError, match=message):
        replace(s, **change)  # type: ignore[arg-type]


def test_waits_that_never_end_are_refused() -> None:
    with pytest.raises(UsageError, match=r"task 0 \(producer 0, its task 0\) waits for event 0"):
        tasks([0, 0], [0, NONE], [NONE, 0])

    with pytest.raises(UsageError, match="themselves wait"):
        tasks([0, 0, 1, 1], [1, NONE, 0, NONE], [NONE, 0, NONE, 1])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lists_cut_from_one_order_always_finish_and_a_swap_is_judged_as_execution_judges_it(data: st.DataObject) -> None:
    """Each event is signalled earlier in one common order than it is waited for, so no deal to producers can dead-lock."""
    n = data.draw(st.integers(2, 24))
    signals = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)))
    waits = np.full(n, NONE)
    for i in range(n):
        done = [e for e in range(4) if (signals[:i] == e).any() and not (signals[i:] == e).any()]
        waits[i] = data.draw(st.sampled_from([NONE, *done]))
    deal = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    order = np.argsort(deal, kind="stable")
    s = tasks(deal[order].tolist(), waits[order].tolist(), signals[order].tolist())
    assert stuck_task(s) is None
    swap = order.copy()
    a, b = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    swap[a], swap[b] = swap[b], swap[a]
    args = (deal[order].tolist(), waits[swap].tolist(), signals[swap].tolist())
    if finishes(*args):
        assert stuck_task(tasks(*args)) is None
    else:
        with pytest.raises(UsageError, match="wait"):
            tasks(*args)


def finishes(producer: list[int], waits: list[int], signals: list[int]) -> bool:
    """Execute slowly: one task at a time, any that can."""
    left = [[i for i in range(len(producer)) if producer[i] == p] for p in range(max(producer) + 1)]
    done: set[int] = set()
    while any(left):
        able = [t for t in left if t and (waits[t[0]] < 0 or {i for i in range(len(signals)) if signals[i] == waits[t[0]]} <= done)]
        if not able:
            return False
        done.add(able[0].pop(0))
    return True
