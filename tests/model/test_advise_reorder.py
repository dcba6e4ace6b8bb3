"""Reordered, split and staggered schedules hold the same work, and can always finish."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from xstage_bench.model.advise.reorder import Reordering, apply, interleave, split, stagger
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads.moe import even_blocks, tasks_of_blocks
from xstage_bench.workloads.shapes import MoEShape

SMALL = MoEShape(name="small", model="for tests", hidden=384, inter=256, experts=16, top_k=3, layers=1, grade="A", source="this test")


def moe(order: str = "wave", dependencies: str = "block", waves: int = 4, blocks: int = 5, producers: int = 11) -> TaskSchedule:
    return tasks_of_blocks(SMALL, *even_blocks(waves, blocks), order=order, dependencies=dependencies, producers=producers)


def sums(s: TaskSchedule) -> tuple[list[list[int]], list[int]]:
    """Work and bytes of each producer, and signals of each event."""
    columns = (s.compute_cycles, s.bytes, s.remote_bytes)
    return [np.bincount(s.producer, c, minlength=s.producer_count).astype(int).tolist() for c in columns], s.signals_of_event.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["serial", "wave", "interleaved"]),
    st.sampled_from(["block", "wave", "none"]),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 13),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 5000]),
)
def test_a_recipe_keeps_work_bytes_and_events(order, dependencies, waves, blocks, producers, lead, parts, stagger_cycles):
    s = moe(order, dependencies, waves, blocks, producers)
    changed = apply(Reordering(parts, lead, stagger_cycles), s)
    assume(changed is not None)  # an order in which tasks would wait for each other is none
    (work, *stored), signals = sums(s)
    (work2, *stored2), signals2 = sums(changed)
    assert (stored, signals) == (stored2, signals2)
    extra, k = np.array(work2) - work, s.producer_count
    assert np.array_equal(extra, np.rint(stagger_cycles * np.arange(k) / max(k - 1, 1)) * (np.diff(s.first) > 0))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_interleaving_any_schedule_is_safe_or_refused(data):
    """Random dependencies, chains of quiet and storing tasks included."""
    n = data.draw(st.integers(2, 20))
    signals = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)))
    waits = np.full(n, NONE)
    for i in range(n):
        done = [e for e in range(4) if (signals[:i] == e).any() and not (signals[i:] == e).any()]
        waits[i] = data.draw(st.sampled_from([NONE, *done]))
    deal = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    remote = np.array(data.draw(st.lists(st.sampled_from([0, 2048]), min_size=n, max_size=n)))
    order = np.argsort(deal, kind="stable")
    columns = {"waits_for": waits[order], "signals": signals[order], "remote_bytes": remote[order], "bytes": np.full(n, 2048)}
    s = TaskSchedule(producers=4, producer=deal[order], compute_cycles=np.arange(n), **columns)
    changed = interleave(s, data.draw(st.sampled_from([0.0, 1.0])))
    if changed is not None:
        assert sums(changed) == sums(s)
        for p in range(4):  # each producer keeps the order of each kind; compute_cycles tells the tasks apart
            for storing in (False, True):
                before, after = (x.compute_cycles[(x.producer == p) & ((x.remote_bytes > 0) == storing)] for x in (s, changed))
                assert before.tolist() == after.tolist()


def test_wave_order_becomes_the_interleaved_one():
    """On the skeleton: storing tasks in a row while there is other work, and the distance between a block's two kinds."""
    wave = tasks_of_blocks("keye-vl-2", *even_blocks(16), order="wave")
    changed = interleave(wave, 1.0)
    built = tasks_of_blocks("keye-vl-2", *even_blocks(16), order="interleaved", lead=1.0)
    assert changed is not None
    tails = []
    for s in (changed, built):
        mine = ["".join(str(k) for k in s.phase[s.producer == p]) for p in range(s.producer_count)]
        assert max(len(run) for run in mine[5][: mine[5].rindex("0")].split("0")) == 2
        tails.append(np.mean([len(m) - 1 - m.rindex("0") for m in mine]))  # storing tasks after a producer's last quiet one
    assert abs(tails[0] - tails[1]) <= 1


def test_split_parts_are_whole_warp_stores():
    s = moe()
    cut = split(s, 4)
    assert cut is not None
    storing = cut.remote_bytes > 0
    assert storing.sum() == 4 * (s.remote_bytes > 0).sum()
    assert set(cut.bytes[storing].tolist()) == {8192}
    assert (cut.waits_for >= 0).sum() == (s.waits_for >= 0).sum()
    assert split(s, 17) is None  # a tile is 16 warp-stores of 4 warps


def test_stagger_delays_in_proportion_and_without_quiet_tasks_nothing_changes():
    s = stagger(moe(producers=3), 1000)
    assert s.compute_cycles[s.first[:-1]].tolist() == [0, 500, 1000]
    assert s.phases[s.phase[0]] == "delay"
    every = np.full(s.task_count, 2048)
    storing = replace(s, bytes=every, remote_bytes=every, waits_for=np.full(s.task_count, NONE))
    assert interleave(storing, 2.0).key() == storing.key()
    assert Reordering().words().startswith("as it is")
    assert Reordering(2, 1.5, 10).words().startswith("storing tasks in 2 parts, interleaved, lead 1.5")
