"""Ulysses attention as tasks: each tile of 128 query rows of one head computes over the whole sequence and sends its rows to their owner.

Before the attention every rank has the whole sequence of some heads; the All-to-All after it, fused tile by tile, brings the output back
to the ranks that own the tokens. A tile's rows have one owner, so a tile is remote or local as a whole, and the order of the tiles is the
order in which the owners are written to.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import NONE, Publish, TaskSchedule
from xstage_bench.workloads.rates import ELEMENT_BYTES, Machine, named_machine
from xstage_bench.workloads.shapes import TILE, AttentionShape, attention_shape

IntArray = NDArray[np.int64]
TileOrder = Literal["sequence", "owners", "local_last"]
TILE_ORDERS: tuple[str, ...] = get_args(TileOrder)
MAX_SP = 8


def attention_tasks(
    shape: AttentionShape | str,
    *,
    sp: int,
    dtype: str = "bf16",
    order: str = "sequence",
    rank: int = 0,
    machine: Machine | None = None,
    producers: int | None = None,
    both_ways: bool = True,
    publish: Publish = "relaxed",
    flops_per_sm: float | None = None,
    sm_clock_mhz: float | None = None,
    flavour: str = "st.v4",
    limit: int | None = None,
    name: str = "",
) -> TaskSchedule:
    """Return one rank's attention with the fused All-to-All of its output: two roles of 4 warps in ping-pong, without dependencies.

    Parameters
    ----------
    shape : AttentionShape or str
        Or its name.
    sp : int
        Ulysses degree, 1 to 8, dividing the heads. The sequence is padded to a multiple of it. On two GPUs more than 2 are emulated for
        the sender: the tiles of all other owners go to the one peer.
    dtype : {'bf16', 'fp8'}
        Of the operands; the output has two bytes an element in both.
    order : {'sequence', 'owners', 'local_last'}
        sequence: head by head, in the order of the tokens, so that all SMs write to one owner at a time. owners: each tile to another
        owner than the tile before it. local_last: remote tiles in the order of the tokens, the rank's own at the end, where they hide
        the last drain.
    rank : int
        Whose: decides which tiles are local.
    machine : Machine, optional
        Gives SMs, rate and clock where they are not given; default: the GPU of the recordings (`rates.named_machine`).
    producers : int, optional
        At most: each has a tile. Default: all SMs.
    both_ways : bool
    publish : {'relaxed', 'release.gpu', 'release.sys'}
        Nothing is signalled; kept for schedules made of this one.
    flops_per_sm : float, optional
        FLOP/s.
    sm_clock_mhz : float, optional
        At which that rate holds.
    flavour : str
    limit : int, optional
        Only the first so many tiles of each producer: a piece of a long attention for a replay.
    name : str

    Raises
    ------
    UsageError
        Unknown shape, type or order; `sp` does not divide the heads.
    """
    shape = attention_shape(shape) if isinstance(shape, str) else shape
    check_ulysses(shape, sp)
    if order not in TILE_ORDERS:
        raise UsageError(f"unknown order '{order}'", f"use one of: {', '.join(TILE_ORDERS)}")
    if not 0 <= rank < sp:
        raise UsageError(f"rank {rank} of SP {sp}", f"0 to {sp - 1}")
    shard = -(-shape.tokens // sp)
    rows, owner = tiles_of(shape.tokens, shard)
    tile = np.tile(np.arange(rows.size), shape.heads // sp)[_order(np.tile(owner, shape.heads // sp), order, rank)]
    machine = machine or named_machine()
    rate = machine.flops_per_sm(dtype, "attention") if flops_per_sm is None else flops_per_sm
    clock = machine.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
    flops = 4 * TILE * shape.tokens * shape.head_dim
    unit = FLAVOURS[flavour].warp_store_bytes
    stored = -(-rows * shape.head_dim * ELEMENT_BYTES["bf16"] // (4 * unit)) * 4 * unit
    producers = min(machine.sms if producers is None else producers, tile.size)
    producer = np.arange(tile.size) % producers
    turn = np.argsort(producer, kind="stable")
    if limit is not None:
        turn = turn[turn // producers < limit]
    tile, producer = tile[turn], producer[turn]
    nothing = np.full(tile.size, NONE)
    return TaskSchedule(
        producers=producers,
        producer=producer,
        compute_cycles=np.full(tile.size, round(flops / rate * clock * 1e6)),
        bytes=stored[tile],
        remote_bytes=np.where(owner[tile] == rank, 0, stored[tile]),
        waits_for=nothing,
        signals=nothing,
        phases=("attention",),
        publish=publish,
        both_ways=both_ways,
        flavour=flavour,
        name=name or f"{shape.name}-{dtype}-{order}-sp{sp}",
    )


def check_ulysses(shape: AttentionShape, sp: int) -> None:
    """Refuse a degree that a node of 8 GPUs or these heads cannot have."""
    if not 1 <= sp <= MAX_SP:
        raise UsageError(f"SP {sp}: a node has 1 to {MAX_SP} ranks", f"--sp 1 to {MAX_SP}")
    if shape.heads % sp:
        fits = [n for n in range(1, MAX_SP + 1) if shape.heads % n == 0]
        raise UsageError(f"SP {sp} does not divide the {shape.heads} heads of {shape.name}", f"one of {', '.join(map(str, fits))}")


def tiles_of(tokens: int, shard: int) -> tuple[IntArray, IntArray]:
    """Cut each owner's `shard` of the sequence into tiles of at most 128 rows: rows and owner of each, in the order of the tokens.

    A tile ends where its owner's shard ends, so that its rows have one owner.
    """
    starts = np.concatenate([np.arange(at, min(at + shard, tokens), TILE) for at in range(0, tokens, shard)])
    owner = starts // shard
    return np.minimum(np.minimum(starts + TILE, (owner + 1) * shard), tokens) - starts, owner


def _order(owner: IntArray, order: str, rank: int) -> IntArray:
    """Indices of the tiles in the order of execution."""
    if order == "sequence":
        return np.arange(owner.size)
    if order == "local_last":
        return np.argsort(owner == rank, kind="stable")
    # Each owner's tiles keep their order and are spread over the whole: the n-th of N lies at (n + 1/2) / N.
    place = np.empty(owner.size)
    for one in np.unique(owner):
        mine = np.flatnonzero(owner == one)
        place[mine] = (np.arange(mine.size) + 0.5) / mine.size
    return np.lexsort((owner, place))
