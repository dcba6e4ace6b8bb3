"""Fault knobs: the ways in which a link or a GPU lets its user down, each with the behaviour that the cuda device has then."""

from __future__ import annotations

from dataclasses import dataclass

from xstage_bench.errors import DeviceLostError, PairError

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the simulated node. The default is a healthy one.

    Parameters
    ----------
    dropped : tuple of (source, destination)
        Pairs on which one store never arrives: `verify` raises `PairError`, and a Trace has status ``corrupt``.
    hanging : tuple of (source, destination)
        Pairs on which an operation never completes: `verify` and `measure` raise `DeviceLostError`.
    throttle_after : int, optional
        From this execution on (0-based, counted over the life of the device) the SM clock is `throttled_clock` of its
        normal value, and the Trace has status ``throttled``.
    throttled_clock : float
        Fraction of the normal SM clock while throttled.
    slow : dict of (source, destination) to float
        Factor on the link's drain rate of one ordered pair: 0.5 is a link at half its rate, one direction only when the
        reverse pair is not named, which is an asymmetric pair.
    error_after : int, optional
        The execution of this number raises `PairError`, as a fabric or driver error in the middle of a run does; those
        before it have been yielded.
    unusable : dict of (source, destination) to str
        Pairs without peer access and the reason, as the node's description gives it.
    """

    dropped: tuple[Pair, ...] = ()
    hanging: tuple[Pair, ...] = ()
    throttle_after: int | None = None
    throttled_clock: float = 0.7
    slow: dict[Pair, float] | None = None
    error_after: int | None = None
    unusable: dict[Pair, str] | None = None

    def link_factor(self, source: int, destination: int) -> float:
        """Return the factor on the drain rate of one ordered pair."""
        return 1.0 if self.slow is None else self.slow.get((source, destination), 1.0)

    def clock_factor(self, execution: int) -> float:
        """Return the factor on the SM clock at the execution of this number."""
        return self.throttled_clock if self.throttle_after is not None and execution >= self.throttle_after else 1.0


def raise_if_hanging(faults: Faults, source: int, destination: int) -> None:
    """Raise `DeviceLostError` where an operation of this pair would never complete."""
    if (source, destination) in faults.hanging:
        raise DeviceLostError(
            f"pair {source}>{destination}: no progress within the time-out; the worker was ended (simulated)",
            "IOMMU or ACS may block peer traffic, or a bridge is half seated; measure the other pairs with --pairs",
        )


def raise_if_error_due(faults: Faults, execution: int, source: int, destination: int) -> None:
    """Raise `PairError` at the execution where the run is to break."""
    if faults.error_after is not None and execution == faults.error_after:
        raise PairError(
            f"pair {source}>{destination}: GPU {source} reported an uncorrectable NVLink error at execution {execution} (simulated)",
            "what was measured before it stays valid; see dmesg for the Xid, then run again with --resume",
        )


def raise_if_dropped(faults: Faults, source: int, destination: int, offset: int, expected: int, found: int) -> None:
    """Raise `PairError` naming pair, offset, expected and found where a store of this pair never arrives."""
    if (source, destination) in faults.dropped:
        raise PairError(
            f"pair {source}>{destination}: destination byte {offset:#x} holds {found:#010x}, expected {expected:#010x} (simulated)",
            "stores of this pair are lost; no number is given for it. Check IOMMU/ACS settings and the link's error counters",
        )
