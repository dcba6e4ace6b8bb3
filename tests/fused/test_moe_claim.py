"""Tasks that are claimed while the kernel runs: the lists, the proof that nothing waits for ever, and what the host tells the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.forecast import remote_tile_bytes
from xstage_bench.kernels.moe.layer import Layer, rows_of
from xstage_bench.kernels.moe.measure import remote_bytes
from xstage_bench.kernels.moe.order import SECOND_BIT, Order, TaskLists, check_lists, linear2_from, task_lists
from xstage_bench.workloads.shapes import MoEShape

SHAPE = MoEShape(name="t", model="t", hidden=384, inter=256, experts=8, top_k=2, layers=1, grade="A", source="test")
SIZES = tuple[int, int, int]


def made(claim: str, kind: str = "interleaved", lead: float = 1.0, ctas: int = 5, routing: str = "skewed") -> tuple[TaskLists, SIZES]:
    layer = Layer(SHAPE, 200, 2, routing=routing)
    rows = rows_of(layer, 0)
    lists = task_lists(layer, rows, Order(kind, lead=lead), ctas, claim)  # type: ignore[arg-type]
    return lists, (rows.blocks, SHAPE.linear1_tiles, SHAPE.linear2_tiles)


def hangs(words: np.ndarray, ctas: int, tiles: int, ahead: int, rng: np.random.Generator) -> bool:
    """Execute a list as CTAs do that claim from it: each in the order of its claims, `ahead` of them made before they are needed.

    A random CTA goes on at each step, so that any may be slow. A tile that is brought is finished at some later step of its CTA.
    """
    second, block = words >> SECOND_BIT, words >> 12 & 0x7FFFF
    published = np.zeros(int(block.max()) + 1, dtype=int)
    counter, held, brought = 0, [[] for _ in range(ctas)], [[] for _ in range(ctas)]
    while True:
        moved = False
        for c in rng.permutation(ctas):
            while len(held[c]) <= ahead and counter < words.size:
                held[c].append(counter)
                counter += 1
                moved = True
            if held[c] and (not second[held[c][0]] or published[block[held[c][0]]] == tiles):
                brought[c].append(held[c].pop(0))
                moved = True
            elif brought[c]:
                done = brought[c].pop(0)
                published[block[done]] += not second[done]
                moved = True
            if moved and rng.random() < 0.7:
                break
        if not moved:
            return any(held)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["serial", "wave", "interleaved"]),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(0, 99),
)
def test_whatever_ctas_claim_nothing_waits_for_ever(kind: str, lead: float, ctas: int, ahead: int, seed: int) -> None:
    lists, sizes = made("dynamic", kind, lead, ctas)
    check_lists(lists, *sizes, "dynamic")
    assert lists.ctas == ctas
    assert lists.first[1] == lists.first[-1] == lists.words.size  # all in one list, whose length the kernel reads behind the last CTA's
    assert not hangs(lists.words, ctas, sizes[1], ahead, np.random.default_rng(seed))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 40), st.integers(1, 4))
def test_a_list_is_refused_exactly_where_one_cta_alone_could_not_execute_it(seed: int, swaps: int, ctas: int) -> None:
    lists, sizes = made("dynamic", "serial")
    rng, words = np.random.default_rng(seed), lists.words.copy()
    for _ in range(swaps):
        a = rng.integers(words.size - 1)
        words[[a, a + 1]] = words[[a + 1, a]]
    forged = replace(lists, words=words)
    block, second = forged.block, forged.second
    at = np.arange(words.size)
    safe = all(at[(block == b) & ~second].max() < at[(block == b) & second].min() for b in range(sizes[0]))
    if safe:
        check_lists(forged, *sizes, "dynamic")
        assert not hangs(words, ctas, sizes[1], 1, rng)
    else:
        with pytest.raises(UsageError, match=r"unsafe: Linear-2 tile \d+ of block \d+ waits"):
            check_lists(forged, *sizes, "dynamic")
        assert hangs(words, 1, sizes[1], 1, rng)


def test_lists_of_one_claim_are_refused_for_another() -> None:
    given_lists, sizes = made("static", "interleaved", lead=0.0)
    check_lists(given_lists, *sizes)
    with pytest.raises(UsageError, match="waits"):
        check_lists(given_lists, *sizes, "dynamic")
    with pytest.raises(UsageError, match="behind a Linear-2 tile"):
        check_lists(given_lists, *sizes, "paced")


def test_a_list_that_leaves_tiles_out_is_refused() -> None:
    lists, sizes = made("dynamic")
    with pytest.raises(UsageError, match="in no list"):
        check_lists(replace(lists, first=np.minimum(lists.first, lists.words.size - 1)), *sizes, "dynamic")


@pytest.mark.parametrize("kind", ["wave", "interleaved"])
@pytest.mark.parametrize("ctas", [1, 5, 200])
def test_a_paced_cta_has_the_tiles_of_its_list_each_kind_in_its_order(kind: str, ctas: int) -> None:
    usual, sizes = made("static", kind, ctas=ctas)
    paced, _ = made("paced", kind, ctas=ctas)
    check_lists(paced, *sizes, "paced")
    assert (paced.first == usual.first).all()
    middle = linear2_from(paced)
    for c in range(ctas):
        mine = usual.words[usual.first[c] : usual.first[c + 1]]
        assert (paced.words[paced.first[c] : middle[c]] == mine[mine >> SECOND_BIT == 0]).all()
        assert (paced.words[middle[c] : paced.first[c + 1]] == mine[mine >> SECOND_BIT == 1]).all()


@pytest.mark.parametrize("kind", ["serial", "wave"])
def test_one_list_walks_the_tiles_as_the_lists_of_all_ctas_do(kind: str) -> None:
    """Without a lead, which is counted per CTA, task i of the one list is dealt to the CTAs in turn, each kind by itself."""
    one, _ = made("dynamic", kind)
    many, _ = made("static", kind)
    for second in (False, True):
        owner = np.repeat(np.arange(many.ctas), np.diff(many.first))[many.second == second]
        tiles = many.words[many.second == second]
        place = np.zeros(tiles.size, dtype=int)
        for c in range(many.ctas):
            place[owner == c] = np.arange((owner == c).sum())
        before = 0 if not second else int((~many.second).sum())
        turn = np.lexsort(((owner - before) % many.ctas, place))
        assert (one.words[one.second == second] == tiles[turn]).all()


@pytest.mark.parametrize("combine", ["none", "bf16", "f32"])
def test_the_bytes_that_a_tile_sends_away_add_up(combine: str) -> None:
    layer = Layer(SHAPE, 200, 4, routing="skewed", masked=0.2)
    for rank in range(2):
        rows = rows_of(layer, rank)
        each = remote_tile_bytes(rows, rank, combine)
        assert each.sum() * SHAPE.linear2_tiles == remote_bytes(rows, rank, SHAPE.hidden, combine)
        assert each.max() <= 128 * 128 * 4
