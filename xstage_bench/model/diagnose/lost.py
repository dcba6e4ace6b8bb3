"""Where a kernel's time goes: each cause with its time, its interval and its evidence, or why the input cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The causes, in the order in which they are told, each with what it is called.
CAUSES: dict[str, str] = {
    "capacity": "outstanding capacity",
    "drain": "drain",
    "late_operands": "late operands",
    "publishing": "publishing",
    "out_of_step": "SMs out of step",
    "none_of_these": "none of these",
}
Stalls = Literal["yes", "no", "not determined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPart:
    """Time lost to one cause, mean over the SMs; null where the input cannot tell.

    Parameters
    ----------
    cause : str
        A key of `CAUSES`.
    ns, low_ns, high_ns : float or None
    status : {'ok', 'not_determined'}
    evidence : str
        What it was read off, or why it was not.
    """

    cause: str
    ns: float | None
    low_ns: float | None
    high_ns: float | None
    status: Literal["ok", "not_determined"] = "ok"
    evidence: str = ""

    @classmethod
    def of(cls, cause: str, ns: float, low_ns: float, high_ns: float, evidence: str) -> LostPart:
        """Return a part that is not negative, inside its interval."""
        low, high = max(0.0, min(low_ns, high_ns)), max(0.0, low_ns, high_ns)
        return cls(cause=cause, ns=min(max(ns, low), high), low_ns=low, high_ns=high, evidence=evidence)

    @classmethod
    def unknown(cls, cause: str, why: str) -> LostPart:
        """Return a part that the input does not determine."""
        return cls(cause=cause, ns=None, low_ns=None, high_ns=None, status="not_determined", evidence=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a kernel loses to its stores, and why.

    Parameters
    ----------
    source : str
        ``timings`` or ``time line``.
    total_ns : float
        Time of the kernel as it stores to its peer.
    local_ns : float or None
        Of the same kernel with its stores kept local; null where nobody gave it.
    lost_ns, lost_low_ns, lost_high_ns : float or None
        What storing to the peer adds; of a time line without its local twin the parts that were found.
    stalls : {'yes', 'no', 'not determined'}
    reason : str
        Why.
    bytes : int
        Stored to the peer.
    drain_ns : float or None
        V/R.
    drain_gb_per_s : float or None
        R; 10^9 bytes per second.
    parts : tuple of LostPart
    notes : tuple of str
    """

    source: str
    total_ns: float
    local_ns: float | None
    lost_ns: float | None
    lost_low_ns: float | None
    lost_high_ns: float | None
    stalls: Stalls
    reason: str
    bytes: int
    drain_ns: float | None
    drain_gb_per_s: float | None
    parts: tuple[LostPart, ...]
    notes: tuple[str, ...] = ()

    def part(self, cause: str) -> LostPart:
        """Return what is lost to one cause."""
        return next(p for p in self.parts if p.cause == cause)
