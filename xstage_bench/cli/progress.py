"""The progress of a measurement, on stderr: a bar on a terminal, elsewhere a line now and then, so that no log is silent for minutes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xstage_bench.measure.rounds import Progress

_LINE_EVERY_S = 30.0
_QUIET_S = 2.0


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Yield what a measurement reports to."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)

        def report(now: Progress) -> None:
            bar.update(task, description=_where(now), completed=now.done, total=now.total)

        yield report


@contextmanager
def at_work(what: str) -> Iterator[None]:
    """Say on stderr what a verb is at once it has been silent for two seconds, and for how long now and then."""
    done = threading.Event()
    begin = time.monotonic()

    def say() -> None:
        pause = _QUIET_S
        while not done.wait(pause):
            took = "" if pause == _QUIET_S else f", {time.monotonic() - begin:.0f} s so far"
            print(f"{what}{took} ...", file=sys.stderr, flush=True)
            pause = _LINE_EVERY_S

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _lines() -> Callable[[Progress], None]:
    last = time.monotonic()

    def report(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            print(f"{_where(now)}: {now.done}{f' of {now.total}' if now.total else ''} executions", file=sys.stderr, flush=True)

    return report


def _where(now: Progress) -> str:
    source, destination = now.pair
    return f"{source}>{'host' if destination < 0 else destination}, process {now.process + 1}"
