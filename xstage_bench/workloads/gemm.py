"""A GEMM whose tiles are stored where they are needed: projections before an All-to-All, partial sums, logits for another model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads.rates import ELEMENT_BYTES, Machine
from xstage_bench.workloads.shapes import TILE

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def tile_rows(rows: int, group: int = TILE) -> IntArray:
    """Rows of each block of at most `group`."""
    return np.minimum(group, rows - np.arange(0, rows, group))


def rows_of_others(tokens: int, own: int, group: int = TILE) -> IntArray:
    """Rows of each block of `group` tokens that are not among the first `own`, which stay here."""
    return tile_rows(tokens, group) - np.clip(own - np.arange(0, tokens, group), 0, tile_rows(tokens, group))


def gemm_tile_ns(machine: Machine, k: int, dtype: str, read_gb_per_s: float | None = None, tiles: int | None = None) -> float:
    """Time of one tile of 128 x 128 x k, ns.

    Parameters
    ----------
    machine : Machine
    k : int
    dtype : {'bf16', 'fp8'}
    read_gb_per_s : float, optional
        A tile takes no less than its weights to arrive at this rate, which all that run together share.
    tiles : int, optional
        Of the whole GEMM: with fewer of them than SMs, so many run together.
    """
    compute = 2 * TILE * TILE * k / machine.flops_per_sm(dtype)
    together = machine.sms if tiles is None else min(tiles, machine.sms)
    read = 0.0 if read_gb_per_s is None else TILE * k * ELEMENT_BYTES[dtype] * together / (read_gb_per_s * 1e9)
    return max(compute, read) * 1e9


def tile_tasks(
    machine: Machine,
    tile_ns: FloatArray,
    stored: FloatArray,
    remote: FloatArray,
    *,
    phase: str,
    both_ways: bool = True,
    flavour: str = "st.v4",
    name: str = "",
) -> TaskSchedule:
    """Return independent tiles, dealt round-robin to all SMs, as far as each has a tile: two roles of 4 warps in ping-pong.

    Parameters
    ----------
    machine : Machine
    tile_ns : ndarray, shape (tiles,)
        Compute time of each, in the order of execution.
    stored, remote : ndarray, shape (tiles,)
        Bytes that each stores, and those of them that leave the GPU: rounded up to whole warp-stores of all warps, and to warp-stores.
    phase : str
        What the tiles are called.
    both_ways : bool
    flavour : str
    name : str
    """
    unit = FLAVOURS[flavour].warp_store_bytes
    whole = np.ceil(stored / (4 * unit)).astype(np.int64) * 4 * unit
    away = np.minimum(np.ceil(remote / unit).astype(np.int64) * unit, whole)
    producers = min(machine.sms, whole.size)
    producer = np.arange(whole.size) % producers
    turn = np.argsort(producer, kind="stable")
    nothing = np.full(whole.size, NONE)
    return TaskSchedule(
        producers=producers,
        producer=producer[turn],
        compute_cycles=np.rint(tile_ns * machine.sm_clock_mhz * 1e-3).astype(np.int64)[turn],
        bytes=whole[turn],
        remote_bytes=away[turn],
        waits_for=nothing,
        signals=nothing,
        phases=(phase,),
        publish="relaxed",
        both_ways=both_ways,
        flavour=flavour,
        name=name,
    )
