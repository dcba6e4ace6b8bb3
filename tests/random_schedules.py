"""Schedules of any shape: bursts, and tasks that can always finish whatever their dependencies, deals and sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from xstage_bench.schedule.bursts import START_RULES, Burst, Schedule
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule


@st.composite
def schedules(draw):
    warps = draw(st.integers(1, 16))
    stores = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6))
    starts = sorted(draw(st.lists(st.integers(0, 10**9), min_size=len(stores), max_size=len(stores))))
    smids = st.lists(st.integers(0, 131), min_size=1, max_size=6, unique=True).map(lambda x: tuple(sorted(x)))
    start = draw(st.sampled_from(START_RULES))
    return Schedule(
        tuple(Burst(512 * warps * n, draw(st.integers(0, 10**6)), s) for n, s in zip(stores, starts, strict=True)),
        draw(st.one_of(st.integers(1, 132), smids)),
        warps,
        draw(st.integers(0, 7)),
        draw(st.integers(0, 7)),
        start,
        warps_meet=start == "isolated" or draw(st.booleans()),
    )


@st.composite
def random_tasks(draw: st.DrawFn, producers: int = 40, tasks: int = 120) -> TaskSchedule:
    """Return a schedule of at most so many producers and tasks, from one SM to all of an H200."""
    k, n = draw(st.integers(1, producers)), draw(st.integers(1, tasks))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    producer = np.sort(rng.integers(0, k, n))
    order = rng.permutation(n)  # in this common order, what is waited for comes first: no deal can dead-lock
    order = order[np.lexsort((order, producer))]
    events = draw(st.integers(1, 5))
    cut = np.sort(rng.integers(0, n, events))
    signals = np.where(rng.random(n) < 0.5, np.searchsorted(cut, order, side="right") - 1, NONE)
    waits = np.full(n, NONE)
    for i in range(n):
        before = [e for e in range(events) if (signals == e).any() and order[signals == e].max() < order[i]]
        if before and rng.random() < 0.5:
            waits[i] = rng.choice(before)
    size = rng.integers(0, 20, n) * 2048 * (rng.random(n) < 0.7)
    return TaskSchedule(
        producers=tuple(int(x) for x in np.sort(rng.choice(132, k, replace=False))),
        producer=producer,
        compute_cycles=(rng.exponential(6000, n) * (rng.random(n) < 0.8)).astype(int),
        bytes=size,
        remote_bytes=(size * rng.random(n) // 512 * 512).astype(int),
        waits_for=waits,
        signals=signals,
        form=draw(st.sampled_from(FORMS)),
        publish=draw(st.sampled_from(PUBLISHES)),
        both_ways=draw(st.booleans()),
    )
