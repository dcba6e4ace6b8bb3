"""Running the event loop: its source as it is, on lists, or compiled by numba, on arrays. Equal numbers, a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xstage_bench.model import backpressure
from xstage_bench.model.jit import compiled, compiled_if
from xstage_bench.model.tasks import drain, loop
from xstage_bench.model.tasks.state import State, TaskWork

#: Tasks of all schedules together from which loading numba (about a second) costs less than going without it.
WORTH_LOADING = 10_000
Loop = Callable[[TaskWork, State], None]


def choose_loop(wanted: bool | None, tasks: int) -> Loop | None:
    """Return the compiled event loop, or None for the interpreted one; `wanted` and what is raised as `jit.compiled_if`."""
    return compiled_if(wanted, tasks >= WORTH_LOADING, lambda: compiled((backpressure, drain, loop), "run"))


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
