"""Schedules of bursts and of tasks: what is refused says why, and keys name what is measured."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_tasks, schedules

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import MAX_BURST_BYTES, Burst, Schedule
from xstage_bench.schedule.tasks import NONE, TaskSchedule, stuck_task


def test_keys_do_not_change_between_versions():
    """A replay finds what was recorded by its key, so another key makes every recorded run unreadable."""
    assert Schedule((Burst(512),), 1).key() == "998f9ae717dec5db"
    assert Schedule((Burst(1024, 7, 5), Burst(2048, 9, 11)), (0, 2), 2, 1, 0, "free").key() == "9afdeca4a1ca31b2"


@given(schedules(), st.integers(1, 10**6))
def test_key_ignores_what_is_not_measured(s, other):
    assert re.fullmatch("[0-9a-f]{16}", s.key())
    np.testing.assert_array_equal(s.stores_per_warp() * s.warps * s.warp_store_bytes, [b.bytes for b in s.bursts])
    first = replace(s.bursts[0], gap_cycles=s.bursts[0].gap_cycles + other)
    assert replace(s, bursts=(first, *s.bursts[1:])).key() == s.key()
    if s.start != "free":
        assert replace(s, bursts=tuple(replace(b, gap_cycles=other) for b in s.bursts)).key() == s.key()
    if s.start != "timed":
        assert replace(s, bursts=tuple(replace(b, start_ns=other) for b in s.bursts)).key() == s.key()


@given(schedules(), st.integers(1, 100))
def test_key_changes_with_what_is_measured(s, more):
    unit = s.warps * s.warp_store_bytes
    last = s.bursts[-1]
    others = [
        replace(s, bursts=(*s.bursts[:-1], replace(last, bytes=last.bytes + more * unit))),
        replace(s, bursts=(*s.bursts, Burst(unit, start_ns=last.start_ns))),
        replace(s, source=s.source + more),
        replace(s, destination=s.destination + more),
        replace(s, producers=s.producer_count + more),
        replace(s, start="timed" if s.start != "timed" else "isolated", warps_meet=True),
    ]
    if s.start == "isolated":
        with pytest.raises(UsageError, match="isolated bursts start with all warps together"):
            replace(s, warps_meet=False)
    else:
        others.append(replace(s, warps_meet=not s.warps_meet))
    if s.start == "free" and len(s.bursts) > 1:
        others.append(replace(s, bursts=(*s.bursts[:-1], replace(last, gap_cycles=last.gap_cycles + more))))
    if s.start == "timed":
        others.append(replace(s, bursts=(*s.bursts[:-1], replace(last, start_ns=last.start_ns + more))))
    keys = [o.key() for o in others]
    assert s.key() not in keys
    assert len(set(keys)) == len(keys)


@given(st.integers(1, 200), st.lists(st.integers(0, 300), min_size=1, unique=True).map(sorted))
def test_a_count_spreads_evenly_or_is_refused(count, available):
    s = Schedule((Burst(512),), count)
    if count > len(available):
        with pytest.raises(UsageError, match=f"has {len(available)} SMs"):
            s.smids(available)
        return
    smids = s.smids(available)
    assert len(set(smids.tolist())) == count
    assert set(smids.tolist()) <= set(available)
    index = np.searchsorted(available, smids)
    gaps = np.diff([*index, index[0] + len(available)])
    assert gaps.max() - gaps.min() <= 1
    named = replace(s, producers=tuple(available))
    assert named.smids(range(301)).tolist() == available
    with pytest.raises(UsageError, match=f"smid {available[-1]}"):
        named.smids([x for x in range(301) if x != available[-1]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bursts": ()}, "at least one burst"),
        ({"bursts": (Burst(-512),)}, "burst 0: bytes is -512"),
        ({"bursts": (Burst(512), Burst(MAX_BURST_BYTES + 512))}, "burst 1: bytes"),
        ({"bursts": (Burst(512, -1),)}, "negative gap_cycles"),
        ({"bursts": (Burst(512, 0, -1),)}, "negative gap_cycles or start_ns"),
        ({"start": "timed", "bursts": (Burst(512, 0, 5), Burst(512, 0, 4))}, "burst 1: start_ns 4 is before"),
        ({"producers": 0}, "producers is 0"),
        ({"producers": ()}, "smids must be"),
        ({"producers": (3, 3)}, "distinct"),
        ({"producers": (3, 1)}, "ascending"),
        ({"producers": (-1, 1)}, "smids must be"),
        ({"warps": 0}, "warps is 0"),
        ({"warps": 17}, "warps is 17"),
        ({"source": -1}, "must not be negative"),
        ({"start": "asap"}, "unknown start rule 'asap'"),
        ({"flavour": "st.v3"}, "unknown flavour 'st.v3'"),
        ({"layout": "strided"}, "unknown layout 'strided'"),
    ],
)
def test_refusals_name_the_fault(change, words):
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        replace(Schedule((Burst(512 * 16),), 4), **change)
    assert caught.value.hint


@given(st.integers(1, 16), st.integers(1, 10**6))
def test_a_wrong_size_is_refused_with_the_nearest_right_ones(warps, size):
    unit = 512 * warps
    if size % unit == 0:
        size += 1
    with pytest.raises(UsageError, match=f"{size} bytes is not a multiple of {unit}") as caught:
        Schedule((Burst(size),), 1, warps)
    low, high = map(int, re.findall(r"\d+", caught.value.hint))
    assert low < size < high == low + unit
    for right in (low, high):
        Schedule((Burst(right),), 1, warps)


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
@given(s=random_tasks(producers=4, tasks=24), data=st.data())
def test_lists_cut_from_one_order_always_finish_and_a_swap_is_judged_as_execution_judges_it(s: TaskSchedule, data: st.DataObject) -> None:
    """Each event is signalled earlier in one common order than it is waited for, so no deal to producers can dead-lock."""
    assert stuck_task(s) is None
    swap = np.arange(s.task_count)
    pair = [data.draw(st.integers(0, s.task_count - 1)) for _ in range(2)]
    swap[pair] = swap[pair[::-1]]
    if finishes(s.producer.tolist(), s.waits_for[swap].tolist(), s.signals[swap].tolist()):
        assert stuck_task(replace(s, waits_for=s.waits_for[swap], signals=s.signals[swap])) is None
    else:
        with pytest.raises(UsageError, match="wait"):
            replace(s, waits_for=s.waits_for[swap], signals=s.signals[swap])


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
