"""The tiles of the MoE kernel with nothing stored, beside cuBLAS on dense matrices with the same operations (docs/moe.md).

``python tools/moe_gemm.py measure OUT.json``: on one GPU with PyTorch, a minute. ``python tools/moe_gemm.py show GEMM.json``: the table.

A rank of EP8 with balanced routing is a layer of an eighth of the experts on one rank. Dense: one matrix for each of the two linear
layers, as many rows as the rank has, SwiGLU left out. Kernel and cuBLAS are executed in random order; cuBLAS may accumulate FP8 fast, as
the kernel does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.kernels.moe.group import ExpertGroup, Gpus
from xstage_bench.kernels.moe.layer import DTYPES, Layer
from xstage_bench.kernels.moe.measure import plain_build
from xstage_bench.kernels.moe.order import Order
from xstage_bench.kernels.moe.suite import SHAPES
from xstage_bench.kernels.spread import spread
from xstage_bench.machine.environment import snapshot
from xstage_bench.workloads.moe import MAX_EP
from xstage_bench.workloads.shapes import moe_shape

TOKENS, REPETITIONS, WARM_UP = 4096, 9, 2
ORDER = Order("interleaved", lead=2.0)
Row = dict[str, Any]


def measure(out: str) -> None:
    """Time every shape and type, and keep what is there after each."""
    gpus, rng = Gpus((0,)), np.random.default_rng(0)
    document: Row = {"schema_version": 1, "kind": "measured", "environment": snapshot(), "gemm": []}
    for shape in SHAPES:
        for dtype in DTYPES:
            document["gemm"].append(_measured(gpus, rng, shape, dtype))
            write_json(Path(out), document)
    write_json(Path(out), document | {"environment_after": snapshot()})
    show(out)


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


def show(path: str) -> None:
    """Print the table of the page."""
    found = {(row["shape"], row["dtype"]): row for row in read_json(Path(path), dict[str, Any])["gemm"]}
    print("| shape | bf16 TFLOP/s | over cuBLAS | FP8 TFLOP/s | over cuBLAS |\n|---|---|---|---|---|")
    for shape in dict.fromkeys(shape for shape, _ in found):
        cells = []
        for dtype in DTYPES:
            row = found[shape, dtype]
            ratio = row["own_over_dense"]
            cells += [f"{row['own_tflops']:.0f}", f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"]
        print(f"| {shape} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    {"measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
