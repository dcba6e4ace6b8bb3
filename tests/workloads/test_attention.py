"""Ulysses attention as tasks: every row goes to its owner once, in every order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.workloads.attention import TILE_ORDERS, attention_tasks, tiles_of
from xstage_bench.workloads.shapes import AttentionShape, attention_shapes


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "flux"}, "no attention shape 'flux'"),
        ({"shape": "wan-1.3b-480p"}, "SP 8 does not divide the 12 heads"),
        ({"sp": 0}, "SP 0"),
        ({"sp": 9}, "SP 9"),
        ({"order": "rows"}, "unknown order"),
        ({"rank": 8}, "rank 8"),
        ({"dtype": "fp4"}, "fp4"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        attention_tasks(**{"shape": "flux.1-1024", "sp": 8, **change})
