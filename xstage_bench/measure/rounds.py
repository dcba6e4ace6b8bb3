"""The one loop behind every measurement: fresh processes, pairs verified before they are timed, a budget, and a list of what failed.

Part of the spread of a measurement lies between processes, so each of them opens a device of its own, with its own allocations. What a
process does is a list of `Work`. One pair's failure is not the others': its work is left out from then on, and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from xstage_bench.errors import PairError
from xstage_bench.io.identity import Kernel, merged
from xstage_bench.schedule.device import Node, kernels_of

Pair = tuple[int, int]


class Opened(Protocol):
    """What the loop itself asks of a device; everything else is between the device and the work."""

    def node(self) -> Node:
        """As `Device.node`."""
        ...

    def close(self) -> None:
        """As `Device.close`."""
        ...


D = TypeVar("D", bound=Opened)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a measurement is: executions done, of how many (null where nobody knows), the pair and the process under way."""

    done: int
    total: int | None
    pair: Pair
    process: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a process does without a break.

    Parameters
    ----------
    pairs : tuple of (int, int)
        Source and destination of what is stored. They fail together, when `run` raises `PairError`.
    run : callable
        Does it, and yields after each portion the executions that were made in it.
    verify : callable, optional
        Called with each pair before `run`.
    """

    pairs: tuple[Pair, ...]
    run: Callable[[], Iterator[int]]
    verify: Callable[[int, int], None] | None = None


@dataclass(slots=True)
class Outcome:
    """How a measurement went. It grows while the loop runs, so that an interrupted one can be described too."""

    failed_pairs: dict[str, str] = field(default_factory=dict)
    executions: int = 0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    complete: bool = False


def name_of(pair: Pair) -> str:
    """Return a pair as documents name it: ``0>1``."""
    return f"{pair[0]}>{pair[1]}"


def run_rounds(
    open_device: Callable[[int], D],
    processes: int,
    work: Callable[[D, int], Iterable[Work]],
    *,
    first: D | None = None,
    total: int | None = None,
    budget_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    after_process: Callable[[], None] | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Do the work of all processes.

    Parameters
    ----------
    open_device : callable
        ``process -> device``; each is closed when its process is done.
    processes : int
    work : callable
        ``(device, process) -> Work``, in the order in which it is done.
    first : device, optional
        An open device to use as process 0; the caller closes it.
    total : int, optional
        Executions expected, for `progress`.
    budget_s : float, optional
        Every work of every process gets an equal share of it; what does not fit is left out, at random, and a note says so.
    progress : callable, optional
        Called after every portion.
    after_process : callable, optional
        Called when a process is done or interrupted: writes what was measured.
    outcome : Outcome, optional
        Filled in and returned; give one to see how far an interrupted measurement came.

    Raises
    ------
    KeyboardInterrupt
        After `after_process` has been called and the device closed.
    """
    outcome = Outcome() if outcome is None else outcome
    started = time.monotonic()
    for process in range(processes):
        device = first if process == 0 and first is not None else open_device(process)
        try:
            todo = list(work(device, process))
            for place, item in enumerate(todo):
                share = None if budget_s is None else started + budget_s * (process + (place + 1) / len(todo)) / processes
                if any(name_of(pair) in outcome.failed_pairs for pair in item.pairs):
                    continue
                if not _do(item, process, share, total, progress, outcome):
                    over = f"the budget of {budget_s:g} s ended some sweeps early, at random"
                    outcome.notes += [over] if over not in outcome.notes else []
        finally:
            outcome.kernels = merged(outcome.kernels, kernels_of(device))
            outcome.wall_s = time.monotonic() - started
            if after_process is not None:
                after_process()
            if device is not first:
                device.close()
    outcome.complete = True
    return outcome


def _do(
    item: Work, process: int, share: float | None, total: int | None, progress: Callable[[Progress], None] | None, outcome: Outcome
) -> bool:
    """Do one work; whether it ended before its share of the budget did."""
    failing = item.pairs
    try:
        if item.verify is not None:
            for pair in item.pairs:
                failing = (pair,)
                item.verify(*pair)
            failing = item.pairs
        for count in item.run():
            outcome.executions += count
            if progress is not None:
                progress(Progress(outcome.executions, total, item.pairs[0] if item.pairs else (0, 0), process))
            if share is not None and time.monotonic() > share:
                return False
    except PairError as error:
        outcome.failed_pairs |= {name_of(pair): error.message for pair in error.pairs or failing}
    return True
