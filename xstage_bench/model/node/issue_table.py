"""T0 as it was measured: what bursts of one SM cost when nothing behind it is full, for each warp count and burst length.

The instrument repeats to a few cycles, and what it costs differs from compiler to compiler and from GPU to GPU; so there is no law with
constants of one of them, but a table of each run's own (probe ``issue``). Between its entries it is interpolated; a burst that is longer
than any of them goes on at the pace of one warp's loop or of the SM's port, whichever is slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.arrays import BoolArray, FloatArray

#: A warp that goes on slower than this many times its own pace is held up by the port.
_OWN_PACE = 1.2
Cells = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueTable:
    """Issue time of bursts of one SM, SM cycles, from the first warp's start until the SM has taken the last store.

    Parameters
    ----------
    warps, stores : tuple of int
        Warps of the SM, and warp-stores of each warp, ascending: the axes of the cells.
    fresh, following : tuple of tuple of float or None
        Of the first burst after an aligned start, and of later ones; a row for each warp count, null where nothing was measured.
    half_width : tuple of tuple of float or None
        Of the 95 % interval of `fresh`, between processes; null where there is one process only.
    store_cycles, port_cycles : float
        One warp's interval between its own stores, and the SM's between the stores of many warps: how longer bursts go on.
    group : int
        Stores of one turn of the loop: a turn that is not full costs nearly as much as a full one.
    """

    warps: tuple[int, ...]
    stores: tuple[int, ...]
    fresh: Cells
    following: Cells
    half_width: Cells
    store_cycles: float
    port_cycles: float
    group: int

    def numbers(self) -> int:
        """Count the measured cells."""
        return sum(v is not None for cells in (self.fresh, self.following) for row in cells for v in row)


def table_cycles(table: IssueTable, warps: NDArray[Any], stores: NDArray[Any], fresh: BoolArray) -> FloatArray:
    """Return T0 of bursts; arrays of one shape. Warp counts beyond the table go on at the port's pace."""
    dense, slope = _dense(table)
    most, longest = dense.shape[1] - 1, dense.shape[2] - 1
    w, n = warps.astype(np.int64), stores.astype(np.int64)
    inside, within = np.minimum(w, most), np.minimum(n, longest)
    more_warps = table.port_cycles * (w - inside) * n
    return np.asarray(dense[np.where(fresh, 0, 1), inside, within] + (n - within) * slope[inside] + more_warps)


@lru_cache(maxsize=64)
def _dense(table: IssueTable) -> tuple[FloatArray, FloatArray]:
    """Return every cell, shape (2, warps + 1, stores + 1), and how much each further store of each warp costs, shape (warps + 1,)."""
    longest = max(table.stores)
    grid = np.arange(table.warps[-1] + 1)
    slope = np.maximum(table.store_cycles, table.port_cycles * grid)
    known = np.array(table.warps, dtype=np.float64)
    out = np.empty((2, grid.size, longest + 1))
    # Where later bursts were not measured they cost what first ones do: the difference is a few cycles.
    later = [
        tuple(first if own is None else own for own, first in zip(*both, strict=True))
        for both in zip(table.following, table.fresh, strict=True)
    ]
    for kind, cells in enumerate((table.fresh, later)):
        stacked = np.array([_row(table, row, longest, float(slope[w])) for w, row in zip(table.warps, cells, strict=True)])
        for n in range(longest + 1):
            out[kind, :, n] = np.interp(grid, known, stacked[:, n])
    return out, slope


def _row(table: IssueTable, row: tuple[float | None, ...], longest: int, slope: float) -> FloatArray:
    """Return one warp count's issue time for 0 to `longest` stores of each warp.

    Whole turns of the loop are interpolated between whole turns, and a turn that is not full costs less by what was measured of such turns;
    where the SM's port is what holds the warps up, each store costs the same.
    """
    known = {n: v for n, v in zip(table.stores, row, strict=True) if v is not None}
    group = table.group
    whole = sorted(n for n in known if n and n % group == 0)
    out = np.empty(longest + 1)
    saved = [0.0] * group
    for r in range(1, group):
        less = [known[n - n % group + group] - v for n, v in known.items() if n % group == r and n - r + group in known]
        saved[r] = float(np.median(less)) if less else 0.0
    last = max(known)
    for n in range(longest + 1):
        full = -(-n // group) * group
        if n in known:
            out[n] = known[n]
        elif n > last:
            out[n] = known[last] + (n - last) * slope
        else:
            low, high = max((m for m in known if m < n), default=0), min(m for m in known if m > n)
            by_turns = len(whole) >= 2 and whole[0] <= full <= whole[-1]
            if by_turns and known[high] - known.get(low, 0.0) <= _OWN_PACE * table.store_cycles * (high - low):
                out[n] = float(np.interp(full, whole, [known[m] for m in whole])) - saved[n % group]
            else:
                out[n] = float(np.interp(n, sorted(known), [known[m] for m in sorted(known)]))
    return out
