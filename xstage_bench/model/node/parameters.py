"""The eight numbers of a node's pair, what they mean, and the closed forms that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.node.issue import SUB_PARTITIONS, IssueLaw, free_cycles
from xstage_bench.model.node.placement import Placement


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """Unit, meaning and admissible range of one parameter; `start` is where a fit begins."""

    unit: str
    meaning: str
    start: float
    low: float
    high: float


PARAMETERS: dict[str, ParameterSpec] = {
    "issue_cycles_per_store": ParameterSpec("cycles", "one warp's interval between its own warp-stores", 19.0, 1.0, 200.0),
    "link_gb_per_s": ParameterSpec("GB/s", "drain rate of the link, all producers together", 370.0, 5.0, 5000.0),
    "sm_bytes_per_cycle": ParameterSpec("B/cycle", "the most that one SM drains", 25.6, 1.0, 256.0),
    "sm_capacity_bytes": ParameterSpec("B", "what one SM may have outstanding of its own", 16000.0, 500.0, 400000.0),
    "unit_capacity_bytes": ParameterSpec(
        "B", "what the SMs of one arbitration unit may have outstanding in common, one SM at most half of it", 12000.0, 0.0, 400000.0
    ),
    "credit_cycles": ParameterSpec("cycles", "until a drained byte is known to its SM", 550.0, 0.0, 8000.0),
    "link_buffer_bytes": ParameterSpec("B", "taken in before the link holds anybody back", 180000.0, 0.0, 4000000.0),
    "service_spread": ParameterSpec("1", "standard deviation of the units' service, relative", 0.09, 0.0, 0.6),
}


@dataclass(frozen=True, slots=True)
class NodeModel:
    """One ordered pair and store flavour: eight physical parameters, the map of SMs to arbitration units, the instrument's constants.

    Parameters
    ----------
    issue_cycles_per_store, link_gb_per_s, sm_bytes_per_cycle, sm_capacity_bytes, unit_capacity_bytes, credit_cycles, link_buffer_bytes, \
service_spread : float
        See `PARAMETERS`. What the SM does is in cycles, what the link does in GB/s.
    placement : Placement
        Measured structure: which SMs share an arbiter.
    sm_clock_mhz : float
        Of the calibration; predictions may be asked for at another.
    issue : IssueLaw
    """

    issue_cycles_per_store: float
    link_gb_per_s: float
    sm_bytes_per_cycle: float
    sm_capacity_bytes: float
    unit_capacity_bytes: float
    credit_cycles: float
    link_buffer_bytes: float
    service_spread: float
    placement: Placement
    sm_clock_mhz: float
    issue: IssueLaw = field(default_factory=IssueLaw)

    def values(self) -> FloatArray:
        """Return the parameters in the order of `PARAMETERS`."""
        return np.array([getattr(self, name) for name in PARAMETERS])

    def with_values(self, values: Sequence[float] | FloatArray) -> NodeModel:
        """Return the model with these parameters, in the order of `PARAMETERS`."""
        changes: dict[str, Any] = {name: float(v) for name, v in zip(PARAMETERS, values, strict=True)}
        return replace(self, **changes)

    def link_bytes_per_cycle(self, sm_clock_mhz: float | None = None) -> float:
        """Drain rate of the link in bytes per SM cycle: a slower SM clock sees a faster link."""
        return self.link_gb_per_s * 1e3 / (self.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz)

    def weights(self) -> FloatArray:
        """Service weight of each unit: quantiles of a lognormal of `service_spread`, dealt to the units in a fixed order."""
        return np.exp(self.service_spread * spread_scores(len(self.placement.units)))

    def t0_cycles(self, warps: ArrayLike, stores: ArrayLike, fresh: ArrayLike = True, free: FloatArray | None = None) -> FloatArray:
        """T0 for any K: issue time without backpressure from the link. `stores` counts the warp-stores of each warp.

        `free` is the issue law's cost of these bursts where it is known already.

        Notes
        -----
        max(issue law, (B - c)/r + credit) with c the capacity of an SM alone in its unit and r its own drain: what it pays when it
        outruns its own drain is not the link's doing.
        """
        if free is None:
            free = free_cycles(self.issue, self.issue_cycles_per_store, warps, stores, fresh)
        size = np.asarray(warps) * np.asarray(stores) * self.issue.store_bytes
        room = self.unit_capacity(1) + self.issue.queue_bytes(warps)
        held = (size - room) / self.sm_bytes_per_cycle + self.credit_cycles
        return np.asarray(np.maximum(free, np.where(size > 0, held, 0.0)))

    def unit_capacity(self, members: ArrayLike) -> FloatArray:
        """Bytes that one unit with this many producers may have outstanding: each SM's own part, and the common one."""
        n = np.asarray(members, dtype=np.float64)
        return np.asarray(n * (self.sm_capacity_bytes + self.unit_capacity_bytes / np.maximum(n, 2.0)))

    def drain_gb_per_s(self, producers: ArrayLike, sm_clock_mhz: float | None = None) -> FloatArray:
        """R(K) = min(K r, R_link), all producers together."""
        clock = self.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
        return np.asarray(np.minimum(np.asarray(producers) * self.sm_bytes_per_cycle * clock / 1e3, self.link_gb_per_s))

    def capacity_bytes(self, smids: Sequence[int] | IntArray, sm_clock_mhz: float | None = None, *, warps: int = SUB_PARTITIONS) -> float:
        """Q of these producers together: isolated bursts of equal size stall above V = Q + R*T0.

        Notes
        -----
        What the units may have outstanding and what the buffer takes in, less what drains during the credit's way back, and for bulk
        copies what `warps` warps may have queued. Infinite when these SMs together do not outrun the link.
        """
        members = self.placement.members(smids)
        link = self.link_bytes_per_cycle(sm_clock_mhz)
        if members.sum() * self.sm_bytes_per_cycle <= link:
            return float("inf")
        queued = float(self.issue.queue_bytes(warps)) * members.sum()
        return float(self.unit_capacity(members).sum() + queued + self.link_buffer_bytes - link * self.credit_cycles)


def spread_scores(count: int) -> FloatArray:
    """Normal scores of `count` units in a fixed order that gives neighbours unlike ones (multiples of the golden ratio)."""
    from scipy.special import ndtri

    rank = np.argsort(np.argsort(np.modf(np.arange(count) * 0.6180339887498949)[0], kind="stable"), kind="stable")
    return np.asarray(ndtri((rank + 0.5) / max(count, 1)), dtype=np.float64)
