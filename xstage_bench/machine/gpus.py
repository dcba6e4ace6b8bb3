"""What is known of each kind of GPU and of its link, with where it comes from: the registry `gpus.toml`, and numbers tuned on one GPU.

A run's own numbers come first, then those of the registry. What neither has is a `Default`, named in what is predicted from it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from xstage_bench.errors import DataError

#: Whose recordings ship with the package: defaults were fitted to them.
REFERENCE_GPU = "NVIDIA H200"
#: What the simulator adds to the name of the GPU that it imitates.
_SIMULATED = " (simulated)"
FactStatus = Literal["measured", "datasheet", "published", "assumed", "unknown"]


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of one kind of GPU.

    Parameters
    ----------
    value : float or None
        In the unit that the field's name says; None where `status` is ``unknown``.
    low, high : float or None
        What was seen, where that is a range.
    status : {'measured', 'datasheet', 'published', 'assumed', 'unknown'}
    source : str
        Where the value comes from, or why there is none.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: FactStatus
    source: str

    def __post_init__(self) -> None:
        if (self.value is None) != (self.status == "unknown") or not self.source:
            raise ValueError("a fact has a value and its source, or is unknown and says why")


UNKNOWN = Fact(status="unknown", source="no source seen")


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link of one kind of GPU, in 10^9 bytes per second and one direction.

    Parameters
    ----------
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
    """

    line_gb_per_s: Fact = UNKNOWN
    nominal_gb_per_s: Fact = UNKNOWN
    wire_bytes_per_byte: Fact = UNKNOWN
    copy_engine_gb_per_s: Fact = UNKNOWN
    both_ways_gb_per_s: Fact = UNKNOWN
    sleep_after_ms: Fact = UNKNOWN


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of GPU.

    Parameters
    ----------
    names : tuple of str
        As NVML says them.
    reference : str or None
        The recorded node of this kind that ships with the package.
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
    link : Link
    """

    names: tuple[str, ...]
    reference: str | None = None
    sm_count: Fact = UNKNOWN
    sm_clock_mhz: Fact = UNKNOWN
    hbm_gb_per_s: Fact = UNKNOWN
    peak_tflops: dict[str, Fact] = {}
    flops_per_sm: dict[str, Fact] = {}
    memory_gb_per_s: dict[str, Fact] = {}
    link: Link = Link()


@cache
def gpus() -> dict[str, GpuFacts]:
    """Every kind of GPU of the registry, by its key there."""
    path = Path(__file__).with_name("gpus.toml")
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, GpuFacts])
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}", "install xstage-bench again, as it was installed") from None


def kind_of(name: str) -> str:
    """Return the kind of GPU that a name says: that of a simulated GPU is the kind that it imitates."""
    return name.removesuffix(_SIMULATED)


def find_gpu(name: str) -> GpuFacts | None:
    """Return what the registry has of a GPU by the name that NVML or a model says; None where it has nothing."""
    return next((facts for facts in gpus().values() if kind_of(name) in facts.names), None)


def reference_gpu() -> GpuFacts:
    """Return what the registry has of the GPU whose recordings ship with the package."""
    found = find_gpu(REFERENCE_GPU)
    assert found is not None, REFERENCE_GPU
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A number that a run does not measure and that was fitted or chosen on recordings of one kind of GPU.

    Parameters
    ----------
    name : str
        What it is, in a few words.
    value : float
    unit : str
    low, high : float or None
        Range in which the recordings leave it; None where they say nothing.
    source : str
        What it was fitted to.
    gpu : str
        On which GPU.
    """

    name: str
    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None
    gpu: str = REFERENCE_GPU

    def words(self) -> str:
        """Say it with its range."""
        within = "" if self.low is None or self.high is None else f" ({self.low:g} to {self.high:g})"
        return f"{self.name} {self.value:g}{within}{self.unit and ' ' + self.unit}"


def borrowed(here: str, defaults: Iterable[Default]) -> str | None:
    """Say which of these defaults come from another kind of GPU than the one named; None where none does."""
    found = [d for d in defaults if kind_of(here) != d.gpu]
    if not found:
        return None
    return f"measured on {', '.join(dict.fromkeys(d.gpu for d in found))}; this is {here}: " + ", ".join(d.words() for d in found)


def tuned_document(here: Iterable[str], defaults: Iterable[Default]) -> dict[str, Any]:
    """Return the defaults that a document rests on as plain values, with the note that it needs on another kind of GPU (else null)."""
    names, defaults = list(dict.fromkeys(here)), tuple(defaults)
    notes = [note for name in names if (note := borrowed(name, defaults)) is not None]
    return {"gpus": names, "note": "; ".join(notes) or None, "constants": [asdict(d) for d in defaults]}
