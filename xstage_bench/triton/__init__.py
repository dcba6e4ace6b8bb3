"""Stamps in a Triton kernel: `begin` and `burst_end` around its stores, `stamp_buffer` for the launch (docs/own-kernel.md).

All warps of a program meet before a clock is read, and its stores have been taken by the SM before the burst ends. With ``ON`` false a
kernel is compiled as if neither function were called.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Triton takes no annotation but its own.
from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid

from xstage_bench.measure.stamps.layout import FILE, MAGIC, NO_EVENT, SLOT, STAMP, VERSION, buffer_bytes

if TYPE_CHECKING:
    import torch

#: 32-bit words of the parts of the buffer, as constants of the compiler.
_FILE, _SLOT, _STAMP = (tl.constexpr(part.itemsize // 4) for part in (FILE, SLOT, STAMP))
_MAGIC, _VERSION, _BURST = tl.constexpr(MAGIC), tl.constexpr(VERSION), tl.constexpr(1 << 24 | NO_EVENT)


def stamp_buffer(programs: int, warps: int, records: int) -> torch.Tensor:
    """Return a zeroed buffer of 32-bit words on the current GPU; after the launch ``buffer.cpu().numpy().tofile(FILE)``.

    Parameters
    ----------
    programs : int
        Of the launch.
    warps : int
        ``num_warps``.
    records : int
        Bursts of a program.
    """
    import torch

    return torch.zeros(buffer_bytes(programs * warps, records) // 4, dtype=torch.int32, device="cuda")


@triton.jit
def begin(ON: tl.constexpr = True):
    """Return the SM's clock and the timer: once when the program begins, and before each burst."""
    if ON:
        tl.debug_barrier()
        clock = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
        return clock, globaltimer()
    else:  # noqa: RET505 - a branch of the compiler
        return tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)


@triton.jit
def burst_end(buffer, origin, begun, index, bytes, RECORDS: tl.constexpr, WARPS: tl.constexpr, ON: tl.constexpr = True):
    """End the burst that `begun` opened.

    Parameters
    ----------
    buffer
        As of `stamp_buffer`.
    origin
        What `begin` returned when the program began.
    begun
        What it returned before these stores.
    index
        Number of this burst in its program, from 0.
    bytes
        That the program has stored to the peer.
    RECORDS, WARPS, ON
        Constants: as of `stamp_buffer`, ``num_warps``, and whether to stamp.
    """
    if ON:
        tl.inline_asm_elementwise("fence.acq_rel.cta; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        clock, timer = begin()
        block = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
        slots = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) * WARPS
        warp = tl.arange(0, WARPS)
        slot = block * WARPS + warp
        if (block == 0) & (index == 0):
            tl.store(buffer, _MAGIC)
            tl.store(buffer + 1, _VERSION)
            tl.store(buffer + 2, slots)
            tl.store(buffer + 3, RECORDS)
        head = buffer + _FILE + slot * _SLOT
        tl.store(head, smid() + warp * 0)
        tl.store(head + 1, block + warp * 0)
        tl.store(head + 2, warp)
        tl.store(head + 3, index + 1 + warp * 0)
        times = (head + 4).to(tl.pointer_type(tl.int64))
        tl.store(times, origin[0] + warp * 0)
        tl.store(times + 1, origin[1] + warp * 0)
        tl.store(times + 2, clock + warp * 0)
        tl.store(times + 3, timer + warp * 0)
        at = buffer + _FILE + slots * _SLOT + (slot.to(tl.int64) * RECORDS + index) * _STAMP
        fits = warp < tl.where(index < RECORDS, WARPS, 0)
        tl.store(at, (begun[0] - origin[0]).to(tl.int32) + warp * 0, mask=fits)
        tl.store(at + 1, (clock - origin[0]).to(tl.int32) + warp * 0, mask=fits)
        tl.store(at + 2, bytes // WARPS + warp * 0, mask=fits)
        tl.store(at + 3, _BURST + warp * 0, mask=fits)
