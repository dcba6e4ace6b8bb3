"""MoE as tasks: every token routed once, bytes kept, kinds dealt evenly in every order, and FACTS' ratios of drain to compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads.moe import DEPENDENCIES, ORDERS, blocks_of, default_experts_per_wave, even_blocks, moe_tasks, tasks_of_blocks
from xstage_bench.workloads.routing import ROUTINGS, route, rows_per_expert
from xstage_bench.workloads.shapes import MoEShape, moe_shape

SMALL = MoEShape(name="small", model="for tests", hidden=384, inter=256, experts=16, top_k=3, layers=1, grade="A", source="this test")


def counts(s: TaskSchedule, phase: int) -> np.ndarray:
    return np.bincount(s.producer[s.phase == phase], minlength=s.producer_count)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from(ROUTINGS), st.integers(0, 3), st.data())
def test_every_token_goes_to_its_experts_once(experts, tokens, routing, seed, data):
    top_k = data.draw(st.integers(1, experts))
    chosen = route(experts, top_k, tokens, routing, seed)
    assert chosen.shape == (tokens, top_k)
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    rows = rows_per_expert(experts, top_k, tokens, routing, seed)
    assert rows.sum() == tokens * top_k
    if routing == "balanced":
        assert np.ptp(rows) <= 1
    block_rows, expert = blocks_of(rows)
    assert np.array_equal(np.bincount(expert, block_rows, minlength=experts), rows)
    assert block_rows.min() >= 1
    skewed = rows_per_expert(256, 6, 8192, "skewed")
    assert 14 < skewed.max() / skewed.mean() < 42  # without replacement: below the weights' own 42


@settings(max_examples=80, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    dependencies=st.sampled_from(DEPENDENCIES),
    lead=st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.0, 7.0]),
    tokens=st.integers(1, 700),
    ep=st.sampled_from([1, 2, 4, 8]),
    producers=st.integers(1, 140),
    routing=st.sampled_from(ROUTINGS),
    seed=st.integers(0, 3),
)
def test_no_order_dead_locks_and_both_kinds_are_dealt_evenly(tokens, ep, routing, seed, dependencies, lead, **more):
    """Building a TaskSchedule executes its dependencies, so that it is returned is the proof."""
    lead = max(lead, 1.0) if dependencies == "wave" else lead
    s = moe_tasks(SMALL, tokens_per_rank=tokens, ep=ep, routing=routing, seed=seed, dependencies=dependencies, lead=lead, **more)
    rows = rows_per_expert(16, 3, tokens * ep, routing, seed)[: 16 // ep]
    blocks = int((-(-rows // 128)).sum())
    assert counts(s, 0).sum() == blocks * SMALL.linear1_tiles
    assert counts(s, 1).sum() == blocks * SMALL.linear2_tiles
    for kind in (0, 1):
        assert np.ptp(counts(s, kind)) <= 1  # the parity trap: one mixed list would give some SMs one kind only
    assert 0 <= s.bytes.sum() - rows.sum() * 2 * SMALL.hidden < blocks * SMALL.linear2_tiles * 4 * 512  # a tile is whole warp-stores
    assert abs(s.volume_bytes - s.bytes.sum() * (ep - 1) / ep) <= s.task_count * 512
    assert (s.bytes[s.phase == 0] == 0).all()
    if dependencies == "none":
        assert s.event_count == 0
    else:
        assert (s.waits_for[s.phase == 1] >= 0).all()
        assert (s.waits_for[s.phase == 0] == NONE).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(1, 9), st.sampled_from(DEPENDENCIES), st.sampled_from([1.0, 2.0]))
def test_orders_differ_in_order_only(waves, blocks, dependencies, lead):
    rows, wave = even_blocks(waves, blocks)
    made = [
        tasks_of_blocks(SMALL, rows, wave, order=o, dependencies=dependencies, lead=lead, producers=11) for o in ("wave", "interleaved")
    ]
    for p in range(11):
        one, two = (s.phase[s.producer == p] for s in made)
        assert sorted(one.tolist()) == sorted(two.tolist())
    assert made[0].signals_of_event.tolist() == made[1].signals_of_event.tolist()


@pytest.mark.parametrize(("order", "longest"), [("wave", 4), ("interleaved", 2)])
def test_interleaving_spreads_the_stores(order, longest):
    """Storing tiles in a row on one SM while there is other work left, of 12 to 16 tiles in all."""
    s = tasks_of_blocks("keye-vl-2", *even_blocks(16), order=order)
    mine = "".join(str(k) for k in s.phase[s.producer == 5])
    assert max(len(run) for run in mine[: mine.rindex("0")].split("0")) == longest


@pytest.mark.parametrize(
    ("shape", "bf16", "fp8"), [("keye-vl-2", 0.76, 1.29), ("qwen3.5", 0.58, 0.99), ("hy3", 0.38, 0.65), ("glm-5.2", 0.29, 0.51)]
)
def test_drain_over_compute_is_that_of_the_measured_skeleton(shape, bf16, fp8):
    """V/R over compute of the skeleton's table, with the 0.31 us that a tile's turn took there and R = 378 GB/s beside it."""
    for dtype, expected in (("bf16", bf16), ("fp8", fp8)):
        s = tasks_of_blocks(shape, *even_blocks(16), dtype=dtype)
        compute_ns = (s.compute_cycles.sum() / 1.98 + 310 * s.task_count) / 132
        assert s.volume_bytes / 378 / compute_ns == pytest.approx(expected, rel=0.04)


def test_golden_tiles_of_keye():
    s = moe_tasks("keye-vl-2", tokens_per_rank=512, ep=8)
    assert s.task_count == 32 * (12 + 16)  # 256 rows for each of 16 experts; 7 tiles per SM
    assert set(s.bytes.tolist()) == {0, 32768}
    assert set(s.remote_bytes.tolist()) == {0, 28672}
    assert sorted(set(s.compute_cycles.tolist())) == [8305, 22146]  # 2 * 128 * 128 * (768 | 2048) / 6e12 s at 1980 MHz
    assert s.form == "ping_pong"
    assert s.warps == 4


def test_experts_per_wave_is_the_fewest_that_fill_the_sms_twice():
    assert default_experts_per_wave(moe_shape("keye-vl-2"), 256, 16, 132) == 16  # 24 tiles each: 11 fill 264, 16 divides 16
    assert default_experts_per_wave(moe_shape("keye-vl-2"), 4096, 16, 132) == 1
    assert default_experts_per_wave(moe_shape("qwen3.5"), 10, 64, 132) == 32  # 16 tiles each: 17 fill 264, 32 divides 64
    assert default_experts_per_wave(moe_shape("hy3"), 171, 24, 132) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "keye"}, "did you mean 'keye-vl-2'"),
        ({"ep": 3}, "does not divide the 128 experts"),
        ({"ep": 16}, "a node has"),
        ({"rank": 8}, "rank 8"),
        ({"dtype": "fp4"}, "no type of element 'fp4'"),
        ({"order": "waves"}, "unknown order"),
        ({"dependencies": "tile"}, "unknown dependencies"),
        ({"routing": "even"}, "unknown routing"),
        ({"tokens_per_rank": 0}, "tokens"),
        ({"experts_per_wave": 17}, "experts_per_wave"),
        ({"lead": 0.5, "dependencies": "wave"}, "lead"),
        ({"lead": -1.0}, "lead"),
        ({"remote_share": 1.5}, "remote_share"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        moe_tasks(**{"shape": "keye-vl-2", "tokens_per_rank": 64, "ep": 8, **change})
