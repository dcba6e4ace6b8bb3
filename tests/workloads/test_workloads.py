"""Workloads as tasks and phases: rows and bytes kept in every order, golden numbers, sums of a prediction, and what is refused."""

from __future__ import annotations

import json

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_set import replay_schedules

from xstage_bench.errors import UsageError
from xstage_bench.io.json_file import encode_json
from xstage_bench.model.document import load_model
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads import predict_workload, workloads
from xstage_bench.workloads.attention import TILE_ORDERS, attention_tasks, tiles_of
from xstage_bench.workloads.keye import keye_phases
from xstage_bench.workloads.keye_plan import plan_pass
from xstage_bench.workloads.moe import DEPENDENCIES, ORDERS, blocks_of, default_experts_per_wave, even_blocks, moe_tasks, tasks_of_blocks
from xstage_bench.workloads.phases import MODES, Phase, PhaseLayout
from xstage_bench.workloads.predicted import COLUMNS
from xstage_bench.workloads.routing import ROUTINGS, route, rows_per_expert
from xstage_bench.workloads.shapes import AttentionShape, MoEShape, attention_shapes, moe_shape


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2000),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(TILE_ORDERS),
    st.sampled_from([64, 128]),
    st.integers(1, 140),
    st.data(),
)
def test_tiles_cover_the_sequence_and_bytes_are_kept_in_every_order(tokens, sp, order, head_dim, producers, data):
    rank = data.draw(st.integers(0, sp - 1))
    shape = AttentionShape(name="small", model="for tests", heads=8, head_dim=head_dim, visual=tokens, source="this test")
    s = attention_tasks(shape, sp=sp, order=order, rank=rank, producers=producers)
    rows, owner = tiles_of(tokens, -(-tokens // sp))
    assert rows.sum() == tokens
    assert 1 <= rows.min() <= rows.max() <= 128
    assert (np.bincount(owner, rows)[:-1] == -(-tokens // sp)).all()  # all owners are full but the last one with any
    assert (np.diff(owner) >= 0).all()
    stored = -(-rows * head_dim * 2 // 2048) * 2048  # whole warp-stores of four warps
    assert s.bytes.sum() == 8 // sp * stored.sum()
    assert s.volume_bytes == 8 // sp * stored[owner != rank].sum()
    assert set(np.unique(s.remote_bytes // np.maximum(s.bytes, 1))) <= {0, 1}  # a tile is remote or local as a whole
    assert np.ptp(np.bincount(s.producer, minlength=s.producer_count)) <= 1


def test_orders_do_what_they_say():
    shape = AttentionShape(name="small", model="for tests", heads=8, visual=1024, source="this test")
    remote = {o: attention_tasks(shape, sp=4, order=o, rank=2, producers=1).remote_bytes > 0 for o in TILE_ORDERS}
    assert remote["sequence"].tolist() == ([True] * 4 + [False] * 2 + [True] * 2) * 2
    assert remote["local_last"].tolist() == [True] * 12 + [False] * 4
    assert remote["owners"].tolist() == [True, True, False, True] * 4


def test_golden_flux():
    s = attention_tasks("flux.1-1024", sp=8)
    assert s.task_count == 3 * 8 * 5  # 4608 tokens: 576 an owner, 4 whole tiles and a half
    assert s.bytes.sum() == 3 * 4608 * 128 * 2
    assert set(s.compute_cycles.tolist()) == {round(4 * 128 * 4608 * 128 / 5.14e12 * 1.98e9)}


@pytest.mark.parametrize("name", attention_shapes())
def test_every_shape_allows_two_ranks_and_a_limit_keeps_the_first_tiles_of_each_producer(name):
    whole, piece = attention_tasks(name, sp=2), attention_tasks(name, sp=2, limit=3)
    assert piece.producer_count == 132
    for p in (0, 77, 131):
        assert piece.remote_bytes[piece.producer == p].tolist() == whole.remote_bytes[whole.producer == p][:3].tolist()


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


def phases(mode="prefill", layout=None, context=8192, dtype="bf16", feedback="logits") -> dict[str, Phase]:
    return {p.name: p for p in keye_phases(plan_pass(mode, layout or PhaseLayout(8, 4), context, dtype), feedback)}


def test_golden_bytes_of_a_prefill():
    """8K tokens on 4 ranks of a sequence: 2048 tokens of each rank, in one chunk."""
    found = phases()
    assert list(found) == ["vision", "reshard", "qkv", "select", "attention", "output", "dispatch", "experts"]
    tokens = 2048
    heads = 40 * 128 * 2 * 3 // 4  # queries, keys and values: three of four ranks are others
    assert found["qkv"].tasks.volume_bytes == tokens * (heads + 64 * 2 * 3)  # and the indexer's key head to all three
    assert found["select"].tasks.volume_bytes == tokens * 8192 // 8 * 3  # one bit for each token of the context
    assert found["attention"].tasks.volume_bytes == 4 * tokens * 8 * 128 * 2 * 3 // 4  # a quarter of the heads of all tokens
    assert found["experts"].tasks.volume_bytes == tokens * 8 * 2048 * 2 * 7 // 8
    assert found["reshard"].tasks.volume_bytes == 4096 // 4 * 2048 * 2 * 3 // 4
    assert {p.repeats for p in found.values()} == {1, 48}


def test_long_contexts_go_in_chunks_and_selections_as_indices():
    found = phases(context=131072)
    assert found["experts"].repeats == 48 * 4
    assert found["select"].tasks.volume_bytes == 8192 * 2048 * 4 * 3


def test_golden_bytes_of_other_layouts():
    plain, copied = phases(layout=PhaseLayout(8, 4)), phases(layout=PhaseLayout(8, 8, replicate_kv=True))
    # Keys and values are copied to more ranks than there are heads.
    per_token = [p["qkv"].tasks.volume_bytes / t for p, t in ((plain, 2048), (copied, 1024))]
    assert per_token[0] == 256 * (32 * 3 / 4 + 8 * 3 / 4) + 128 * 3
    assert per_token[1] == 256 * (32 * 7 / 8 + 8 * 2 - 2) + 128 * 7  # 16 copies, of which this rank has one pair

    found = phases(layout=PhaseLayout(8, 2, 2))  # tensor-parallel sums go to the owners of the tokens
    assert found["gather"].pull_bytes == 2048 * 2048 * 2
    assert found["output"].tasks.volume_bytes == 2 * 2048 * 2048 * 2 // 2  # of both ranks' tokens, half
    logits, short = (phases("distill", PhaseLayout(8, 1), 512, feedback=f)["feedback"].tasks for f in ("logits", "top_k"))
    assert logits.volume_bytes == 512 * 151936 * 2
    assert short.volume_bytes < logits.volume_bytes / 40
    assert all(p.tasks is None for p in phases(layout=PhaseLayout(1, 1)).values())  # one rank stores nothing


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MODES),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 100, 2000, 5000]),
    st.sampled_from(["bf16", "fp8"]),
)
def test_every_layout_that_is_allowed_can_be_built(mode, ep, sp, tp, context, dtype):
    found = phases(mode, PhaseLayout(ep, sp, tp, replicate_kv=True), context, dtype)
    for p in found.values():
        assert p.tasks is not None or p.compute_ns > 0 or p.pull_bytes > 0
        if p.tasks is not None:
            assert p.tasks.volume_bytes > 0 or context < sp * tp
    assert ("feedback" in found) == (mode == "distill")


def test_the_replay_set_is_large_varied_and_short():
    found = replay_schedules()
    assert len(found) >= 60
    assert len({s.key() for s in found}) == len(found)
    assert max(s.task_count for s in found) < 15000
    assert max(s.compute_cycles.sum() / s.producer_count for s in found) < 7e6  # 3.5 ms
    assert sum(s.event_count > 0 for s in found) > 30
    assert [s.key() for s in found] == [s.key() for s in replay_schedules()]


MODEL = load_model(h200.MODEL)


@pytest.fixture(scope="module")
def keye():
    known = {}
    found = predict_workload(MODEL, "keye-vl-2", ep=8, sp=4, context=4096, known=known)
    return found, known


def test_layer_and_pass_are_sums_over_the_phases(keye):
    found, known = keye
    assert set(known) == {p.schedule for p in found.phases if p.schedule}
    before = dict(known)
    assert predict_workload(MODEL, "keye-vl-2", ep=8, sp=4, context=4096, known=known) == found
    assert known == before, "known phases are not predicted again"
    document = json.loads(encode_json(found.document()))
    assert any("emulated" in note for note in document["notes"])
    assert all(len(row) == len(COLUMNS) for row in found.rows())
    assert found.layer_ns == pytest.approx(sum(p.total_ns for p in found.phases[2:]))
    assert found.pass_ns == pytest.approx(48 * found.layer_ns + sum(p.total_ns for p in found.phases[:2]))
    assert found.advised_pass_ns < found.pass_ns
    for p in found.phases:
        assert p.advised_ns <= p.total_ns
        assert p.total_ns == pytest.approx(p.compute_ns + p.stores_ns + (p.pull_bytes and p.link_ns))
        assert p.backpressure == (p.stalled_share > 0)
        assert (p.schedule is None) == (p.remote_bytes == 0)
    experts = next(p for p in found.phases if p.name == "experts")  # they stall, and interleaving helps
    assert experts.backpressure
    assert experts.remote_bytes == 1024 * 8 * 2048 * 2 * 7 // 8
    assert experts.burst_bytes == 28672
    assert "interleaved, lead" in experts.advice
    assert 1.08 < experts.total_ns / experts.advised_ns < 1.3


def test_one_layer_and_one_attention():
    names = workloads()
    assert len(names) == len(set(names)) > 30
    moe = predict_workload(MODEL, "dit-moe-xl", ep=4, tokens_per_rank=256)
    assert [p.name for p in moe.phases] == ["dispatch", "experts"]
    assert moe.pass_ns == pytest.approx(28 * moe.layer_ns)
    attention = predict_workload(MODEL, "flux.1-1024", sp=8)
    assert [p.name for p in attention.phases] == ["attention"]
    alone = predict_workload(MODEL, "flux.1-1024", ep=1, sp=1)
    assert alone.phases[0].remote_bytes == 0
    assert not alone.phases[0].backpressure
    assert alone.phases[0].stores_ns < 0.01 * alone.phases[0].total_ns  # issuing to local memory


def test_decoding_is_limited_by_memory():
    found = predict_workload(MODEL, "keye-vl-2", ep=8, sp=1, context=131072, mode="decode", dtype="fp8")
    assert not any(p.backpressure for p in found.phases)
    weights = 16 * 3 * 2048 * 768
    experts = next(p for p in found.phases if p.name == "experts")
    assert experts.compute_ns > weights / 4072  # no faster than its weights arrive


PREFILL = {"mode": "prefill", "layout": PhaseLayout(8, 4), "context": 8192, "dtype": "bf16"}


@pytest.mark.parametrize(
    ("asked", "change", "message"),
    [
        (attention_tasks, {"shape": "flux"}, "no attention shape 'flux'"),
        (attention_tasks, {"shape": "wan-1.3b-480p"}, "SP 8 does not divide the 12 heads"),
        (attention_tasks, {"sp": 0}, "SP 0"),
        (attention_tasks, {"sp": 9}, "SP 9"),
        (attention_tasks, {"order": "rows"}, "unknown order"),
        (attention_tasks, {"rank": 8}, "rank 8"),
        (attention_tasks, {"dtype": "fp4"}, "fp4"),
        (moe_tasks, {"shape": "keye"}, "did you mean 'keye-vl-2'"),
        (moe_tasks, {"ep": 3}, "does not divide the 128 experts"),
        (moe_tasks, {"ep": 16}, "a node has"),
        (moe_tasks, {"rank": 8}, "rank 8"),
        (moe_tasks, {"dtype": "fp4"}, "no type of element 'fp4'"),
        (moe_tasks, {"order": "waves"}, "unknown order"),
        (moe_tasks, {"dependencies": "tile"}, "unknown dependencies"),
        (moe_tasks, {"routing": "even"}, "unknown routing"),
        (moe_tasks, {"tokens_per_rank": 0}, "tokens"),
        (moe_tasks, {"experts_per_wave": 17}, "experts_per_wave"),
        (moe_tasks, {"lead": 0.5, "dependencies": "wave"}, "lead"),
        (moe_tasks, {"lead": -1.0}, "lead"),
        (moe_tasks, {"remote_share": 1.5}, "remote_share"),
        (plan_pass, {"layout": PhaseLayout(8, 8)}, "above the 4 key-value heads"),
        (plan_pass, {"layout": PhaseLayout(8, 4, 2)}, "above the 4 key-value heads"),
        (plan_pass, {"layout": PhaseLayout(3, 1)}, "does not divide the 128 experts"),
        (plan_pass, {"layout": PhaseLayout(16, 1)}, "a node has"),
        (plan_pass, {"layout": PhaseLayout(8, 3)}, "does not divide the 32 heads"),
        (plan_pass, {"layout": PhaseLayout(8, 0)}, "SP 0"),
        (plan_pass, {"layout": PhaseLayout(8, 1, 0)}, "TP 0"),
        (plan_pass, {"layout": PhaseLayout(8, 16, replicate_kv=True)}, "fit no node"),
        (plan_pass, {"mode": "train"}, "unknown mode"),
        (plan_pass, {"context": 300000}, "262144"),
        (plan_pass, {"context": 0}, "context of 0"),
        (plan_pass, {"dtype": "int8"}, "int8"),
        (plan_pass, {"tokens_per_rank": 0}, "0 tokens per rank"),
        (predict_workload, {"workload": "gpt-2"}, "no workload 'gpt-2'"),
        (predict_workload, {"workload": "keye"}, "did you mean 'keye-vl-2'"),
        (predict_workload, {"workload": "hidream-i1"}, "EP 8 does not divide the 4 experts"),
        (predict_workload, {"pair": "0>7"}, "no pair 0>7"),
        (predict_workload, {"mode": "distill", "feedback": "loss"}, "unknown feedback"),
    ],
)
def test_what_is_refused(asked, change, message):
    usual = {
        attention_tasks: {"shape": "flux.1-1024", "sp": 8},
        moe_tasks: {"shape": "keye-vl-2", "tokens_per_rank": 64, "ep": 8},
        plan_pass: PREFILL,
        predict_workload: {"model": MODEL, "workload": "keye-vl-2"},
    }
    with pytest.raises(UsageError, match=message):
        asked(**{**usual[asked], **change})
