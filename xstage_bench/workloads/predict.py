"""What a workload costs on a node: each phase with its stores as they are and as advised, one layer and the whole pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xstage_bench.model.advise.choose import TaskAdvice, advise_tasks
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.document import Model
from xstage_bench.model.stage import stage_at
from xstage_bench.workloads.decoder import Decoder
from xstage_bench.workloads.expand import workload_phases
from xstage_bench.workloads.phases import Mode, Phase, PhaseLayout
from xstage_bench.workloads.predicted import PhasePrediction, WorkloadPrediction
from xstage_bench.workloads.rates import WORKS, Machine, machine_of


def predict_workload(
    model: Model,
    workload: str | Decoder,
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
    workload : str or Decoder
        See `expand.workload_phases`.
    ep, sp, tp : int
        Ranks that share the experts, a sequence, and heads and weights.
    replicate_kv : bool
        Allow more ranks than key-value heads.
    context : int
    mode : {'prefill', 'decode', 'distill', 'weights'}
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
    read = workload if isinstance(workload, Decoder) else None
    layout = PhaseLayout(1 if read and read.moe is None else ep, sp, tp, replicate_kv)
    machine = machine_of(model, pair)
    phases = workload_phases(
        workload, layout, mode=mode, context=context, dtype=dtype, tokens_per_rank=tokens_per_rank, feedback=feedback, machine=machine
    )
    known = {} if known is None else known
    link = stage_at(model, machine.sms, 4, pair=pair or "0>1").rate_gb_per_s or np.inf

    def advice_of(phase: Phase) -> TaskAdvice | None:
        if phase.tasks is None:
            return None
        key = phase.tasks.key()
        if key not in known:
            known[key] = advise_tasks(model, phase.tasks, pair=pair, sm_clock_mhz=sm_clock_mhz, splitting=splitting)
        return known[key]

    advices = [advice_of(p) for p in phases]
    slower = machine.sm_clock_mhz / (sm_clock_mhz or model.sm_clock_mhz)
    return WorkloadPrediction(
        workload=workload.name if isinstance(workload, Decoder) else workload,
        layout=layout,
        mode=mode,
        dtype=dtype,
        context=context,
        tokens_per_rank=tokens_per_rank,
        phases=tuple(_phase(p, a, link, slower) for p, a in zip(phases, advices, strict=True)),
        machine=machine,
        notes=(*([read.words()] if read else []), *_notes(machine, dtype, layout, advices)),
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


def _notes(machine: Machine, dtype: str, layout: PhaseLayout, advices: Sequence[TaskAdvice | None]) -> tuple[str, ...]:
    used = [machine.rate(f"{work}-{dtype}") for work in WORKS] + [machine.rate("l2"), machine.rate("hbm")]
    notes = [f"laid out for {machine.gpu} with {machine.sms} SMs"]
    elsewhere = [r for r in used if r in machine.elsewhere]
    if elsewhere:
        names = ", ".join(f"{r.name} ({r.status})" for r in elsewhere)
        notes.append(f"compute rates from {elsewhere[0].gpu}, this is {machine.gpu}: {names}")
    notes += [f"{'local memory' if r.unit == 'GB/s' else 'tensor cores'}: {r.words()}" for r in used]
    if layout.world > 2:
        notes.append(f"all of a rank's bytes take one link, as on two GPUs: {layout.world} ranks are emulated for the sender")
    notes += [n for a in advices if a is not None for n in a.present.notes]
    return tuple(dict.fromkeys(notes))
