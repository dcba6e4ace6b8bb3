"""The form of one entry of the registry of nodes: facts, each with its interval, its kind and where it comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

FactStatus = Literal["measured", "datasheet", "published", "assumed", "scaled", "unknown"]


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of one kind of GPU.

    Parameters
    ----------
    value : float or None
        In the unit that the field's name says; None where `status` is ``unknown``.
    low, high : float or None
        What was seen, where that is a range.
    status : {'measured', 'datasheet', 'published', 'assumed', 'scaled', 'unknown'}
    source : str
        Where the value comes from, or why there is none.
    rule : str or None
        By which a ``scaled`` value follows from other entries (`scaling.RULES`).
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: FactStatus
    source: str
    rule: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.status == "unknown") or not self.source:
            raise ValueError("a fact has a value and its source, or is unknown and says why")
        if (self.rule is None) != (self.status != "scaled"):
            raise ValueError("a scaled fact names its rule, and no other has one")

    def words(self) -> str:
        """Say it in one line: value, interval, kind, rule and source."""
        if self.value is None:
            return f"unknown: {self.source}"
        within = "" if self.low is None or self.high is None else f" [{self.low:g}, {self.high:g}]"
        return f"{self.value:g}{within}, {self.status}{f' by {self.rule}' if self.rule else ''}: {self.source}"


UNKNOWN = Fact(status="unknown", source="no source seen")


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link of one kind of GPU, in 10^9 bytes per second and one direction.

    Parameters
    ----------
    kind : {'nvlink', 'pcie'}
        What joins two of these GPUs.
    links : Fact
        NVLinks of a GPU; 0: it has none.
    line_gb_per_s : Fact
        On the wire, headers included, all links up.
    nominal_gb_per_s : Fact
    wire_bytes_per_byte : Fact
        Bytes on the wire per byte stored, of 16-byte stores.
    copy_engine_gb_per_s : Fact
        Large copies.
    both_ways_gb_per_s : Fact
        What stores reach while the other GPU stores as much.
    sleep_after_ms : Fact
        Silence after which links sleep.
    host_gb_per_s : Fact
        What stores to pinned host memory reach.
    """

    kind: Literal["nvlink", "pcie"] = "nvlink"
    links: Fact = UNKNOWN
    line_gb_per_s: Fact = UNKNOWN
    nominal_gb_per_s: Fact = UNKNOWN
    wire_bytes_per_byte: Fact = UNKNOWN
    copy_engine_gb_per_s: Fact = UNKNOWN
    both_ways_gb_per_s: Fact = UNKNOWN
    sleep_after_ms: Fact = UNKNOWN
    host_gb_per_s: Fact = UNKNOWN


class StageFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies behind the SMs of one kind of GPU that store to a peer by 16-byte stores.

    Parameters
    ----------
    drain_gb_per_s : Fact
        R: all SMs together, 10^9 bytes per second.
    sm_gb_per_s : Fact
        One SM alone.
    capacity_bytes, sm_capacity_bytes : Fact
        Q of all SMs together, and one SM's share of it.
    t0_ns : Fact
        T0: 32 KiB of every SM, without backpressure.
    units : Fact
        Groups of SMs that share an arbiter.
    """

    drain_gb_per_s: Fact = UNKNOWN
    sm_gb_per_s: Fact = UNKNOWN
    capacity_bytes: Fact = UNKNOWN
    sm_capacity_bytes: Fact = UNKNOWN
    t0_ns: Fact = UNKNOWN
    units: Fact = UNKNOWN


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of GPU.

    Parameters
    ----------
    names : tuple of str
        As NVML says them.
    architecture : str
        As compilers are told: ``sm_90``.
    reference : str or None
        The recorded node of this kind that ships with the package.
    model : str or None
        A fitted model.json: relative to the entry's own folder, of the package's entries to ``results``.
    sm_count, sm_clock_mhz : Fact
        The clock is the one at which `flops_per_sm` holds.
    hbm_gb_per_s : Fact
        By the datasheet.
    peak_tflops : dict of str to Fact
        Dense peak of the whole GPU by type of operand; 0: it has no such tensor cores.
    flops_per_sm : dict of str to Fact
        Useful FLOP/s of one SM by ``WORK-DTYPE``.
    memory_gb_per_s : dict of str to Fact
        ``l2`` and ``hbm`` as all SMs together reach them.
    stage : StageFacts
    link : Link
    """

    names: tuple[str, ...]
    architecture: str | None = None
    reference: str | None = None
    model: str | None = None
    sm_count: Fact = UNKNOWN
    sm_clock_mhz: Fact = UNKNOWN
    hbm_gb_per_s: Fact = UNKNOWN
    peak_tflops: dict[str, Fact] = {}
    flops_per_sm: dict[str, Fact] = {}
    memory_gb_per_s: dict[str, Fact] = {}
    stage: StageFacts = StageFacts()
    link: Link = Link()
