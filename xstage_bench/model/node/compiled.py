"""Whether the compiled event loop can be had, and calling it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model import backpressure
from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.jit import compiled, compiled_if
from xstage_bench.model.node import loop as event_loop
from xstage_bench.model.node.loop import MOST_UNITS, Constants
from xstage_bench.model.node.packed import PackedSchedules

#: Bursts from which loading numba (about a second) costs less than numpy's event loop does.
WORTH_LOADING = 20_000
_RESULTS = ("issue", "slowest", "start", "end", "earliest", "latest", "left", "drained")


def choose_loop(wanted: bool | None, bursts: int, units: int) -> Callable[..., int] | None:
    """Return the compiled event loop, or None for numpy's; `wanted` and what is raised as `jit.compiled_if`.

    Parameters
    ----------
    wanted : bool or None
    bursts, units : int
        Of all schedules, and of the widest column.
    """
    if units > MOST_UNITS:
        return None
    return compiled_if(wanted, bursts >= WORTH_LOADING, lambda: compiled((backpressure, event_loop), "solve", fastmath=True))


@cache
def can_compile() -> bool:
    """Whether the compiled event loop can be had; loads it. For who predicts few bursts some hundred times."""
    return choose_loop(None, WORTH_LOADING, 1) is not None


def solve_compiled(
    loop: Callable[..., int],
    packed: PackedSchedules,
    free: FloatArray,
    deadline: FloatArray,
    unheld: FloatArray,
    units: IntArray,
    classes: FloatArray,
    constants: Constants,
) -> dict[str, FloatArray]:
    """Run all schedules, one after the other, on one core.

    Parameters
    ----------
    loop : callable
        From `choose_loop`.
    packed : PackedSchedules
    free, deadline, unheld : ndarray, shape (bursts,)
        T0 and start time of each burst, SM cycles; its last bytes whose room is not waited for.
    units, classes : ndarray
        From `classes.unit_table`.
    constants : Constants

    Returns
    -------
    dict of str to ndarray
        Per burst, cycles and bytes: mean and slowest issue, mean start, latest end, spread of starts, bytes left, last byte drained.

    Raises
    ------
    DataError
        A rate is not positive: nothing would ever end.
    """
    if not (constants.link > 0 and constants.sm_rate > 0):
        raise DataError("a node model whose link or SM drains nothing predicts nothing", "fit again: xstage fit")
    out = np.empty((free.size, len(_RESULTS)))
    bursts = np.stack([packed.bytes, free, packed.gap_cycles, deadline, unheld], axis=1)
    loop(packed.first, packed.rule, packed.producers, packed.store_bytes, bursts, units, classes, constants, out)
    found = dict(zip(_RESULTS, out.T, strict=True))
    found["spread"] = found["latest"] - found["earliest"]
    return found
