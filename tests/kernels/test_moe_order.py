"""Rows and task lists of a MoE layer: everything once, nothing that waits for ever."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.layer import PADDING, Layer, rows_of, slot_numbers
from xstage_bench.kernels.moe.order import SECOND_BIT, Order, TaskLists, check_lists, task_lists
from xstage_bench.workloads.shapes import TILE, MoEShape, moe_shape


def shape(hidden: int = 256, inter: int = 128, experts: int = 8, top_k: int = 2) -> MoEShape:
    return MoEShape(name="t", model="t", hidden=hidden, inter=inter, experts=experts, top_k=top_k, layers=1, grade="A", source="test")


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    ep = draw(st.sampled_from([1, 2, 4, 8]))
    experts = ep * draw(st.integers(1, 4))
    return Layer(
        shape(128 * draw(st.integers(1, 4)), 128 * draw(st.integers(1, 3)), experts, draw(st.integers(1, min(4, experts)))),
        tokens=draw(st.integers(1, 200)),
        ep=ep,
        dtype=draw(st.sampled_from(["bf16", "fp8"])),
        routing=draw(st.sampled_from(["balanced", "skewed", "concentrated"])),
        masked=draw(st.sampled_from([0.0, 0.3, 0.9])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=40, deadline=None)
@given(layers())
def test_every_routed_pair_is_one_row_of_one_rank(layer: Layer) -> None:
    routes, seen = layer.routes(), set()
    for rank in range(layer.ep):
        rows = rows_of(layer, rank)
        real = rows.owner != PADDING
        expert = np.repeat(rows.block_expert, TILE)[real] + rank * layer.local_experts
        assert (routes[rows.owner[real], rows.token[real], rows.k[real]] == expert).all()
        assert (real.reshape(-1, TILE).sum(axis=1) == rows.block_rows).all()
        pairs = set(zip(rows.owner[real].tolist(), rows.token[real].tolist(), rows.k[real].tolist(), strict=True))
        assert len(pairs) == real.sum()
        assert not pairs & seen
        seen |= pairs
    assert len(seen) == (routes >= 0).sum()
    weights = layer.weights()
    assert ((weights > 0) == (routes >= 0)).all()
    total = weights.sum(axis=2)
    assert np.allclose(total[(routes >= 0).any(axis=2)], 1, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(layers())
def test_every_pair_has_a_slot_of_its_own_and_a_block_sends_to_neighbours(layer: Layer) -> None:
    numbers = slot_numbers(layer)
    assert (np.sort(numbers.reshape(layer.ep, -1), axis=1) == np.arange(numbers[0].size)).all()
    for rank in range(layer.ep):
        rows = rows_of(layer, rank)
        expert = np.repeat(rows.block_expert, TILE)
        real = rows.owner != PADDING
        slot = numbers[rows.owner[real], rows.token[real], rows.k[real]]
        for owner in range(layer.ep):
            for one in np.unique(expert):
                mine = slot[(rows.owner[real] == owner) & (expert[real] == one)]
                assert (np.diff(mine) == 1).all()


@settings(max_examples=40, deadline=None)
@given(layers(), st.sampled_from(["serial", "wave", "interleaved"]), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(1, 140))
def test_every_order_has_every_tile_once_and_is_safe(layer: Layer, kind: str, lead: float, ctas: int) -> None:
    rows = rows_of(layer, 0)
    lists = task_lists(layer, rows, Order(kind, lead=lead), ctas)
    s = layer.shape
    check_lists(lists, rows.blocks, s.linear1_tiles, s.linear2_tiles)
    # The parity trap: each kind of tile is dealt evenly, whatever the order.
    owner = np.repeat(np.arange(ctas), np.diff(lists.first))
    for second in (False, True):
        count = np.bincount(owner[lists.second == second], minlength=ctas)
        assert count.max() - count.min() <= 1


def lists_of(order: Order) -> tuple[TaskLists, tuple[int, int, int]]:
    layer = Layer(shape(), 300, 2)
    rows = rows_of(layer, 0)
    return task_lists(layer, rows, order, 5), (rows.blocks, layer.shape.linear1_tiles, layer.shape.linear2_tiles)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("left out", "in no list"),
        ("reversed", r"unsafe: Linear-2 tile \d+ of block \d+ waits"),
        *((name, name) for name in ("twice", "missing", "no tile")),
    ],
)
def test_a_forged_order_is_refused(what: str, said: str) -> None:
    lists, sizes = lists_of(Order("wave") if what in ("left out", "reversed") else Order("interleaved"))
    words, first = lists.words.copy(), lists.first
    if what == "left out":
        first = np.minimum(first, words.size - 1)
    elif what == "reversed":  # every CTA's Linear-2 tiles first: they wait for tiles behind them
        words = np.concatenate([words[a:b][::-1] for a, b in itertools.pairwise(first)])
    else:
        if what == "no tile":
            words[0] = np.uint32(1 << SECOND_BIT | sizes[0] << 12)  # a block that does not exist
        words = {"twice": np.append(words, words[-1]), "missing": words[:-1]}.get(what, words)
        first = np.append(first[:-1], words.size)
    with pytest.raises(UsageError, match=said):
        check_lists(TaskLists(words, first), *sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "type"),
        ({"masked": 1.5}, "masked"),
        ({"tokens": 0}, "token"),
        ({"ep": 3}, "EP 3"),
        ({"shape": shape(hidden=200)}, "multiples of 128"),
    ],
)
def test_layers_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(Layer(shape(), 10, 2), **change)  # type: ignore[arg-type]


def test_a_rank_without_rows_has_a_block_of_padding() -> None:
    rows = rows_of(Layer(shape(), 10, 2, masked=1.0), 0)
    assert rows.block_rows.tolist() == [0]
    assert (rows.owner == PADDING).all()
    assert rows_of(Layer(shape(experts=2), 1, 2), 0).block_rows.tolist() == [2]


def test_the_waves_of_the_public_kernel() -> None:
    """The fewest experts whose Linear-1 tiles fill 132 SMs twice: of Keye at 2048 tokens a rank and 8 ranks, 96 tiles each, four."""
    layer = Layer(moe_shape("keye-vl-2"), 2048, 8)
    rows = rows_of(layer, 0)
    lists = task_lists(layer, rows, Order("wave"), 132)
    first = lists.words[lists.first[0] : lists.first[1]]
    change = np.flatnonzero(np.diff((first >> SECOND_BIT).astype(int)) == 1)
    assert len(change) == len(set(rows.block_expert.tolist())) / 4
