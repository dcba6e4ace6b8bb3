"""Keye-VL-2.0 phase by phase: bytes by hand, layouts refused, the set of schedules for the replay."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_set import replay_schedules

from xstage_bench.errors import UsageError
from xstage_bench.workloads.keye import keye_phases
from xstage_bench.workloads.keye_plan import plan_pass
from xstage_bench.workloads.phases import MODES, Phase, PhaseLayout


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": PhaseLayout(8, 8)}, "above the 4 key-value heads"),
        ({"layout": PhaseLayout(8, 4, 2)}, "above the 4 key-value heads"),
        ({"layout": PhaseLayout(3, 1)}, "does not divide the 128 experts"),
        ({"layout": PhaseLayout(16, 1)}, "a node has"),
        ({"layout": PhaseLayout(8, 3)}, "does not divide the 32 heads"),
        ({"layout": PhaseLayout(8, 0)}, "SP 0"),
        ({"layout": PhaseLayout(8, 1, 0)}, "TP 0"),
        ({"layout": PhaseLayout(8, 16, replicate_kv=True)}, "fit no node"),
        ({"mode": "train"}, "unknown mode"),
        ({"context": 300000}, "262144"),
        ({"context": 0}, "context of 0"),
        ({"dtype": "int8"}, "int8"),
        ({"tokens_per_rank": 0}, "0 tokens per rank"),
    ],
)
def test_layouts_and_passes_that_cannot_be(change, message):
    with pytest.raises(UsageError, match=message):
        plan_pass(**{"mode": "prefill", "layout": PhaseLayout(8, 4), "context": 8192, "dtype": "bf16", **change})


def test_the_replay_set_is_large_varied_and_short():
    found = replay_schedules()
    assert len(found) >= 60
    assert len({s.key() for s in found}) == len(found)
    assert max(s.task_count for s in found) < 15000
    assert max(s.compute_cycles.sum() / s.producer_count for s in found) < 7e6  # 3.5 ms
    assert sum(s.event_count > 0 for s in found) > 30
    assert [s.key() for s in found] == [s.key() for s in replay_schedules()]
