"""Running the event loop: its source as it is, on lists, or compiled by numba, on arrays. Equal numbers, a test says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, cast

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.model.tasks import drain, loop
from xstage_bench.model.tasks.state import State, Work

#: Tasks of all schedules together from which loading numba (about a second) costs less than going without it.
WORTH_LOADING = 10_000


def run(work: Work, state: State, compiled: bool) -> State:
    """Execute all tasks.

    Parameters
    ----------
    work : Work
        Of arrays.
    state : State
        Fresh, of arrays.
    compiled : bool

    Returns
    -------
    State
        Of arrays.
    """
    if compiled:
        compiled_run()(work, state)
        return state
    # Lists: an element of an array costs Python several times as much.
    lists = State(*(x.tolist() for x in state))
    plain: list[Any] = [x.tolist() if isinstance(x, np.ndarray) else x for x in work]
    loop.run(Work(*plain), lists)
    return State(*(np.array(x) for x in lists))


def choose_compiled(wanted: bool | None, tasks: int) -> bool:
    """Whether to run the compiled loop; None: when there is numba, and enough tasks to be worth loading it.

    Raises
    ------
    UsageError
        It is wanted and cannot be had.
    """
    if wanted is False or (wanted is None and tasks < WORTH_LOADING):
        return False
    try:
        compiled_run()
    except (ImportError, RuntimeError) as error:  # no numba, one that is too old for this numpy, or nowhere to keep what it compiles
        if wanted:
            raise UsageError(f"the compiled event loop cannot be had: {error}", "pip install 'xstage-bench[fast]'") from error
        return False
    return True


@cache
def compiled_run() -> Callable[[Work, State], None]:
    """Return `loop.run` compiled. Its functions call each other by name, so each is made anew over the compiled ones before it."""
    from numba import njit

    space: dict[str, Any] = {**vars(drain), **vars(loop)}
    for name in (*drain.COMPILED, *loop.COMPILED):
        function = space[name]
        space[name] = njit(cache=True, nogil=True, error_model="numpy")(FunctionType(function.__code__, space, name))
    return cast("Callable[[Work, State], None]", space["run"])
