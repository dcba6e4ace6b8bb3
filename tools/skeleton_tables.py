"""The skeleton of a fused MoE by replay: the shapes and cells of the throw-away probes that this project began with, measured again.

``python tools/skeleton_tables.py measure wave|block mma|spin FOLDER``: on two GPUs; EP8 emulated for the sender, 7 of 8 bytes to the peer.
``python tools/skeleton_tables.py show REPLAY.json``: the table, first-hand cells beside.
``python tools/skeleton_tables.py choice REPLAY.json``: the order that the predictions choose for each, against what was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from xstage_bench.device.backend import resolve_backend
from xstage_bench.io.json_file import write_json
from xstage_bench.measure.replay_document import DOCUMENT, read_replay
from xstage_bench.measure.tasks import measure_tasks
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
                    name = f"{shape}-{dtype}-{waves}w-{dependencies}-{order}" + (f"-lead{lead:g}" if lead else "")
                    options: dict[str, Any] = {"dtype": dtype, "order": order, "lead": lead, "dependencies": dependencies, "name": name}
                    yield tasks_of_blocks(shape, rows, wave, **options)


WAVE_CELLS = (
    ("none", "wave", None),
    ("none", "interleaved", None),
    ("wave", "wave", None),
    ("wave", "interleaved", 1.0),
    ("wave", "interleaved", 2.0),
)


def block_schedules() -> Iterator[TaskSchedule]:
    """The real kernel's dependencies: each Linear-2 tile waits for its block's Linear-1 tiles; balanced routing, EP8."""
    for shape in SHAPES:
        for dtype in ("bf16", "fp8"):
            for tokens in TOKENS:
                whole: dict[str, Any] = {"tokens_per_rank": tokens, "ep": 8, "dtype": dtype}
                yield moe_tasks(shape, **whole, order="wave", name=f"{shape}-{dtype}-{tokens}-wave")
                for lead in LEADS:
                    yield moe_tasks(shape, **whole, order="interleaved", lead=lead, name=f"{shape}-{dtype}-{tokens}-lead{lead:g}")


def measure(which: str, compute: str, folder: str, processes: str = "3", repetitions: str = "3") -> None:
    """Execute one table and write its document."""
    execute(list(wave_schedules() if which == "wave" else block_schedules()), compute, folder, processes, repetitions)
    show(str(Path(folder) / DOCUMENT))


def execute(schedules: list[TaskSchedule], compute: str, folder: str, processes: str, repetitions: str) -> None:
    """Replay schedules and write the document."""
    document = measure_tasks(
        resolve_backend("cuda", "gpu"), schedules, compute="mma" if compute == "mma" else "spin", repetitions=int(repetitions),
        processes=int(processes), say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / DOCUMENT, document)


def show(path: str) -> None:
    """Print the table that a document holds: total over the same schedule without stores, measured / first probes."""
    document = read_replay(Path(path))
    found = {row["schedule"]: row for row in document["rows"]}
    if any("-16w-" in name for name in found):
        _show_waves(found)
    else:
        _show_blocks(found)


def _show_waves(found: dict[str, Any]) -> None:
    for waves in (16, 4):
        print(f"\n{waves} waves\n\n| shape | none: wave | interleaved | waves wait: wave | lead 1 | lead 2 |")
        print("|---" * 6 + "|")
        for shape, dtype in FIRST_WAVE:
            names = [f"{shape}-{dtype}-{waves}w-{d}-{o}" + (f"-lead{lead:g}" if lead else "") for d, o, lead in WAVE_CELLS]
            first = FIRST_WAVE[shape, dtype] if waves == 16 else (None,) * len(names)
            cells = [_pair(found[n]["slowdown"]["value"], one) for n, one in zip(names, first, strict=True)]
            print(f"| {shape} {dtype} | " + " | ".join(cells) + " |")


def _show_blocks(found: dict[str, Any]) -> None:
    """Print wave and the lead with the shortest total, and what it gains over wave."""
    print("| shape | " + " | ".join(f"{n}: wave | interleaved (lead) | gain" for n in TOKENS) + " |")
    print("|---" * 10 + "|")
    for (shape, dtype), first in FIRST_BLOCK.items():
        cells = []
        for i, tokens in enumerate(TOKENS):
            wave = found[f"{shape}-{dtype}-{tokens}-wave"]
            leads = {lead: found[f"{shape}-{dtype}-{tokens}-lead{lead:g}"] for lead in LEADS}
            lead, best = min(leads.items(), key=lambda one: float(one[1]["total_us"]["value"]))
            cells += [_pair(wave["slowdown"]["value"], first[2 * i])]
            cells += [_pair(best["slowdown"]["value"], first[2 * i + 1]) + f" ({lead:g})"]
            cells += [_pair(wave["total_us"]["value"] / best["total_us"]["value"], first[2 * i] / first[2 * i + 1])]
        print(f"| {shape} {dtype} | " + " | ".join(cells) + " |")


def choice(path: str) -> None:
    """Choose the order with the shortest predicted total, the original among them; what that was said to gain, and what it gains."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_replay(Path(path))["rows"]:
        head, _, order = row["schedule"].rpartition("-")
        groups.setdefault(head.removesuffix("-interleaved") if order.startswith("lead") else head, []).append(row)
    off, gains, slower = [], [], []
    for rows in groups.values():
        original = rows[0]
        best = min(rows, key=lambda row: float(row["predicted_us"]))
        claimed = original["predicted_us"] / best["predicted_us"]
        gains.append(original["total_us"]["value"] / best["total_us"]["value"])
        off.append(abs(claimed - gains[-1]))
        slower += [best["schedule"]] if gains[-1] < 0.99 else []
    print(
        f"{len(gains)} choices: measured gain {geometric_mean(gains):.3f} (geomean), {max(gains):.3f} at most; claimed off by "
        f"{100 * np.median(off):.2f} points (median), {100 * np.quantile(off, 0.9):.2f} (p90); over 1 % slower than the original: {slower}"
    )


def _pair(measured: float, first: float | None) -> str:
    return f"{measured:.3f}" + ("" if first is None else f" / {first:.3f}")


if __name__ == "__main__":
    {"measure": measure, "show": show, "choice": choice}[sys.argv[1]](*sys.argv[2:])
