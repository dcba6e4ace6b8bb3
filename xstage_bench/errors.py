"""Errors that a user can cause, each with the exit code that a script sees.

Every error says what went wrong, where, and what to type next. Code raises these; only ``cli`` turns them into
an exit status, so that no traceback reaches a user for anything that a user can cause.
"""

from __future__ import annotations

from collections.abc import Sequence

#: What an exit status says (docs/cli.md); 0 is success.
ERROR, USAGE, WAIVED, GATE, REGRESSION = 1, 2, 3, 4, 5


class XStageError(Exception):
    """Base of all expected errors.

    Parameters
    ----------
    message : str
        What is wrong and where: one line, no trailing full stop needed.
    hint : str, optional
        What to type or change next.
    """

    exit_code = ERROR

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  try: {self.hint}"


class UsageError(XStageError):
    """The call cannot be meant as written, or names a path that does not exist (exit 2)."""

    exit_code = USAGE


class DataError(XStageError):
    """A file exists but its content cannot be used (exit 1)."""


class PairError(XStageError):
    """One ordered pair of GPUs cannot be measured; the others go on (exit 1 at the end).

    Parameters
    ----------
    message, hint
        As `XStageError`.
    pairs : sequence of (int, int), optional
        Which pairs, where several were stored to at once; default: all of them.
    """

    def __init__(self, message: str, hint: str | None = None, pairs: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(message, hint)
        self.pairs = tuple(pairs)


class DeviceLostError(PairError):
    """The worker that owns the context hung or died and has been killed; what was measured before stays valid."""


class WaivedError(XStageError):
    """Nothing here can be measured, and the reason is known (exit 3)."""

    exit_code = WAIVED


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of a library, whatever its type, says that there is no memory left: none to allocate, map or start a thread in."""
    text = str(error).lower()
    said = ("failed to map segment", "cannot allocate memory", "failed to launch worker thread", "out of memory")
    return isinstance(error, MemoryError) or any(words in text for words in said)
