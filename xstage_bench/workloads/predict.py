"""What a workload costs on a node: each phase with its stores as they are and as advised, one layer and the whole pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from xstage_bench.model.advise.choose import TaskAdvice, advise_tasks
from xstage_bench.model.document import Model
from xstage_bench.model.predict import STALLED
from xstage_bench.model.stage import stage_at
from xstage_bench.workloads.expand import workload_phases
from xstage_bench.workloads.phases import Layout, Mode, Phase
from xstage_bench.workloads.rates import memory_rates, tensor_core_rate
from xstage_bench.workloads.shapes import SM_CLOCK_MHZ

SMS = 132
#: Columns of `WorkloadPrediction.rows`, for a table.
COLUMNS = (
    "phase",
    "repeats",
    "remote_mb",
    "pull_mb",
    "bursts",
    "burst_kib",
    "compute_us",
    "v_over_r_us",
    "stores_us",
    "stalled",
    "total_us",
    "advised_us",
    "advice",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrediction:
    """One phase of one rank; times and bytes are of one repeat.

    Parameters
    ----------
    name : str
    repeats : int
        Times in a pass.
    per_layer : bool
    schedule, advised_schedule : str or None
        Keys of its task schedules; None: it stores nothing to other ranks.
    remote_bytes, pull_bytes : int
        Stored to and loaded from other ranks.
    bursts : int
        Storing tasks, and `burst_bytes` the mean of what each sends.
    compute_ns : float
        Time with nothing stored: tensor cores or local memory, and waits for each other.
    link_ns : float
        V/R of the stores, and of the pulls.
    stores_ns : float
        What the stores add.
    backpressure : bool
        Whether any store is predicted to take more than 1.1 T0.
    stalled_share : float
        Of the storing tasks.
    total_ns, advised_ns : float
    advice : str
    note : str
    """

    name: str
    repeats: int
    per_layer: bool
    schedule: str | None
    advised_schedule: str | None
    remote_bytes: int
    pull_bytes: int
    bursts: int
    burst_bytes: float
    compute_ns: float
    link_ns: float
    stores_ns: float
    backpressure: bool
    stalled_share: float
    total_ns: float
    advised_ns: float
    advice: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrediction:
    """A workload under one layout: predicted, nothing of it measured.

    Parameters
    ----------
    workload : str
    layout : Layout
    mode, dtype : str
    context : int
    tokens_per_rank : int or None
        As asked; None: the default.
    phases : tuple of PhasePrediction
    notes : tuple of str
        What the numbers stand on.
    """

    workload: str
    layout: Layout
    mode: str
    dtype: str
    context: int
    tokens_per_rank: int | None
    phases: tuple[PhasePrediction, ...]
    notes: tuple[str, ...]

    @property
    def layer_ns(self) -> float:
        """One layer, one chunk."""
        return sum(p.total_ns for p in self.phases if p.per_layer)

    @property
    def advised_layer_ns(self) -> float:
        """The same with every advice taken."""
        return sum(p.advised_ns for p in self.phases if p.per_layer)

    @property
    def pass_ns(self) -> float:
        """All layers and chunks, and what is done once."""
        return sum(p.total_ns * p.repeats for p in self.phases)

    @property
    def advised_pass_ns(self) -> float:
        """The same with every advice taken."""
        return sum(p.advised_ns * p.repeats for p in self.phases)

    def rows(self) -> list[list[Any]]:
        """Return one row per phase in the order of `COLUMNS`; times of one repeat."""
        return [
            [
                p.name,
                p.repeats,
                p.remote_bytes * 1e-6,
                p.pull_bytes * 1e-6,
                p.bursts,
                p.burst_bytes / 1024,
                p.compute_ns * 1e-3,
                p.link_ns * 1e-3,
                p.stores_ns * 1e-3,
                f"{p.stalled_share:.0%}" if p.backpressure else "no",
                p.total_ns * 1e-3,
                p.advised_ns * 1e-3,
                p.advice,
            ]
            for p in self.phases
        ]

    def summary(self) -> str:
        """Say layout, layer and pass in one line."""
        where = f"EP {self.layout.ep} x SP {self.layout.sp} x TP {self.layout.tp}, {self.mode}, {self.context} tokens, {self.dtype}"
        layer = f"layer {self.layer_ns * 1e-3:.1f} us, advised {self.advised_layer_ns * 1e-3:.1f} us"
        whole = f"pass {self.pass_ns * 1e-6:.2f} ms, advised {self.advised_pass_ns * 1e-6:.2f} ms"
        return f"{self.workload}, {where}: {layer}; {whole} (predicted)"

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "workload": self.workload,
            **asdict(self.layout),
            "mode": self.mode,
            "dtype": self.dtype,
            "context": self.context,
            "tokens_per_rank": self.tokens_per_rank,
            "status": "predicted",
            "layer_ns": self.layer_ns,
            "advised_layer_ns": self.advised_layer_ns,
            "pass_ns": self.pass_ns,
            "advised_pass_ns": self.advised_pass_ns,
            "phases": [asdict(p) for p in self.phases],
            "notes": list(self.notes),
        }


def predict_workload(
    model: Model,
    workload: str,
    *,
    ep: int = 8,
    sp: int = 1,
    tp: int = 1,
    replicate_kv: bool = False,
    context: int = 131072,
    mode: Mode = "prefill",
    dtype: str = "bf16",
    tokens_per_rank: int | None = None,
    feedback: str = "logits",
    pair: str | None = None,
    sm_clock_mhz: float | None = None,
    splitting: bool = False,
    known: dict[str, TaskAdvice] | None = None,
) -> WorkloadPrediction:
    """Predict every phase of a workload, with the schedule that a kernel would have today and with the advised one.

    Parameters
    ----------
    model : Model
    workload : str
        See `expand.workload_phases`.
    ep, sp, tp : int
        Ranks that share the experts, a sequence, and heads and weights.
    replicate_kv : bool
        Allow more ranks than key-value heads.
    context : int
    mode : {'prefill', 'decode', 'distill'}
    dtype : {'bf16', 'fp8'}
    tokens_per_rank : int, optional
    feedback : {'logits', 'top_k'}
    pair : str, optional
        Use the model of this pair for every link; default 0>1.
    sm_clock_mhz : float, optional
        Default: the model's. Tensor-core work lowers it, and with it all compute rates.
    splitting : bool
        Whether an advice may cut tiles: not by default, because what smaller tiles cost the tensor cores is not modelled.
    known : dict, optional
        Advices by key of their schedule, read and added to: many layouts share a phase.

    Raises
    ------
    UsageError
        No such workload, or a layout that it cannot have.
    """
    layout = Layout(ep, sp, tp, replicate_kv)
    phases = workload_phases(workload, layout, mode=mode, context=context, dtype=dtype, tokens_per_rank=tokens_per_rank, feedback=feedback)
    known = {} if known is None else known
    link = stage_at(model, SMS, 4, pair=pair or "0>1").rate_gb_per_s or np.inf

    def advice_of(phase: Phase) -> TaskAdvice | None:
        if phase.tasks is None:
            return None
        key = phase.tasks.key()
        if key not in known:
            known[key] = advise_tasks(model, phase.tasks, pair=pair, sm_clock_mhz=sm_clock_mhz, splitting=splitting)
        return known[key]

    advices = [advice_of(p) for p in phases]
    slower = SM_CLOCK_MHZ / (sm_clock_mhz or model.sm_clock_mhz)
    return WorkloadPrediction(
        workload=workload,
        layout=layout,
        mode=mode,
        dtype=dtype,
        context=context,
        tokens_per_rank=tokens_per_rank,
        phases=tuple(_phase(p, a, link, slower) for p, a in zip(phases, advices, strict=True)),
        notes=_notes(dtype, layout, advices),
    )


def _phase(phase: Phase, advice: TaskAdvice | None, link: float, slower: float) -> PhasePrediction:
    if advice is None:
        compute = phase.compute_ns * slower
        total = compute + phase.pull_bytes / link
        return PhasePrediction(
            name=phase.name,
            repeats=phase.repeats,
            per_layer=phase.per_layer,
            schedule=None,
            advised_schedule=None,
            remote_bytes=0,
            pull_bytes=phase.pull_bytes,
            bursts=0,
            burst_bytes=0.0,
            compute_ns=compute,
            link_ns=phase.pull_bytes / link,
            stores_ns=0.0,
            backpressure=False,
            stalled_share=0.0,
            total_ns=total,
            advised_ns=total,
            advice="stores nothing to other ranks",
            note=phase.note,
        )
    present = advice.present
    storing = present.schedule.remote_bytes > 0
    stalled = present.issue_ns[storing] > STALLED * present.t0_ns[storing]
    volume = present.schedule.volume_bytes
    return PhasePrediction(
        name=phase.name,
        repeats=phase.repeats,
        per_layer=phase.per_layer,
        schedule=present.schedule.key(),
        advised_schedule=advice.schedule.key(),
        remote_bytes=volume,
        pull_bytes=phase.pull_bytes,
        bursts=int(storing.sum()),
        burst_bytes=volume / max(int(storing.sum()), 1),
        compute_ns=present.without_stores_ns,
        link_ns=volume / link,
        stores_ns=present.stores_ns,
        backpressure=bool(stalled.any()),
        stalled_share=float(stalled.mean()) if stalled.size else 0.0,
        total_ns=present.total_ns,
        advised_ns=advice.advised.total_ns,
        advice=advice.recipe.words() if advice.helps else advice.reason,
        note=phase.note,
    )


def _notes(dtype: str, layout: Layout, advices: Sequence[TaskAdvice | None]) -> tuple[str, ...]:
    works: tuple[Literal["gemm", "attention"], ...] = ("gemm", "attention")
    rates = {work: tensor_core_rate(dtype, work) for work in works}
    notes = [
        f"tensor cores: {work} {r.flops_per_sm * 1e-12:g} TFLOP/s per SM in {dtype}, {r.status}: {r.source}" for work, r in rates.items()
    ]
    notes += [f"local memory: {r.name} {r.gb_per_s:g} GB/s, {r.status}: {r.source}" for r in memory_rates().values()]
    if layout.world > 2:
        notes.append(f"all of a rank's bytes take one link, as on two GPUs: {layout.world} ranks are emulated for the sender")
    notes += [n for a in advices if a is not None for n in a.present.notes]
    return tuple(dict.fromkeys(notes))
