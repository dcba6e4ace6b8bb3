"""Orders, owners and flags of a Ulysses group: each tile once, and every awaited flag is set. `test_ulysses_variants` copies the rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.kernels.attention.attention import AttentionBuild
from xstage_bench.kernels.attention.plans import awaited, blocks_of_owner
from xstage_bench.kernels.attention.problem import BF16_BYTES, Placing, Problem
from xstage_bench.kernels.attention.tile_order import ORDERS, blocks_of, owner_of_block, tiles_of

HEAD_DIM = 64


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    ranks = draw(st.sampled_from([2, 3, 4, 8]))
    kv = draw(st.sampled_from([1, ranks]))
    return Problem(ranks * draw(st.integers(1, 3)), kv, HEAD_DIM, draw(st.integers(1, 1500)), ranks)


def split(words: np.ndarray) -> list[tuple[int, int]]:
    return [(int(w) >> 16, int(w) & 0xFFFF) for w in words]


@given(problems(), st.sampled_from(sorted(ORDERS)), st.sampled_from([64, 128, 192]), st.integers(0, 7))
def test_every_order_has_every_tile_once(p: Problem, name: str, tile_rows: int, rank: int) -> None:
    order = split(tiles_of(name, p.local_heads, p.seq, tile_rows, p.ranks, rank % p.ranks))
    blocks = -(-p.seq // tile_rows)
    assert Counter(order) == Counter((h, b) for h in range(p.local_heads) for b in range(blocks))
    assert [h for h, _ in order] == sorted(h for h, _ in order), "heads stay together: their keys are in the cache"


@given(problems(), st.integers(0, 7))
def test_interleaved_owners_take_turns(p: Problem, rank: int) -> None:
    owner = owner_of_block(p.seq, 64, p.ranks)
    order = [owner[b] for h, b in split(tiles_of("owner-interleaved", 1, p.seq, 64, p.ranks, 0))]
    counts = Counter(order)
    for start in range(0, min(counts.values()) * len(counts), len(counts)):  # while all have tiles left
        assert sorted(order[start : start + len(counts)]) == sorted(counts)


@given(problems(), st.integers(0, 7))
def test_local_tiles_lie_evenly_between_remote_ones(p: Problem, rank: int) -> None:
    rank %= p.ranks
    owner = owner_of_block(p.seq, 64, p.ranks)
    local = np.array([owner[b] == rank for _, b in split(tiles_of("local-between", 1, p.seq, 64, p.ranks, rank))])
    share = np.arange(1, local.size + 1) * local.mean()
    assert np.abs(np.cumsum(local) - share).max() <= 1.0


@given(problems())
def test_owners_share_all_rows(p: Problem) -> None:
    assert sum(p.rows_of(o) for o in range(p.ranks)) == p.seq
    assert all(p.rows_of(o) <= p.rows_per_owner for o in range(p.ranks))
    assert p.remote_bytes(0) == (p.seq - p.rows_of(0)) * p.local_heads * p.head_dim * BF16_BYTES


def flags_set(p: Problem, build: AttentionBuild, source: int, ctas: int) -> Counter[tuple[int, int]]:
    """What ``publish_tile`` of cuda/attention_publish.cuh does in one launch: (owner, word) and how often."""
    out: Counter[tuple[int, int]] = Counter()
    blocks = blocks_of(p.seq, build.tile_rows)
    if build.flags == "end":
        return Counter({(owner, 0): ctas for owner in range(p.ranks) if p.rows_of(owner)})
    for head in range(p.local_heads):
        for block in range(blocks):
            first, last = block * build.tile_rows, min((block + 1) * build.tile_rows, p.seq) - 1
            for owner in range(first // p.rows_per_owner, last // p.rows_per_owner + 1):
                out[owner, (source * p.local_heads + head) * blocks + block if build.flags == "tile" else 0] += 1
    return out


@settings(max_examples=60)
@given(problems(), st.sampled_from(["end", "shard", "tile"]), st.sampled_from([2, 3]), st.booleans())
def test_a_rank_awaits_exactly_what_the_others_publish_to_its_gpu(p: Problem, flags: str, consumers: int, emulated: bool) -> None:
    build = AttentionBuild(HEAD_DIM, 128, consumers, flags=flags)  # type: ignore[arg-type]
    placing = Placing(p, (0, 1) if emulated else tuple(range(p.ranks)))
    base = {(s, o): (s * 100 + o) << 32 for s in placing.sources for o in range(p.ranks)}
    for rank in placing.sources:
        expected: dict[int, int] = {}
        for source in placing.sources:
            for (owner, word), times in flags_set(p, build, source, 7).items():
                if source != rank and placing.device_of(source, owner) == placing.devices[rank]:
                    expected[base[source, owner] + 4 * word] = times
        waits = awaited(placing, build, rank, 7, base)
        found = {int(w["words"]) + 4 * i: int(w["per_launch"]) for w in waits for i in range(int(w["count"]))}
        assert found == expected
        assert sum(int(w["count"]) for w in waits) == len(found), "no word is awaited twice"


@given(problems(), st.sampled_from([64, 128, 192]))
def test_the_tiles_of_an_owner_are_those_with_its_rows(p: Problem, tile_rows: int) -> None:
    for owner in range(p.ranks):
        rows = np.arange(owner * p.rows_per_owner, owner * p.rows_per_owner + p.rows_of(owner))
        assert list(blocks_of_owner(p, tile_rows, owner)) == sorted(set((rows // tile_rows).tolist()))


def test_an_emulated_group_keeps_its_senders_apart() -> None:
    p = Problem(8, 8, 128, 4096, 8)
    placing = Placing(p, (0, 1))
    assert placing.emulated
    assert placing.device_of(0, 0) == 0
    assert {placing.device_of(0, o) for o in range(1, 8)} == {1}
    assert {placing.device_of(1, o) for o in (0, 2, 7)} == {0}
    assert len(placing.regions()) == 16
    assert Placing(Problem(8, 8, 128, 4096, 2), (0, 1)).regions() == {(-1, 0): 0, (-1, 1): 1}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((38, 38, 64, 4096, 4), "--sp 1, 2"),
        ((40, 3, 128, 4096, 2), "divide each other"),
        ((40, 40, 128, 4096, 20), "at most 16"),
        ((40, 40, 128, 0, 2), "for example"),
    ],
)
def test_what_cannot_be_dealt_is_refused(arguments: tuple[int, ...], hint: str) -> None:
    with pytest.raises(UsageError) as error:
        Problem(*arguments)
    assert hint in str(error.value)
