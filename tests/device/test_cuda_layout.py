"""Packing of schedules and unpacking of stamps, against a plain-Python emulation of what the kernel does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.device.cuda import layout
from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import START_RULES, Burst, Schedule
from xstage_bench.schedule.device import Execution

SMIDS = tuple(range(0, 40, 2))  # smids need not be dense
CLOCK = 1980.0


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    warps = draw(st.integers(1, 16))
    start = draw(st.sampled_from(START_RULES))
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    at = 0
    bursts = []
    for n in sizes:
        at += draw(st.integers(0, 5000)) if start == "timed" else 0
        bursts.append(Burst(n * warps * 512, draw(st.integers(0, 9000)) if start == "free" else 0, at))
    producers = draw(st.one_of(st.integers(1, len(SMIDS)), st.sets(st.sampled_from(SMIDS), min_size=1).map(lambda s: tuple(sorted(s)))))
    return Schedule(tuple(bursts), producers, warps, 0, 1, start)  # type: ignore[arg-type]


def emulate(batch: layout.Batch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Write stamps that name their item, burst and producer, in the places the kernel would."""
    stamps = np.zeros(batch.stamps, layout.STAMP)
    verdicts = np.zeros(len(batch.items) + 1, layout.VERDICT)
    verdicts["state"] = layout.STATE_DONE
    verdicts["clock"] = np.arange(len(verdicts)) * 198_000
    verdicts["timer_ns"] = np.arange(len(verdicts)) * 100_000
    for i, item in enumerate(batch.items):
        for smid in range(batch.producer_of.shape[1]):
            producer = batch.producer_of[item["set"], smid]
            if producer < 0:
                continue
            for b in range(item["bursts"]):
                burst = batch.bursts[item["first_burst"] + b]
                begin = 1000 * b + smid
                where = item["result"] + b * item["producers"] + producer
                end = begin + burst["stores"] + i
                stamps[where] = (begin, begin + b, end, begin + 500, end + 33, end + 55, end + 77)
    return stamps, verdicts


@given(st.lists(schedules(), min_size=1, max_size=12), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_every_stamp_comes_back_at_its_burst_and_producer(wanted: list[Schedule], first_tag: int) -> None:
    executions = [Execution(s, i) for i, s in enumerate(wanted)]
    seen, tags = 0, []
    for batch in layout.batches(executions, SMIDS, CLOCK, first_tag):
        stamps, verdicts = emulate(batch)
        tags += batch.items["tag"].tolist()
        for item in batch.items:
            own = batch.bursts[item["first_burst"] : item["first_burst"] + item["bursts"]]
            assert own["first_group"].tolist() == [0, *np.cumsum(-(-own["stores"].astype(int) // 4))[:-1]], "on a group of its own"
        for i, (e, trace) in enumerate(zip(batch.executions, layout.unpack(batch, stamps, verdicts, 0.0), strict=True)):
            s = e.schedule
            assert s is wanted[seen]
            seen += 1
            assert trace.status == "ok"
            assert trace.smids.tolist() == s.smids(SMIDS).tolist()
            stores = s.stores_per_warp().astype(float)
            np.testing.assert_array_equal(trace.issue_cycles, np.repeat((stores + i)[:, None], s.producer_count, axis=1))
            np.testing.assert_array_equal(trace.issued_cycles, np.repeat(np.arange(len(stores))[:, None], s.producer_count, axis=1))
            if s.start == "isolated":
                assert (trace.drain_cycles == 77).all()
                assert np.isnan(trace.gap_cycles).all()
            else:
                assert np.isnan(trace.drain_cycles[:-1]).all()
                assert (trace.drain_cycles[-1] == 77).all()
                np.testing.assert_array_equal(trace.gap_cycles[1:, 0], 1000 - stores[:-1] - i)
            assert trace.sm_clock_mhz == pytest.approx(1980.0)
            np.testing.assert_allclose(trace.end_ns - trace.start_ns, trace.issue_cycles / 1.98, atol=0.51)
    assert seen == len(wanted) == len(set(tags))


def test_a_launch_never_outgrows_the_preallocated_buffers() -> None:
    small = Schedule((Burst(512),) * 20, 20, 1, 0, 1, "free")
    sizes = []
    for batch in layout.batches([Execution(small, i) for i in range(layout.MAX_ITEMS * 2 + 5)], SMIDS, CLOCK, 0):
        assert len(batch.items) <= layout.MAX_ITEMS
        assert len(batch.bursts) <= layout.MAX_BURSTS
        assert batch.stamps <= layout.MAX_STAMPS
        sizes.append(len(batch.items))
    assert sum(sizes) == layout.MAX_ITEMS * 2 + 5
    sets = [Execution(Schedule((Burst(512),), (a, b), 1)) for a in SMIDS for b in SMIDS if a < b] * 2
    assert max(b.producer_of.shape[0] for b in layout.batches(sets, SMIDS, CLOCK, 0)) <= layout.MAX_SETS


def test_time_lines_are_launched_alone() -> None:
    plain, lines = Execution(Schedule((Burst(512),), 2)), Execution(Schedule((Burst(512),), 2), timeline=True)
    shapes = [(len(b.items), b.executions[0].timeline) for b in layout.batches([plain, plain, lines, lines, plain], SMIDS, CLOCK, 0)]
    assert shapes == [(2, False), (1, True), (1, True), (1, False)]


def test_what_went_wrong_is_in_the_status() -> None:
    batch = next(layout.batches([Execution(Schedule((Burst(512),), 2)) for _ in range(3)], SMIDS, CLOCK, 0))
    stamps, verdicts = emulate(batch)
    verdicts["state"][0] = layout.STATE_TIMED_OUT
    for name, value in {"mismatches": 3, "offset": 4096, "expected": 0xAB, "found": 0xCD}.items():
        verdicts[name][1] = value
    traces = list(layout.unpack(batch, stamps, verdicts, level_mhz=2100.0))
    assert [t.status for t in traces] == ["timeout", "corrupt", "throttled"]
    assert "pair 0>1" in traces[1].detail
    assert "offset 4096: expected 0x000000ab, found 0x000000cd" in traces[1].detail
    assert "1980 MHz" in traces[2].detail


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule((Burst(512),), 21), "21 producers asked for, but GPU 0 has 20 SMs"),
        (Schedule((Burst(512),), (2, 3)), "no SM with smid 3"),
        (Schedule((Burst(512),) * 257, 1, start="free"), "257 bursts"),
        (Schedule((Burst(512), Burst(512, 3_000_000_000)), 1, start="free"), "over a second"),
    ],
)
def test_refused_before_launch(schedule: Schedule, words: str) -> None:
    layout.check(Schedule((Burst(512),), 20), SMIDS)
    with pytest.raises(UsageError, match=words):
        layout.check(schedule, SMIDS)
