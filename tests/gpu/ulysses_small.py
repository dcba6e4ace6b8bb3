"""Every way to do a small attention and its All-to-All, once; the GPU tests run it by itself and under compute-sanitizer.

python tests/gpu/ulysses_small.py ROWS
"""

from __future__ import annotations

import sys
from typing import Any

from xstage_bench.kernels.attention import variants
from xstage_bench.kernels.attention.attention import FLAGS, STORES, best_build
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.tile_order import ORDERS


def outcomes(gpus: dict[int, AttentionGpu], problem: Problem, *, everything: bool = True) -> dict[str, dict[str, object]]:
    """What `Rig.verify` says of each variant; with `everything` also of every order and of the serial ways."""
    rig = Rig(gpus, Placing(problem, (0, 1)), seed=problem.seq)
    try:
        chosen = []
        for store in STORES:
            build = best_build(problem.head_dim, store, problem.seq, problem.local_heads, 132)
            chosen += [variants.fused(rig, build, order, f) for order in (ORDERS if everything else ["row-major"]) for f in FLAGS]
        if everything:
            chosen += [variants.then_push(rig, build), variants.then_copy_engine(rig, build), variants.beside_copying_sms(rig, build, 8)]
        return {v.name: _outcome(rig, v) for v in chosen}
    finally:
        rig.close()


def _outcome(rig: Rig, variant: variants.AttentionVariant) -> dict[str, object]:
    found = rig.verify(variant.queue)
    return {**found, "late": found["late"] or variant.late()}


def wrong_of(found: dict[str, Any]) -> dict[str, Any]:
    """Those with a row that is wrong, missing, in a place where none belongs, or late."""
    return {n: f for n, f in found.items() if f["unwritten"] or f["stray"] or f["late"] or not all(v.ok for v in f["ranks"])}


def open_gpus() -> dict[int, AttentionGpu]:
    """Both GPUs, reaching each other."""
    gpus = {device: AttentionGpu(device) for device in (0, 1)}
    for gpu in gpus.values():
        gpu.reach({0, 1})
    return gpus


if __name__ == "__main__":
    found = outcomes(open_gpus(), Problem(4, 2, 128, int(sys.argv[1]), 2))
    print(f"{len(found)} variants, wrong: {wrong_of(found)}")
    sys.exit(bool(wrong_of(found)))
