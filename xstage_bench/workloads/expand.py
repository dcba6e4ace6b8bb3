"""Any workload by its name, as phases: a whole model, one MoE layer, or one attention."""

from __future__ import annotations

import difflib

from xstage_bench.errors import UsageError
from xstage_bench.workloads.attention import attention_tasks
from xstage_bench.workloads.decoder import Decoder
from xstage_bench.workloads.keye import keye_phases
from xstage_bench.workloads.keye_plan import plan_pass
from xstage_bench.workloads.moe import moe_tasks
from xstage_bench.workloads.phases import Mode, Phase, PhaseLayout
from xstage_bench.workloads.rates import ELEMENT_BYTES, Machine
from xstage_bench.workloads.shapes import attention_shapes, moe_shapes

#: Workloads that are a whole model.
MODELS = ("keye-vl-2",)
DEFAULT_TOKENS = 4096


def workloads() -> list[str]:
    """Every workload's name."""
    return list(dict.fromkeys([*MODELS, *moe_shapes(), *attention_shapes()]))


def workload_phases(
    workload: str | Decoder,
    layout: PhaseLayout,
    *,
    mode: Mode = "prefill",
    context: int = 131072,
    dtype: str = "bf16",
    tokens_per_rank: int | None = None,
    feedback: str = "logits",
    machine: Machine | None = None,
) -> list[Phase]:
    """Expand a workload and a layout to the phases of one rank.

    Parameters
    ----------
    workload : str or Decoder
        A model by its configuration (`decoder.load_decoder`), or a name.
        ``keye-vl-2`` is the whole model; other names of moe.toml one layer's dispatch and experts, names of attention.toml one attention.
    layout : PhaseLayout
    mode : {'prefill', 'decode', 'distill', 'weights'}
        Of a whole model.
    context : int
        Tokens of a sequence, of a whole model.
    dtype : {'bf16', 'fp8'}
    tokens_per_rank : int, optional
        Of a rank at a time; default 4096 for one MoE layer, as `keye.plan_pass` says for a whole model.
    feedback : {'logits', 'top_k'}
        Of the teachers in ``distill``.
    machine : Machine, optional
        Default: the GPU of the recordings.

    Raises
    ------
    UsageError
        No such workload, or a layout that it cannot have.
    """
    model = workload if isinstance(workload, Decoder) else None
    if model or workload in MODELS:
        return keye_phases(plan_pass(mode, layout, context, dtype, tokens_per_rank, machine=machine, model=model), feedback)
    assert isinstance(workload, str), workload
    if workload in moe_shapes():
        shape = moe_shapes()[workload]
        tokens = DEFAULT_TOKENS if tokens_per_rank is None else tokens_per_rank
        tasks = moe_tasks(shape, tokens_per_rank=tokens, ep=layout.ep, dtype=dtype, machine=machine)
        pulled = round(tokens * shape.ranks_of_a_token(layout.ep) * (layout.ep - 1) / layout.ep * shape.hidden * ELEMENT_BYTES[dtype])
        dispatch = Phase("dispatch", shape.layers, pull_bytes=pulled, note="pulled: one row for each token and rank with an expert of it")
        experts = Phase("experts", shape.layers, tasks, note="Expert-Wave order, each block's Linear-2 waits for its Linear-1")
        return [dispatch, experts]
    if workload in attention_shapes():
        attention = attention_shapes()[workload]
        tasks = attention_tasks(attention, sp=layout.sp, dtype=dtype, machine=machine)
        return [Phase("attention", attention.layers or 1, tasks, note="Ulysses, the output sent tile by tile")]
    known = workloads()
    near = difflib.get_close_matches(workload, known, n=1)
    raise UsageError(f"no workload '{workload}'" + (f"; did you mean '{near[0]}'?" if near else ""), f"use one of: {', '.join(known)}")
