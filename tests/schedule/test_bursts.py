"""Properties of a Schedule: what is accepted is consistent, what is refused says why, and the key names what is measured."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import MAX_BURST_BYTES, START_RULES, Burst, Schedule


@st.composite
def schedules(draw):
    warps = draw(st.integers(1, 16))
    stores = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
    gaps = draw(st.lists(st.integers(0, 10**6), min_size=len(stores), max_size=len(stores)))
    starts = sorted(draw(st.lists(st.integers(0, 10**9), min_size=len(stores), max_size=len(stores))))
    smids = st.lists(st.integers(0, 131), min_size=1, max_size=132, unique=True).map(lambda x: tuple(sorted(x)))
    return Schedule(
        tuple(Burst(512 * warps * n, g, s) for n, g, s in zip(stores, gaps, starts, strict=True)),
        draw(st.one_of(st.integers(1, 132), smids)),
        warps,
        draw(st.integers(0, 7)),
        draw(st.integers(0, 7)),
        draw(st.sampled_from(START_RULES)),
    )


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
        replace(s, start="timed" if s.start != "timed" else "isolated"),
    ]
    if s.start == "isolated":
        with pytest.raises(UsageError, match="isolated bursts start with all warps together"):
            replace(s, warps_meet=False)
    else:
        others.append(replace(s, warps_meet=False))
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
