"""Running the event loop: its source as it is, on lists, or compiled by numba, on arrays. Equal numbers, a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xstage_bench.model import backpressure
from xstage_bench.model.jit import compiled, compiled_if, is_kept
from xstage_bench.model.tasks import drain, loop
from xstage_bench.model.tasks.state import State, TaskWork

#: Tasks of all schedules together from which loading numba (about a second) costs less than going without it, and from which compiling
#: does, for it takes some 20 s the first time; a task takes 0.08 ms without.
WORTH_LOADING, WORTH_COMPILING = 10_000, 250_000
_MODULES = (backpressure, drain, loop)
Loop = Callable[[TaskWork, State], None]


def choose_loop(wanted: bool | None, tasks: int) -> Loop | None:
    """Return the compiled event loop, or None for the interpreted one; `wanted` and what is raised as `jit.compiled_if`."""
    worth_it = tasks >= WORTH_COMPILING or (tasks >= WORTH_LOADING and is_kept(_MODULES, "run"))
    return compiled_if(wanted, worth_it, lambda: compiled(_MODULES, "run"))


def run(work: TaskWork, state: State, fast: Loop | None) -> State:
    """Execute all tasks.

    Parameters
    ----------
    work : TaskWork
    state : State
        Fresh.
    fast : callable or None
        From `choose_loop`.
    """
    if fast is not None:
        fast(work, state)
        return state
    lists: Any = State(*(x.tolist() for x in state))
    plain: list[Any] = [x.tolist() if isinstance(x, np.ndarray) else x for x in work]
    loop.run(TaskWork(*plain), lists)
    return State(*(np.array(x) for x in lists))
