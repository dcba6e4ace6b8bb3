"""The progress of a measurement, on stderr: a bar on a terminal, elsewhere a line every ten seconds, so that no log is silent."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xstage_bench.cli.fitted_text import columns_of, wrapped

if TYPE_CHECKING:
    from xstage_bench.measure.rounds import Progress

_LINE_EVERY_S = 10.0
_QUIET_S = 2.0


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Yield what a measurement reports to, and what is told when another stage begins."""
    if not sys.stderr.isatty():
        doing = ["opening"]
        with _heartbeat(lambda: doing[0], _LINE_EVERY_S):

            def line(now: Progress) -> None:
                doing[0] = f"{_where(now)}: {now.done}{f' of {now.total}' if now.total else ''} executions"

            yield line, lambda stage: doing.__setitem__(0, stage)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)

        def report(now: Progress) -> None:
            bar.update(task, description=_where(now), completed=now.done, total=now.total)

        yield report, lambda stage: bar.update(task, description=stage)


@contextmanager
def at_work(what: str) -> Iterator[None]:
    """Say on stderr what a verb is at once it has been silent for two seconds, and for how long now and then."""
    with _heartbeat(lambda: what, _QUIET_S):
        yield


@contextmanager
def _heartbeat(doing: Callable[[], str], quiet_s: float) -> Iterator[None]:
    done = threading.Event()
    begin = time.monotonic()

    def say() -> None:
        pause = quiet_s
        while not done.wait(pause):
            text = f"{doing()}, {time.monotonic() - begin:.0f} s so far ..."
            print(wrapped(text, columns_of(sys.stderr)), file=sys.stderr, flush=True)
            pause = _LINE_EVERY_S

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _where(now: Progress) -> str:
    source, destination = now.pair
    return f"{source}>{'host' if destination < 0 else destination}, process {now.process + 1}"
