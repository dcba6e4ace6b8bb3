"""Whether the compiled event loop can be had, and calling it. numba is loaded by the first call, never before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.node.packed import PackedSchedules

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Bursts from which loading numba (about a second) costs less than numpy's event loop does.
WORTH_LOADING = 20_000
#: Units of one column at most, in the compiled loop.
MOST_UNITS = 256
#: What the event loop needs once, by the names of `fluid.Rows`, in the order in which the compiled one takes them.
SCALARS = ("link", "sm_rate", "buffer", "credit", "turnaround", "gap_overhead", "stall_turnaround", "blur", "evens_out")
_RESULTS = ("issue", "slowest", "start", "end", "earliest", "latest", "left", "drained")


def choose_loop(wanted: bool | None, bursts: int, units: int) -> Callable[..., int] | None:
    """Return the compiled event loop, or None for numpy's.

    Parameters
    ----------
    wanted : bool or None
        None: when this many bursts are worth it. Not by what is loaded already: the last digits must not hang on what ran before.
    bursts, units : int
        Of all schedules, and of the widest column.

    Raises
    ------
    UsageError
        It is wanted and cannot be had.
    """
    if units > MOST_UNITS or wanted is False or (wanted is None and bursts < WORTH_LOADING):
        return None
    try:
        from xstage_bench.model.node.fast import solve_packed
    except (ImportError, RuntimeError) as error:  # no numba, one that is too old for this numpy, or nowhere to keep what it compiles
        if wanted:
            raise UsageError(f"the compiled event loop cannot be had: {error}", "pip install 'xstage-bench[fast]'") from error
        return None
    return cast("Callable[..., int]", solve_packed)


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
    scalars: dict[str, float],
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
    scalars : dict of str to float
        One for each of `SCALARS`.

    Returns
    -------
    dict of str to ndarray
        Per burst, cycles and bytes: mean and slowest issue, mean start, latest end, spread of starts, bytes left, last byte drained.

    Raises
    ------
    DataError
        A rate is not positive: nothing would ever end.
    """
    if not (scalars["link"] > 0 and scalars["sm_rate"] > 0):
        raise DataError("a node model whose link or SM drains nothing predicts nothing", "fit again: xstage fit")
    out = np.empty((free.size, len(_RESULTS)))
    loop(
        packed.first,
        packed.rule,
        packed.producers,
        packed.store_bytes,
        packed.bytes,
        free,
        packed.gap_cycles,
        deadline,
        unheld,
        units,
        classes,
        np.array([scalars[name] for name in SCALARS]),
        out,
    )
    found = dict(zip(_RESULTS, out.T, strict=True))
    found["spread"] = found["latest"] - found["earliest"]
    return found
