"""Expert-parallel MoE as tasks: Linear-1 tiles compute, Linear-2 tiles compute and send their rows to the tokens' owners.

The two GEMMs of a rank's experts are cut into output tiles of 128 x 128. A block of 128 rows of one expert has ``2 inter / 128`` Linear-1
tiles, which signal it, and ``hidden / 128`` Linear-2 tiles, which may wait for it. The two kinds are dealt to the producers separately,
each round-robin, and every producer then merges its own two lists: a single mixed list dealt round-robin gives some SMs only long tiles
and others only short ones whenever its period divides their number. The deal is the same in every order, so order is all that differs.
"""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import NONE, Publish, TaskSchedule
from xstage_bench.workloads.deal import deal_tiles
from xstage_bench.workloads.rates import ELEMENT_BYTES, Machine, named_machine
from xstage_bench.workloads.routing import rows_per_expert
from xstage_bench.workloads.shapes import TILE, MoEShape, moe_shape

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Order = Literal["serial", "wave", "interleaved"]
ORDERS: tuple[str, ...] = get_args(Order)
Dependencies = Literal["block", "wave", "none"]
DEPENDENCIES: tuple[str, ...] = get_args(Dependencies)
PHASES = ("linear1", "linear2")
#: In Linear-1 tiles per producer; one to two was best nearly everywhere in the skeleton's measurements.
DEFAULT_LEAD = 1.0
WAVE_FILL = 2
MAX_EP = 8


class TileOptions(TypedDict, total=False):
    """What `tasks_of_blocks` takes beside the blocks; every key has a default there."""

    dtype: str
    order: str
    lead: float | None
    dependencies: str
    machine: Machine | None
    producers: int | None
    remote_share: float
    both_ways: bool
    publish: Publish
    flops_per_sm: float | None
    row_bytes: int | None
    read_gb_per_s: float | None
    sm_clock_mhz: float | None
    flavour: str
    name: str


def moe_tasks(
    shape: MoEShape | str,
    *,
    tokens_per_rank: int,
    ep: int,
    experts_per_wave: int | None = None,
    routing: str = "balanced",
    seed: int = 0,
    rank: int = 0,
    **tiles: Unpack[TileOptions],
) -> TaskSchedule:
    """Return what one rank's GPU does in an expert-parallel MoE layer.

    Parameters
    ----------
    shape : MoEShape or str
        Or its name.
    tokens_per_rank : int
        Of each of the `ep` ranks; the tokens of all ranks are routed.
    ep : int
        Ranks of the layer, 1 to 8, dividing the experts. On two GPUs more than 2 are emulated for the sender: `remote_share` of the bytes
        goes to the one peer.
    experts_per_wave : int, optional
        Consecutive local experts of one wave; default: the fewest whose Linear-1 tiles fill the producers twice, rounded up to a divisor
        of the local experts (the rule of the public Expert-Wave kernel, which allows for uneven experts).
    routing : {'balanced', 'skewed'}
    seed : int
    rank : int
        Whose experts.
    **tiles
        See `tasks_of_blocks`; `remote_share` is ``(ep - 1) / ep`` by default.

    Raises
    ------
    UsageError
        Unknown shape, type, order or routing; `ep` does not divide the experts; nothing is routed to this rank.
    """
    shape = moe_shape(shape) if isinstance(shape, str) else shape
    check_expert_parallel(shape, ep)
    if not 0 <= rank < ep:
        raise UsageError(f"rank {rank} of EP {ep}", f"0 to {ep - 1}")
    local = shape.experts // ep
    rows = rows_per_expert(shape.experts, shape.top_k, tokens_per_rank * ep, routing, seed)[rank * local : (rank + 1) * local]
    if not rows.any():
        raise UsageError(f"no row of {tokens_per_rank} tokens a rank goes to rank {rank}", "more tokens, or another seed")
    if experts_per_wave is None:
        experts_per_wave = default_experts_per_wave(
            shape, float(rows.mean()), local, tiles.get("producers") or (tiles.get("machine") or named_machine()).sms
        )
    if not 1 <= experts_per_wave <= local:
        raise UsageError(f"experts_per_wave is {experts_per_wave}", f"1 to {local}, the experts of one rank")
    block_rows, expert = blocks_of(rows)
    tiles.setdefault("remote_share", (ep - 1) / ep)
    tiles.setdefault("name", f"{shape.name}-{tiles.get('dtype', 'bf16')}-{tiles.get('order', 'wave')}-ep{ep}-{tokens_per_rank}")
    return tasks_of_blocks(shape, block_rows, expert // experts_per_wave, **tiles)


def check_expert_parallel(shape: MoEShape, ep: int) -> None:
    """Refuse a degree that a node of 8 GPUs or this layer cannot have."""
    if not 1 <= ep <= MAX_EP:
        raise UsageError(f"EP {ep}: a node has 1 to {MAX_EP} ranks", f"--ep 1 to {MAX_EP}")
    if shape.experts % ep:
        fits = [n for n in range(1, MAX_EP + 1) if shape.experts % n == 0]
        raise UsageError(f"EP {ep} does not divide the {shape.experts} experts of {shape.name}", f"one of {', '.join(map(str, fits))}")


def default_experts_per_wave(shape: MoEShape, rows: float, local: int, producers: int) -> int:
    """Return the fewest experts, dividing `local`, whose Linear-1 tiles fill `producers` SMs `WAVE_FILL` times at `rows` rows each."""
    tiles = max(1, int(np.ceil(rows / TILE))) * shape.linear1_tiles
    fewest = min(local, int(np.ceil(WAVE_FILL * producers / tiles)))
    return next(n for n in range(fewest, local + 1) if local % n == 0)


def blocks_of(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Cut each expert's rows into blocks of at most 128: rows and expert of each block, in order."""
    count = -(-rows // TILE)
    expert = np.repeat(np.arange(rows.size), count)
    index = np.arange(expert.size) - np.repeat(np.cumsum(count) - count, count)
    return np.minimum(TILE, rows[expert] - index * TILE), expert


def even_blocks(waves: int, blocks_per_wave: int = 33) -> tuple[IntArray, IntArray]:
    """Full blocks in equal waves, as rows and wave of each; a multiple of 33 a wave deals evenly to 132 producers for every shape here."""
    count = waves * blocks_per_wave
    return np.full(count, TILE, dtype=np.int64), np.repeat(np.arange(waves), blocks_per_wave)


def tasks_of_blocks(
    shape: MoEShape | str,
    rows: IntArray,
    wave: IntArray,
    *,
    dtype: str = "bf16",
    order: str = "wave",
    lead: float | None = None,
    dependencies: str = "block",
    machine: Machine | None = None,
    producers: int | None = None,
    remote_share: float = 7 / 8,
    both_ways: bool = True,
    publish: Publish = "release.gpu",
    flops_per_sm: float | None = None,
    row_bytes: int | None = None,
    read_gb_per_s: float | None = None,
    sm_clock_mhz: float | None = None,
    flavour: str = "st.v4",
    name: str = "",
) -> TaskSchedule:
    """Return the tiles of these blocks, dealt and ordered: two roles of 4 warps in ping-pong.

    Parameters
    ----------
    shape : MoEShape or str
    rows, wave : ndarray of int, shape (blocks,)
        Rows of each block, 1 to 128, and its wave, ascending from 0. A block with fewer rows computes as a full one and stores less.
    dtype : {'bf16', 'fp8'}
        Of the operands: decides the rate.
    order : {'serial', 'wave', 'interleaved'}
        serial: all Linear-1 tiles, then all Linear-2 tiles. wave: the same wave by wave. interleaved: Linear-2 tiles in equal distances
        between the Linear-1 tiles, `lead` behind their own.
    lead : float, optional
        How far Linear-1 is ahead of the interleaved Linear-2, in Linear-1 tiles per producer; with ``dependencies='wave'`` in waves, at
        least 1. Default 1.
    dependencies : {'block', 'wave', 'none'}
        What a Linear-2 tile waits for: its own block's Linear-1 tiles, those of its whole wave, nothing.
    machine : Machine, optional
        Gives SMs, rate and clock where they are not given; default: the GPU of the recordings (`rates.named_machine`).
    producers : int, optional
        At most: each has a tile. Default: all SMs.
    remote_share : float
        Of the stored bytes, rounded to whole warp-stores of a tile.
    both_ways : bool
    publish : {'relaxed', 'release.gpu', 'release.sys'}
        How a Linear-1 tile signals.
    flops_per_sm : float, optional
        FLOP/s.
    row_bytes : int, optional
        Of one combined row of `hidden` elements; default 2 each.
    read_gb_per_s : float, optional
        Of local memory, all producers together: a tile takes no less time than its weights to arrive. For decoding, where each expert has
        one block and its weights are read once.
    sm_clock_mhz : float, optional
        At which that rate holds: turns seconds into cycles.
    flavour : str
    name : str
    """
    shape = moe_shape(shape) if isinstance(shape, str) else shape
    _check_words(order, dependencies, remote_share)
    ahead = DEFAULT_LEAD if lead is None else lead
    if ahead < (1.0 if dependencies == "wave" else 0.0):
        raise UsageError(f"a lead of {ahead:g} with dependencies '{dependencies}'", "0 or more; at least 1 wave where waves depend")
    machine = machine or named_machine()
    rate = machine.flops_per_sm(dtype) if flops_per_sm is None else flops_per_sm
    clock = machine.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
    producers = min(machine.sms if producers is None else producers, rows.size * (shape.linear1_tiles + shape.linear2_tiles))
    tiles = deal_tiles(wave, shape.linear1_tiles, shape.linear2_tiles, producers, order, ahead, dependencies)
    read = np.inf if read_gb_per_s is None else read_gb_per_s * 1e9 / producers
    seconds = [max(2 * TILE * TILE * k / rate, TILE * k * ELEMENT_BYTES[dtype] / read) for k in (shape.hidden, shape.inter)]
    cycles = [round(s * clock * 1e6) for s in seconds]
    stored = np.where(tiles.second, _tile_bytes(shape, rows, row_bytes, flavour)[tiles.block], 0)
    unit = FLAVOURS[flavour].warp_store_bytes
    waves = np.zeros_like(wave) if order == "serial" else wave
    event = {"block": tiles.block, "wave": waves[tiles.block], "none": np.full(tiles.block.size, NONE)}[dependencies]
    return TaskSchedule(
        producers=producers,
        producer=tiles.producer,
        compute_cycles=np.where(tiles.second, cycles[1], cycles[0]),
        bytes=stored,
        remote_bytes=np.rint(stored * remote_share / unit).astype(np.int64) * unit,
        waits_for=np.where(tiles.second, event, NONE),
        signals=np.where(tiles.second, NONE, event),
        phase=tiles.second.astype(np.int64),
        phases=PHASES,
        publish=publish,
        both_ways=both_ways,
        flavour=flavour,
        name=name,
    )


def _check_words(order: str, dependencies: str, remote_share: float) -> None:
    if order not in ORDERS:
        raise UsageError(f"unknown order '{order}'", f"use one of: {', '.join(ORDERS)}")
    if dependencies not in DEPENDENCIES:
        raise UsageError(f"unknown dependencies '{dependencies}'", f"use one of: {', '.join(DEPENDENCIES)}")
    if not 0 <= remote_share <= 1:
        raise UsageError(f"remote_share is {remote_share}", "0 to 1")


def _tile_bytes(shape: MoEShape, rows: IntArray, row_bytes: int | None, flavour: str) -> IntArray:
    """Bytes that a Linear-2 tile of each block stores: whole warp-stores of all 4 warps, so a last block's rows are rounded up."""
    segment = (2 * shape.hidden if row_bytes is None else row_bytes) * TILE / shape.hidden
    unit = 4 * FLAVOURS[flavour].warp_store_bytes
    return np.ceil(rows * segment / unit).astype(np.int64) * unit
