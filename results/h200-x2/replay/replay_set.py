"""The schedules that judge the predictor and its advice on hardware: originals from the workloads, none chosen by looking at a result.

Eight ranks are emulated for the sender on two GPUs: what seven other owners would get goes to the one peer. Every schedule is short, a few
milliseconds at most, so that all of them can be repeated often, in turn, within a minute. Attention is at the rate of GEMM tiles, as it was
when the recorded replay was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.workloads.attention import attention_tasks
from xstage_bench.workloads.keye import keye_phases
from xstage_bench.workloads.keye_plan import plan_pass
from xstage_bench.workloads.moe import even_blocks, moe_tasks, tasks_of_blocks
from xstage_bench.workloads.phases import Mode, PhaseLayout
from xstage_bench.workloads.rates import named_machine
from xstage_bench.workloads.shapes import moe_shape

#: Storing phases of Keye-VL-2.0 beside its experts, which the MoE rows have; decoding has its own experts.
_KEYE = ("qkv", "select", "attention", "reshard", "output", "feedback")
_DECODE = ("select", "experts")
_MAX_TASKS = 8000


def replay_schedules() -> list[TaskSchedule]:
    """Return the originals, in a fixed order, each with a name of its own."""
    found = [*_waves(), *_layouts(), *_wide_rows(), *_skeletons(), *_keye(), *_attention()]
    names = [s.name for s in found]
    if len(set(names)) < len(names):
        raise ValueError(f"names are not distinct: {sorted(n for n in set(names) if names.count(n) > 1)}")
    return found


def _waves() -> Iterator[TaskSchedule]:
    """Expert-Wave order with the kernel's own dependencies, EP8."""
    for shape, dtype, tokens in product(("keye-vl-2", "qwen3.5-35b"), ("bf16", "fp8"), (512, 2048)):
        yield moe_tasks(shape, tokens_per_rank=tokens, ep=8, dtype=dtype)
    for dtype, tokens in product(("bf16", "fp8"), (4096, 8192)):
        yield moe_tasks("keye-vl-2", tokens_per_rank=tokens, ep=8, dtype=dtype)
    for shape, dtype, tokens in (
        ("qwen3.5", "bf16", 512),
        ("qwen3.5", "fp8", 512),
        ("qwen3.5", "fp8", 1024),
        ("hy3", "bf16", 512),
        ("hy3", "fp8", 512),
        ("hy3", "fp8", 1024),
        ("mimo-v2.5", "fp8", 512),
        ("glm-5.2", "fp8", 512),
        ("dsv4-flash", "fp8", 512),
        ("kimi-k2", "fp8", 768),
        ("dit-moe-xl", "fp8", 2048),
    ):
        yield moe_tasks(shape, tokens_per_rank=tokens, ep=8, dtype=dtype)


def _layouts() -> Iterator[TaskSchedule]:
    """Other degrees, routings and orders."""
    keye = "keye-vl-2"
    for ep, dtype in product((2, 4), ("bf16", "fp8")):
        for tokens in (1024, 2048):
            yield moe_tasks(keye, tokens_per_rank=tokens, ep=ep, dtype=dtype)
        yield moe_tasks("qwen3.5-35b", tokens_per_rank=1024, ep=ep, dtype=dtype)
    for dtype in ("bf16", "fp8"):
        yield moe_tasks(keye, tokens_per_rank=1024, ep=8, dtype=dtype, order="serial")
        yield moe_tasks(keye, tokens_per_rank=1024, ep=8, dtype=dtype, routing="skewed", name=f"{keye}-{dtype}-wave-ep8-1024-skewed")
        yield moe_tasks(keye, tokens_per_rank=64, ep=8, dtype=dtype, name=f"{keye}-{dtype}-wave-ep8-64-decode")


def _wide_rows() -> Iterator[TaskSchedule]:
    """float32 rows: drain over compute as on the GPU of the X-Stage paper."""
    for shape, dtype, tokens in (
        ("keye-vl-2", "bf16", 512),
        ("qwen3.5", "bf16", 512),
        ("qwen3.5", "fp8", 512),
        ("hy3", "bf16", 512),
        ("hy3", "fp8", 512),
        ("mimo-v2.5", "fp8", 512),
        ("mimo-v2.5", "fp8", 1024),
        ("glm-5.2", "fp8", 512),
        ("glm-5.2", "fp8", 1024),
        ("dsv4-flash", "fp8", 512),
        ("dsv4-pro", "fp8", 1024),
    ):
        width = 4 * moe_shape(shape).hidden
        name = f"{shape}-{dtype}-wave-ep8-{tokens}-float32-rows"
        yield moe_tasks(shape, tokens_per_rank=tokens, ep=8, dtype=dtype, row_bytes=width, name=name)


def _skeletons() -> Iterator[TaskSchedule]:
    """Whole waves that wait for all of the wave before: the worst case."""
    for shape, dtype, waves in product(("keye-vl-2", "qwen3.5"), ("bf16", "fp8"), (4, 8)):
        yield tasks_of_blocks(shape, *even_blocks(waves), dtype=dtype, dependencies="wave", name=f"{shape}-{dtype}-{waves}-whole-waves")


def _keye() -> Iterator[TaskSchedule]:
    """Projections, selections, re-sharding and feedback of Keye-VL-2.0 under several layouts."""
    asked: tuple[tuple[Mode, PhaseLayout, int, str], ...] = (
        ("prefill", PhaseLayout(8, 2), 8192, "bf16"),
        ("prefill", PhaseLayout(8, 4), 8192, "fp8"),
        ("prefill", PhaseLayout(8, 4), 32768, "bf16"),
        ("prefill", PhaseLayout(8, 8, replicate_kv=True), 32768, "fp8"),
        ("prefill", PhaseLayout(8, 2, 2), 16384, "fp8"),
        ("decode", PhaseLayout(8, 4), 131072, "bf16"),
        ("distill", PhaseLayout(8, 1), 2048, "bf16"),
        ("distill", PhaseLayout(8, 1), 2048, "fp8"),
    )
    for mode, layout, context, dtype in asked:
        plan = plan_pass(mode, layout, context, dtype, attention_flops_per_sm=named_machine().flops_per_sm("bf16"))
        for phase in keye_phases(plan):
            if phase.tasks is not None and phase.name in (_DECODE if mode == "decode" else _KEYE):
                yield _first(phase.tasks)


def _attention() -> Iterator[TaskSchedule]:
    """The first rounds of diffusion transformers' attention."""
    for shape, sp, dtype, limit in (
        ("flux.1-1024", 8, "bf16", 8),
        ("flux.2-dev", 8, "fp8", 8),
        ("qwen-image-1024", 8, "fp8", 8),
        ("sd3.5-medium", 8, "fp8", 8),
        ("ltx-video-13b", 8, "fp8", 8),
        ("cogvideox-5b", 8, "fp8", 4),
        ("wan-1.3b-480p", 4, "fp8", 2),
    ):
        yield attention_tasks(shape, sp=sp, dtype=dtype, limit=limit, flops_per_sm=named_machine().flops_per_sm(dtype))


def _first(schedule: TaskSchedule) -> TaskSchedule:
    """Return the first tasks of each producer, so many that there are `_MAX_TASKS` in all; only for tasks without events."""
    s = schedule
    keep = np.arange(s.task_count) - s.first[s.producer] < _MAX_TASKS // s.producer_count
    columns = ("producer", "compute_cycles", "bytes", "remote_bytes", "waits_for", "signals", "phase")
    return s if keep.all() else replace(s, **{c: getattr(s, c)[keep] for c in columns})
