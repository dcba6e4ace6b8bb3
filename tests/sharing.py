"""Work that several test processes need the result of: each begins with what no other has begun, and waits for the rest."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from pathlib import Path


def share(folder: Path, parts: Mapping[str, Callable[[], None]]) -> None:
    """Call every part: one that another process is at waits for it, and must then find its result and be quick."""
    folder.mkdir(parents=True, exist_ok=True)
    for wait in (False, True):
        for name, work in parts.items():
            with (folder / f"{name}.lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    continue
                work()
