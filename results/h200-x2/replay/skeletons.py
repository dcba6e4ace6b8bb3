"""The skeleton of a fused MoE as task schedules: shapes, cells and numbers of the throw-away probes that this project began with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.workloads.moe import even_blocks, moe_tasks, tasks_of_blocks

SHAPES = ("keye-vl-2", "qwen3.5", "hy3", "mimo-v2.5", "glm-5.2", "dsv4-flash", "dsv4-pro")
WAVE_SHAPES = SHAPES[:5]
LEADS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
TOKENS = (512, 2048, 8192)
#: Of the first probes (16 waves): total over the same without stores; no dependencies wave, interleaved; waves wait: wave, lead 1, lead 2.
FIRST_WAVE: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("keye-vl-2", "bf16"): (1.055, 1.054, 1.466, 1.051, 1.083),
    ("keye-vl-2", "fp8"): (1.51, 1.50, 1.944, 1.434, 1.444),
    ("qwen3.5", "bf16"): (1.034, 1.038, 1.314, 1.036, 1.057),
    ("qwen3.5", "fp8"): (1.177, 1.154, 1.676, 1.095, 1.138),
    ("hy3", "bf16"): (1.02, 1.04, 1.137, 1.012, None),
    ("hy3", "fp8"): (1.02, 1.04, 1.392, 1.041, None),
    ("mimo-v2.5", "bf16"): (1.01, 1.02, 1.090, 1.006, None),
    ("mimo-v2.5", "fp8"): (1.01, 1.02, 1.229, 1.031, None),
    ("glm-5.2", "bf16"): (1.01, 1.02, 1.090, 1.006, None),
    ("glm-5.2", "fp8"): (1.01, 1.02, 1.229, 1.031, None),
}
#: The same with block dependencies: wave and best interleaved, for 512, 2048, 8192 tokens per rank.
FIRST_BLOCK: dict[tuple[str, str], tuple[float, ...]] = {
    ("keye-vl-2", "bf16"): (1.446, 1.272, 1.257, 1.063, 1.195, 1.023),
    ("keye-vl-2", "fp8"): (1.908, 1.584, 1.652, 1.374, 1.555, 1.354),
    ("qwen3.5", "bf16"): (1.061, 1.025, 1.096, 1.026, 1.090, 1.010),
    ("qwen3.5", "fp8"): (1.271, 1.087, 1.280, 1.054, 1.306, 1.043),
    ("hy3", "bf16"): (1.035, 1.018, 1.014, 1.005, 1.022, 1.006),
    ("hy3", "fp8"): (1.135, 1.035, 1.109, 1.011, 1.113, 1.012),
    ("mimo-v2.5", "bf16"): (1.037, 1.027, 1.012, 1.022, 1.010, 1.000),
    ("mimo-v2.5", "fp8"): (1.153, 1.063, 1.079, 1.023, 1.057, 1.001),
    ("glm-5.2", "bf16"): (1.026, 1.023, 1.010, 1.018, 1.007, 1.005),
    ("glm-5.2", "fp8"): (1.155, 1.046, 1.086, 1.021, 1.070, 1.008),
    ("dsv4-flash", "bf16"): (1.029, 1.022, 1.013, 1.004, 1.007, 1.004),
    ("dsv4-flash", "fp8"): (1.070, 1.039, 1.066, 1.007, 1.063, 1.005),
    ("dsv4-pro", "bf16"): (1.007, 1.021, 1.016, 1.004, 1.004, 1.002),
    ("dsv4-pro", "fp8"): (1.012, 1.024, 1.020, 1.008, 1.008, 1.004),
}


def wave_schedules() -> Iterator[TaskSchedule]:
    """Equal waves of full blocks: nothing waits, or every Linear-2 tile for the whole wave's Linear-1 tiles; 16 and 4 waves."""
    for shape in WAVE_SHAPES:
        for dtype in ("bf16", "fp8"):
            for waves in (16, 4):
                rows, wave = even_blocks(waves)
                for dependencies, order, lead in WAVE_CELLS:
                    name = wave_name(shape, dtype, waves, dependencies, order, lead)
                    options: dict[str, Any] = {"dtype": dtype, "order": order, "lead": lead, "dependencies": dependencies, "name": name}
                    yield tasks_of_blocks(shape, rows, wave, **options)


WAVE_CELLS = (
    ("none", "wave", None),
    ("none", "interleaved", None),
    ("wave", "wave", None),
    ("wave", "interleaved", 1.0),
    ("wave", "interleaved", 2.0),
)


def wave_name(shape: str, dtype: str, waves: int, dependencies: str, order: str, lead: float | None) -> str:
    """Return the name of a cell of the waves' table."""
    return f"{shape}-{dtype}-{waves}w-{dependencies}-{order}" + (f"-lead{lead:g}" if lead else "")


def block_schedules() -> Iterator[TaskSchedule]:
    """The real kernel's dependencies: each Linear-2 tile waits for its block's Linear-1 tiles; balanced routing, EP8."""
    for shape in SHAPES:
        for dtype in ("bf16", "fp8"):
            for tokens in TOKENS:
                whole: dict[str, Any] = {"tokens_per_rank": tokens, "ep": 8, "dtype": dtype}
                yield moe_tasks(shape, **whole, order="wave", name=f"{shape}-{dtype}-{tokens}-wave")
                for lead in LEADS:
                    yield moe_tasks(shape, **whole, order="interleaved", lead=lead, name=f"{shape}-{dtype}-{tokens}-lead{lead:g}")
