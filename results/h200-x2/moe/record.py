"""Measure beside the MoE suite on GPUs: its tiles alone beside cuBLAS, and the skeletons of its cases by replay.

``page.py gemm OUT.json``: on one GPU with PyTorch, a minute. A rank of EP8 with balanced routing is a layer of an eighth of the experts on
one rank. Dense: one matrix for each of the two linear layers, as many rows as the rank has, SwiGLU left out.
``page.py skeletons FOLDER [TOKENS [COMBINES [COMPUTE]]]``: all shapes, types and routings on two GPUs, EP8 emulated; 2048 bf16,f32 mma.
``page.py attach MOE.json REPLAY.json...``: fill in each row's skeleton_gain; the first replay that has it counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from xstage_bench.device.backend import resolve_backend
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.kernels.moe.group import ExpertGroup, Gpus
from xstage_bench.kernels.moe.layer import DTYPES, Layer
from xstage_bench.kernels.moe.measure import plain_build
from xstage_bench.kernels.moe.order import Order
from xstage_bench.kernels.moe.skeleton import skeleton_schedules, with_skeletons
from xstage_bench.kernels.moe.suite import SHAPES, suite_cases
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.kernels.spread import spread
from xstage_bench.machine.environment import snapshot
from xstage_bench.measure.replay_document import DOCUMENT, read_replay
from xstage_bench.measure.tasks import measure_tasks
from xstage_bench.workloads.moe import MAX_EP
from xstage_bench.workloads.shapes import moe_shape

TOKENS, REPETITIONS, WARM_UP = 4096, 9, 2
ORDER = Order("interleaved", lead=2.0)
Row = dict[str, Any]


def gemm(out: str) -> None:
    """Time every shape and type, and keep what is there after each."""
    gpus, rng = Gpus((0,)), np.random.default_rng(0)
    document: Row = {"schema_version": 1, "kind": "measured", "environment": snapshot(), "gemm": []}
    for shape in SHAPES:
        for dtype in DTYPES:
            document["gemm"].append(_measured(gpus, rng, shape, dtype))
            write_json(Path(out), document)
    write_json(Path(out), document | {"environment_after": snapshot()})


def rank_of(shape: str, dtype: str, tokens: int = TOKENS) -> Layer:
    """Return one rank of EP8 as a layer by itself: its experts, and as many rows."""
    whole = moe_shape(shape)
    local = whole.experts // MAX_EP
    top_k = min(whole.top_k, local)
    return Layer(msgspec.structs.replace(whole, experts=local, top_k=top_k), tokens * whole.top_k // top_k, 1, dtype)


def _measured(gpus: Gpus, rng: np.random.Generator, shape: str, dtype: str) -> Row:
    layer = rank_of(shape, dtype)
    group = ExpertGroup(layer, gpus)
    own = group.prepare(ORDER, plain_build(layer, group.ranks[0].rows, "none", gpus.sms))
    dense = _dense(layer)
    us: dict[str, list[float]] = {"own": [], "dense": []}
    clocks = []
    for repetition in range(REPETITIONS + WARM_UP):
        for name in rng.permutation(list(us)):
            if name == "own":
                (times,) = group.run(own)
                one = times.stored_ns / 1e3
                clocks.append(times.sm_clock_mhz)
            else:
                one = dense()
            if repetition >= WARM_UP:
                us[name].append(one)
    ratios = np.array(us["dense"]) / np.array(us["own"])
    flops = 6.0 * layer.tokens * layer.shape.top_k * layer.shape.hidden * layer.shape.inter
    found = {name: spread(np.array(one)) for name, one in us.items()}
    return {
        "shape": shape,
        "dtype": dtype,
        "tokens_per_rank": TOKENS,
        "own_us": found["own"],
        "dense_us": found["dense"],
        "own_tflops": flops / found["own"]["value"] / 1e6,
        "dense_tflops": flops / found["dense"]["value"] / 1e6,
        "own_over_dense": spread(ratios),
        "sm_clock_mhz": float(np.median(clocks)),
    }


def _dense(layer: Layer) -> Callable[[], float]:
    """Return what multiplies both linear layers' matrices once and says how many us that took."""
    import torch

    s, rows = layer.shape, layer.tokens * layer.shape.top_k
    x1, w1, x2, w2 = (
        torch.randn(*size, device="cuda:0", dtype=torch.bfloat16) / 8
        for size in ((rows, s.hidden), (2 * s.inter, s.hidden), (rows, s.inter), (s.hidden, s.inter))
    )
    if layer.dtype == "fp8":
        x1, w1, x2, w2 = (x.to(torch.float8_e4m3fn) for x in (x1, w1, x2, w2))
    scale = torch.ones((), device="cuda:0")

    def product(a: Any, b: Any) -> Any:
        if layer.dtype == "fp8":
            return torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True)
        return torch.matmul(a, b.t())

    def once() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        product(x1, w1)
        product(x2, w2)
        end.record()
        torch.cuda.synchronize()
        return float(1e3 * begin.elapsed_time(end))

    return once


def skeletons(
    folder: str, tokens: str = "2048", combines: str = "bf16,f32", compute: str = "mma", processes: str = "1", repetitions: str = "5"
) -> None:
    """Execute and write the document; the schedules are made anew from their names."""
    cases = suite_cases(tokens=[int(n) for n in tokens.split(",")])
    schedules = list(skeleton_schedules(cases, combines.split(",")))
    print(f"{len(schedules)} schedules, {max(s.task_count for s in schedules)} tasks at most", file=sys.stderr, flush=True)
    document = measure_tasks(
        resolve_backend("cuda", "gpu"), schedules, compute="mma" if compute == "mma" else "spin", repetitions=int(repetitions),
        processes=int(processes), say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / DOCUMENT, document)


def attach(path: str, *replays: str) -> None:
    """Fill in the suite's document, and print how much of its skeleton's gain each row reaches."""
    document = with_skeletons(read_json(Path(path), dict[str, Any]), [read_replay(Path(one)) for one in replays])
    write_json(Path(path), document)
    for row in summarise(document)["rows"]:
        key = "|".join(str(row[k]) for k in ("shape", "dtype", "routing", "tokens_per_rank", "combine"))
        skeleton = row["skeleton_gain"]
        print(f"{key:45s} kernel {row['gain']:.3f}" + (f", skeleton {skeleton:.3f}" if skeleton else f": {row['skeleton_reason']}"))
