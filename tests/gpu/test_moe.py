"""The MoE layer on two real GPUs: every result row once and right, in every variant and in the cases at the edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xstage_bench.kernels.moe.build import MoeBuild
from xstage_bench.kernels.moe.group import ExpertGroup, Gpus
from xstage_bench.kernels.moe.layer import Layer, slot_numbers
from xstage_bench.kernels.moe.order import Order
from xstage_bench.workloads.shapes import MoEShape

pytestmark = pytest.mark.gpu
EVEN, ODD = Order("interleaved"), Order("interleaved", lead=0.0, group_blocks=2)


def shape(hidden: int = 512, inter: int = 256, experts: int = 8, top_k: int = 2) -> MoEShape:
    return MoEShape(name="t", model="t", hidden=hidden, inter=inter, experts=experts, top_k=top_k, layers=1, grade="A", source="test")


@pytest.fixture(scope="module")
def gpus() -> Any:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceProperties(0)["major"] != 9:
        pytest.skip("the MoE kernel needs compute capability 9.0")
    return Gpus((0, 1))


def run(gpus: Any, layer: Layer, build: MoeBuild, order: Order = EVEN, *, reduce: bool = False, times: int = 1) -> Any:
    """Execute into poisoned slots, several times, and compare every row of every rank."""
    group = ExpertGroup(layer, gpus)
    prepared = group.prepare(order, build)
    for _ in range(times):
        group.poison()
        if build.dispatch:
            for rank in group.ranks:
                rank.gpu.use()
                rank.arrays["gathered"].fill(0)
                rank.gpu.synchronize()
        group.run(prepared, reduce=reduce)
        group.check_written(build)
    for rank in range(len(group.ranks)):
        group.worst_error(rank, build)
        if build.stamps:
            assert (group.stamps(prepared, rank)["word"] == prepared.lists[rank].words).all()
    return group


SMALL, SKEWED = Layer(shape(), 300, 2), Layer(shape(), 300, 2, routing="skewed")
#: The ring turns often, and the counters begin anew in each launch.
MANY = Layer(shape(hidden=1024, inter=512, experts=16, top_k=8), 2000, 2, "fp8", "skewed")
EDGES = {
    "one token": Layer(shape(experts=2), 1, 2),
    "one expert a rank": Layer(shape(experts=2, top_k=1), 700, 2),
    "all tokens to one expert, none to the other rank": Layer(shape(experts=8, top_k=1), 700, 2, routing="concentrated"),
    "empty experts": Layer(shape(experts=64, top_k=1), 5, 2),
    "masked slots": Layer(shape(), 300, 2, masked=0.7),
    "every token to all experts": Layer(shape(experts=8, top_k=8), 150, 2),
    "skewed": Layer(shape(experts=16, top_k=4), 400, 2, "fp8", "skewed"),
    "eight ranks emulated": Layer(shape(experts=16, top_k=4), 200, 8, "bf16", "skewed", 0.1),
}
BUILDS = [
    *(MoeBuild(fp8=fp8, combine=c, dispatch=d) for fp8 in (False, True) for c in ("bf16", "f32", "fp8") for d in (False, True)),
    *(MoeBuild(fp8=fp8, stages=4, stamps=True) for fp8 in (False, True)),
    MoeBuild(fp8=True, dispatch=True, stamps=True),
]
CASES = {
    **{str(o): (SMALL, MoeBuild(), o, 1) for o in (Order("serial"), Order("wave"), Order("wave", 1, group_blocks=1), EVEN, ODD)},
    **{str(b): (replace(SKEWED, dtype="fp8" if b.fp8 else "bf16"), b, EVEN, 1) for b in BUILDS},
    **{f"many tiles, {d=}": (MANY, MoeBuild(fp8=True, dispatch=d), Order("interleaved", lead=2.0), 5) for d in (False, True)},
    **{f"{n}, {c}": (e, MoeBuild(fp8=e.dtype == "fp8", combine=c), EVEN, 1) for n, e in EDGES.items() for c in ("bf16", "fp8")},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_right(gpus: Any, name: str) -> None:
    layer, build, order, times = CASES[name]
    run(gpus, layer, build, order, times=times)


@pytest.mark.parametrize("combine", ["bf16", "f32", "fp8"])
def test_the_reduction_weights_and_sums_each_tokens_rows(gpus: Any, combine: Any) -> None:
    from xstage_bench.kernels.moe.numbers import decode, decode_rows

    layer, build = Layer(shape(experts=4, top_k=3), 150, 2, masked=0.2), MoeBuild(combine=combine)
    group = run(gpus, layer, build, Order("wave"), reduce=True)
    for rank in group.ranks:
        rank.gpu.use()
        rows = decode_rows(rank.slots(rank.rank, build)).get()[slot_numbers(layer)[rank.rank]]
        weights = layer.weights()[rank.rank][:, :, None]
        expected = np.where(weights > 0, rows * weights, 0).sum(axis=1)
        got = decode(rank.arrays["out"]).get()
        assert np.linalg.norm(got - expected) < 5e-3 * np.linalg.norm(expected)


def test_a_stamped_execution_gives_the_stall_of_both_orders(gpus: Any) -> None:
    from xstage_bench.kernels.moe.measure import case_variants, prepare
    from xstage_bench.kernels.moe.stalls import measure_stalls

    layer = Layer(shape(experts=16, top_k=4), 600, 8, "fp8", "skewed")
    group = ExpertGroup(layer, gpus)
    variants = case_variants(layer, group.ranks[0].rows, EVEN, "f32", gpus.sms, search=False)
    found = measure_stalls(group, prepare(group, variants), {})
    assert set(found) == {"wave", "chosen"}
    for one in found.values():
        assert one["idle_us"] >= 0
        assert one["between_us"] == one["idle_us"] - one["idle_without_us"]
        assert 0 < one["store_span_us"]["median"] <= one["store_span_us"]["p90"] < 1e3
        assert abs(one["within_us"]) < 1e3
