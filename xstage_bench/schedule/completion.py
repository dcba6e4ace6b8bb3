"""The table of completions: what is executed after a burst so that others may read it, and who executes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from xstage_bench.errors import UsageError

DEFAULT = "fence.sys"
#: Numbered as in ``cuda/completions.cuh``.
INSTRUCTIONS: tuple[str, ...] = (
    "fence.cta",
    "fence.gpu",
    "fence.sys",
    "fence.acq_rel.gpu",
    "fence.acq_rel.sys",
    "red.release.gpu",
    "red.release.sys",
    "st.release.gpu",
    "st.release.sys",
)
Who = Literal["self", "warp", "sm"]
WHO: tuple[Who, ...] = ("self", "warp", "sm")


@dataclass(frozen=True, slots=True)
class Completion:
    """One instruction, by the storing warps (``self``), by a warp of the same SM that stored nothing, or by an SM that stored nothing."""

    instruction: str
    who: Who

    @property
    def number(self) -> int:
        """Its number in ``cuda/completions.cuh``."""
        return INSTRUCTIONS.index(self.instruction)


@lru_cache  # asked of every schedule of a file
def completion_of(name: str) -> Completion:
    """Take ``INSTRUCTION`` or ``INSTRUCTION@warp`` or ``INSTRUCTION@sm`` apart; `UsageError` when it is none of these."""
    instruction, at, who = name.partition("@")
    if instruction not in INSTRUCTIONS or (at and who not in ("warp", "sm")):
        known = ", ".join(INSTRUCTIONS)
        raise UsageError(f"unknown completion '{name}'", f"use one of: {known}; then @warp or @sm for who executes it")
    return Completion(instruction, "warp" if who == "warp" else "sm" if who == "sm" else "self")


def every_completion() -> tuple[str, ...]:
    """Return all names, the default first."""
    names = [f"{i}{'' if who == 'self' else '@' + who}" for who in WHO for i in INSTRUCTIONS]
    return (DEFAULT, *(n for n in names if n != DEFAULT))
