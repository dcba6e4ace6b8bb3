"""The time line inside a kernel that Triton's Proton writes, as stamps: scopes of warps become bursts and compute.

Proton names a track ``KERNEL CoreN CTAm [...]`` and ``warp W (line L)``. Its times are cycles of the SM, thousands of them to the trace's
unit, and those of each CTA begin at 0: they can be compared on one SM only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError, UsageError
from xstage_bench.measure.profiles.slices import TraceSlice
from xstage_bench.measure.stamps.layout import KINDS, Stamps

IntArray = NDArray[np.int64]
_TRACK = re.compile(r"^(.*) Core(\d{1,6}) CTA(\d{1,9})\b")
_WARP = re.compile(r"^warp (\d{1,6})\b")
#: What scopes are called of which nobody said what they are.
_STORES, _WORKS = ("store", "epilogue", "burst", "send", "push"), ("compute", "mma", "gemm", "dot", "main", "loop")
_CYCLES_OF_UNIT = 1e3


def is_proton(slices: Sequence[TraceSlice]) -> bool:
    """Whether a trace is a time line inside a kernel."""
    return bool(_TRACK.match(str(slices[0].pid))) and bool(_WARP.match(str(slices[0].tid)))


def stamps_of(
    slices: Sequence[TraceSlice],
    path: Path,
    *,
    sm_clock_mhz: float,
    tile_bytes: int,
    unit_bytes: int,
    store: str | None = None,
    compute: str | None = None,
    kernel: str | None = None,
) -> Stamps:
    """Read a Proton time line as stamps.

    Parameters
    ----------
    slices : sequence of TraceSlice
    path : Path
        For messages.
    sm_clock_mhz : float
        At which the kernel ran; the trace does not say.
    tile_bytes : int
        That one burst of an SM stores, all its warps together.
    unit_bytes : int
        Of one warp-store: what a warp stores is rounded up to whole ones.
    store, compute : str, optional
        Names of the scopes; default: those whose names say so.
    kernel : str, optional
        Default: the only one.

    Raises
    ------
    UsageError
        Several kernels, or no scope of these names.
    DataError
        A track is not Proton's.
    """
    found = [(_track(s, path), s) for s in slices]
    names = list(dict.fromkeys(track[0] for track, _ in found))
    chosen = [n for n in names if kernel is None or kernel in n]
    if len(chosen) != 1:
        raise UsageError(f"{path} has {len(chosen)} kernels of {len(names)}: {', '.join(n[:60] for n in names[:6])}", "--kernel NAME")
    mine = [(track, s) for track, s in found if track[0] == chosen[0]]
    kinds = _kinds(list(dict.fromkeys(s.name for _, s in mine)), store, compute, path)
    mine = sorted(((t, s) for t, s in mine if s.name in kinds), key=lambda x: (*x[0][1:], x[1].ts))
    sm, block, warp = (np.array([t[i] for t, _ in mine], dtype=np.int64) for i in (1, 2, 3))
    kind = np.array([kinds[s.name] for _, s in mine], dtype=np.int64)
    start = np.rint(np.array([s.ts for _, s in mine]) * _CYCLES_OF_UNIT).astype(np.int64)
    end = start + np.rint(np.array([s.dur for _, s in mine]) * _CYCLES_OF_UNIT).astype(np.int64)
    start, end = _in_turn(sm, block, start, end)
    warps = len(set(warp[block == block[0]].tolist()))
    same = (block[1:] == block[:-1]) & (warp[1:] == warp[:-1])
    if (same & (start[1:] < end[:-1])).any():
        raise DataError(f"{path}: scopes of one warp overlap", "name one scope that stores and one that computes, neither inside the other")
    burst = -(-tile_bytes // (warps * unit_bytes)) * unit_bytes
    zero, cycle_ns = int(start.min()), np.float64(1e3 / sm_clock_mhz)
    return Stamps(
        smid=sm, block=block, warp=warp, kind=kind, event=np.full(kind.size, -1),
        bytes=np.where(kind == KINDS.index("burst") + 1, burst, 0), start_clock=start - zero, end_clock=end - zero,
        start_ns=(start - zero).astype(np.float64) * cycle_ns, end_ns=(end - zero).astype(np.float64) * cycle_ns,
        sm_clock_mhz=sm_clock_mhz,
    )  # fmt: skip


def _track(s: TraceSlice, path: Path) -> tuple[str, int, int, int]:
    process, thread = _TRACK.match(str(s.pid)), _WARP.match(str(s.tid))
    if process is None or thread is None:
        raise DataError(f"{path}: track '{s.pid} {s.tid}' is none of Proton's", "KERNEL CoreN CTAm, warp W: proton.finalize writes it")
    return process[1], int(process[2]), int(process[3]), int(thread[1])


def _kinds(names: list[str], store: str | None, compute: str | None, path: Path) -> dict[str, int]:
    """Return what each scope is; one that is neither stores nor compute is left out."""
    kinds = {n: KINDS.index("compute") + 1 for n in names if (n == compute if compute else any(w in n.lower() for w in _WORKS))}
    kinds |= {n: KINDS.index("burst") + 1 for n in names if (n == store if store else any(w in n.lower() for w in _STORES))}
    if KINDS.index("burst") + 1 not in kinds.values():
        raise UsageError(f"{path} has no scope {store or 'of stores'}: {', '.join(names[:8])}", "--store-scope NAME")
    return kinds


def _in_turn(sm: IntArray, block: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Put the CTAs of an SM one after the other, as their times all begin at 0."""
    start, end = start.copy(), end.copy()
    for one in np.unique(sm):
        free = None
        for b in np.unique(block[sm == one]):
            these = (sm == one) & (block == b)
            if free is not None and start[these].min() < free:
                moved = free - start[these].min()
                start[these] += moved
                end[these] += moved
            free = end[these].max()
    return start, end
