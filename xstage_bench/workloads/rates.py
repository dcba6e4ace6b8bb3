"""Rates of what a GPU does besides storing, tensor cores and local memory, and the SMs that do it: what workloads are laid out for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from xstage_bench.errors import UsageError
from xstage_bench.machine.facts import GpuFacts
from xstage_bench.machine.gpus import REFERENCE_GPU, find_gpu, gpus, kind_of, reference_gpu
from xstage_bench.workloads.shapes import find

if TYPE_CHECKING:
    from xstage_bench.model.document import Model

Dtype = Literal["bf16", "fp8"]
#: Bytes of one element of each type.
ELEMENT_BYTES: dict[str, int] = {"bf16": 2, "fp8": 1}
WORKS: tuple[Literal["gemm", "attention"], ...] = ("gemm", "attention")
Memory = Literal["l2", "hbm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate of a GPU, and whose number it is.

    Parameters
    ----------
    name : str
        ``gemm-bf16``, ``l2``.
    value : float or None
        None: this GPU cannot do that.
    unit : {'FLOP/s per SM', 'GB/s'}
    status : {'measured', 'datasheet', 'published', 'assumed', 'derived', 'borrowed'}
        derived: the GPU's own peak times the share of its peak that another GPU reaches. borrowed: another GPU's number as it is.
    gpu : str
        Whose recording it rests on.
    source : str
    """

    name: str
    value: float | None
    unit: str
    status: str
    gpu: str
    source: str

    def words(self) -> str:
        """Say it in one line."""
        value = (
            "none" if self.value is None else f"{self.value:g} GB/s" if self.unit == "GB/s" else f"{self.value * 1e-12:.4g} TFLOP/s per SM"
        )
        return f"{self.name} {value}, {self.status}: {self.source}"


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPU that a workload is laid out for.

    Parameters
    ----------
    gpu : str
    sms : int
    sm_clock_mhz : float
        SM clock at which the tensor-core rates hold: turns a tile's seconds into cycles.
    rates : tuple of Rate
        Every work with every type, and both memories.
    """

    gpu: str
    sms: int
    sm_clock_mhz: float
    rates: tuple[Rate, ...]

    def flops_per_sm(self, dtype: str, work: Literal["gemm", "attention"] = "gemm") -> float:
        """Return useful FLOP/s of one SM for this kind of work with operands of this type.

        Raises
        ------
        UsageError
            Neither ``bf16`` nor ``fp8``, or one that this GPU's tensor cores do not have.
        """
        rate = find({dtype: self.rate(f"{work}-{dtype}") for dtype in ELEMENT_BYTES}, dtype, "type of element")
        if rate.value is None:
            raise UsageError(f"{self.gpu} has no tensor cores for {dtype}: {rate.source}", "--dtype bf16")
        return rate.value

    def gb_per_s(self, memory: Memory) -> float:
        """Return the rate of a local memory, all SMs together."""
        value = self.rate(memory).value
        assert value is not None, memory
        return value

    def rate(self, name: str) -> Rate:
        """Return one of the rates by its name."""
        return next(r for r in self.rates if r.name == name)

    @property
    def elsewhere(self) -> tuple[Rate, ...]:
        """The rates that rest on another kind of GPU."""
        return tuple(r for r in self.rates if r.gpu != kind_of(self.gpu))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        keys = ("name", "value", "unit", "status", "gpu", "source")
        return {
            "gpu": self.gpu,
            "sms": self.sms,
            "rates_at_sm_clock_mhz": self.sm_clock_mhz,
            "rates": [{k: getattr(r, k) for k in keys} for r in self.rates],
            "rates_from_elsewhere": [r.name for r in self.elsewhere],
        }


@cache
def named_machine(gpu: str = REFERENCE_GPU) -> Machine:
    """Return a GPU of the registry by the name that NVML says, for schedules that no model is given for.

    Raises
    ------
    UsageError
        The registry has no such GPU, or not how many SMs it has or how fast they are.
    """
    facts = find_gpu(gpu)
    if facts is None or facts.sm_count.value is None or facts.sm_clock_mhz.value is None:
        known = [name for f in gpus().values() if f.sm_count.value and f.sm_clock_mhz.value for name in f.names]
        raise UsageError(f"SMs and SM clock of '{gpu}' are not known here", f"give a model of it, or one of: {', '.join(known)}")
    return Machine(gpu, int(facts.sm_count.value), facts.sm_clock_mhz.value, _rates(gpu, int(facts.sm_count.value)))


def machine_of(model: Model, pair: str | None = None) -> Machine:
    """Return the GPU of a model: SMs and clock as fitted there, rates of the registry, else those of the recorded GPU.

    Parameters
    ----------
    model : Model
    pair : str, optional
        Whose source; default ``0>1``.

    Raises
    ------
    DataError
        The model does not say how many SMs its GPU has.
    """
    from xstage_bench.model.sms import sms_of

    facts, sms = find_gpu(model.gpu), sms_of(model, pair)
    # Of a GPU that nothing is known of, an SM does as much in a cycle as one of the recorded GPU.
    clock = (facts or reference_gpu()).sm_clock_mhz.value or model.sm_clock_mhz
    return Machine(model.gpu, sms, clock, _rates(model.gpu, sms))


def _rates(gpu: str, sms: int) -> tuple[Rate, ...]:
    facts = find_gpu(gpu)
    cores = [_tensor_cores(gpu, facts, work, dtype) for work in WORKS for dtype in ELEMENT_BYTES]
    return (*cores, _memory(gpu, facts, "l2", sms), _memory(gpu, facts, "hbm", sms))


def _tensor_cores(gpu: str, facts: GpuFacts | None, work: str, dtype: str) -> Rate:
    name, unit, lent = f"{work}-{dtype}", "FLOP/s per SM", reference_gpu()
    theirs = lent.flops_per_sm[name]
    assert theirs.value is not None, name
    own = facts and facts.flops_per_sm.get(name)
    if own and own.value is not None:
        return Rate(name=name, value=own.value, unit=unit, status=own.status, gpu=kind_of(gpu), source=own.source)
    peak, sms = (facts.peak_tflops.get(dtype), facts.sm_count.value) if facts else (None, None)
    if peak is not None and peak.value == 0:
        return Rate(name=name, value=None, unit=unit, status=peak.status, gpu=kind_of(gpu), source=peak.source)
    their_peak, their_sms = lent.peak_tflops[dtype].value, lent.sm_count.value
    if peak is not None and peak.value and sms and their_peak and their_sms:
        share = theirs.value * 1e-12 * their_sms / their_peak
        whole = f"dense peak {peak.value:g} TFLOP/s of {sms:g} SMs ({peak.source})"
        source = f"{whole} times {share:.2f}, the share of its peak that {REFERENCE_GPU} reaches"
        return Rate(name=name, value=peak.value * 1e12 / sms * share, unit=unit, status="derived", gpu=REFERENCE_GPU, source=source)
    return Rate(
        name=name, value=theirs.value, unit=unit, status="borrowed", gpu=REFERENCE_GPU,
        source=f"of {REFERENCE_GPU}, this is {gpu}, whose tensor cores are not known here: {theirs.source}",
    )  # fmt: skip


def _memory(gpu: str, facts: GpuFacts | None, name: Memory, sms: int) -> Rate:
    lent = reference_gpu()
    theirs, their_sms, their_hbm = lent.memory_gb_per_s[name], lent.sm_count.value, lent.hbm_gb_per_s.value
    assert theirs.value is not None and their_sms and their_hbm, name  # noqa: PT018
    own = facts and facts.memory_gb_per_s.get(name)
    if own and own.value is not None:
        return Rate(name=name, value=own.value, unit="GB/s", status=own.status, gpu=kind_of(gpu), source=own.source)
    if name == "hbm" and facts is not None and facts.hbm_gb_per_s.value:
        share = theirs.value / their_hbm
        whole = f"{facts.hbm_gb_per_s.value:g} GB/s ({facts.hbm_gb_per_s.source})"
        source = f"{whole} times {share:.2f}, the share of it that {REFERENCE_GPU} reaches"
        return Rate(name=name, value=facts.hbm_gb_per_s.value * share, unit="GB/s", status="derived", gpu=REFERENCE_GPU, source=source)
    # The second-level cache is read by the SMs, each at most at its own rate.
    value = theirs.value if name == "hbm" else theirs.value * sms / their_sms
    source = f"of {REFERENCE_GPU}{'' if name == 'hbm' else ', per SM'}, this is {gpu}: {theirs.source}"
    return Rate(name=name, value=value, unit="GB/s", status="borrowed", gpu=REFERENCE_GPU, source=source)
