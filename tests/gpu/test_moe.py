"""The MoE layer on two real GPUs: every result row once and right, in every variant and in the cases at the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xstage_bench.fused.moe.build import Build
from xstage_bench.fused.moe.layer import Layer
from xstage_bench.fused.moe.order import Order
from xstage_bench.workloads.shapes import MoEShape

pytestmark = pytest.mark.gpu


def shape(hidden: int = 512, inter: int = 256, experts: int = 8, top_k: int = 2) -> MoEShape:
    return MoEShape(name="t", model="t", hidden=hidden, inter=inter, experts=experts, top_k=top_k, layers=1, grade="A", source="test")


@pytest.fixture(scope="module")
def gpus() -> Any:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceProperties(0)["major"] != 9:
        pytest.skip("the MoE kernel needs compute capability 9.0")
    from xstage_bench.fused.moe.group import Gpus

    return Gpus((0, 1))


def run(gpus: Any, layer: Layer, build: Build, order: Order, *, reduce: bool = False) -> Any:
    from xstage_bench.fused.moe.group import Group

    group = Group(layer, gpus)
    prepared = group.prepare(order, build)
    group.poison()
    if build.dispatch:
        for rank in group.ranks:
            gpus.use(rank.device)
            rank.arrays["gathered"].fill(0)
    group.run(prepared, reduce=reduce)
    for rank in range(len(group.ranks)):
        group.worst_error(rank, build)
    have, want = group.written(build)
    assert have == want
    return group


ORDERS = [
    Order("serial"),
    Order("wave"),
    Order("wave", 1, group_blocks=1),
    Order("interleaved"),
    Order("interleaved", lead=0.0, group_blocks=2),
]
BUILDS = [
    *(Build(fp8=fp8, combine=c) for fp8 in (False, True) for c in ("bf16", "f32", "fp8")),
    *(Build(fp8=fp8, publish=p) for fp8 in (False, True) for p in ("elsewhere", "bulk")),
    *(Build(fp8=fp8, dispatch=True) for fp8 in (False, True)),
    *(Build(fp8=fp8, combine=c, row_store="bulk") for fp8 in (False, True) for c in ("bf16", "f32", "fp8")),
    *(Build(fp8=fp8, combine=c, presum=True) for fp8 in (False, True) for c in ("bf16", "f32")),
    *(
        Build(fp8=fp8, presum=True, publish=p, dispatch=d)
        for fp8, p, d in ((False, "elsewhere", True), (True, "bulk", True), (False, "bulk", False))
    ),
    *(Build(fp8=fp8, combine="fp8", dispatch=True, publish=p) for fp8, p in ((False, "elsewhere"), (True, "bulk"))),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.name)
def test_every_order_is_right(gpus: Any, order: Order) -> None:
    run(gpus, Layer(shape(), 300, 2), Build(), order)


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:6]))
def test_every_build_is_right(gpus: Any, build: Build) -> None:
    run(gpus, Layer(shape(), 300, 2, "fp8" if build.fp8 else "bf16", "skewed"), build, Order("interleaved"))


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


@pytest.mark.parametrize("name", EDGES)
def test_edges(gpus: Any, name: str) -> None:
    layer = EDGES[name]
    run(gpus, layer, Build(fp8=layer.dtype == "fp8"), Order("interleaved"))


@pytest.mark.parametrize("option", [{"combine": "fp8"}, {"presum": True}], ids=["fp8 rows", "presum"])
@pytest.mark.parametrize("name", EDGES)
def test_edges_with_options(gpus: Any, name: str, option: dict[str, Any]) -> None:
    layer = EDGES[name]
    run(gpus, layer, Build(fp8=layer.dtype == "fp8", **option), Order("interleaved"))


@pytest.mark.parametrize("combine", ["bf16", "f32", "fp8"])
def test_the_reduction_weights_and_sums_each_tokens_rows(gpus: Any, combine: Any) -> None:
    from xstage_bench.fused.moe.numbers import decode, decode_rows

    layer, build = Layer(shape(experts=4, top_k=3), 150, 2, masked=0.2), Build(combine=combine)
    group = run(gpus, layer, build, Order("wave"), reduce=True)
    for rank in group.ranks:
        gpus.use(rank.device)
        rows = decode_rows(rank.slots(rank.rank, build).reshape(3 * layer.tokens, -1)).get().reshape(layer.tokens, 3, -1)
        weights = layer.weights()[rank.rank][:, :, None]
        expected = np.where(weights > 0, rows * weights, 0).sum(axis=1)
        got = decode(rank.arrays["out"]).get()
        assert np.linalg.norm(got - expected) < 5e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("combine", ["bf16", "f32"])
def test_sums_before_sending_give_the_same_layer(gpus: Any, combine: Any) -> None:
    from xstage_bench.fused.moe.numbers import decode

    layer = Layer(shape(experts=8, top_k=4), 150, 2, masked=0.2)
    outs = []
    for presum in (False, True):
        group = run(gpus, layer, Build(combine=combine, presum=presum), Order("interleaved"), reduce=True)
        outs.append([])
        for rank in group.ranks:
            gpus.use(rank.device)
            outs[-1].append(decode(rank.arrays["out"]).get())
    for usual, summed in zip(*outs, strict=True):
        assert np.linalg.norm(summed - usual) < 1e-2 * np.linalg.norm(usual)


def test_sums_before_sending_can_be_repeated(gpus: Any) -> None:
    """What one execution has added and counted is not there in the next one."""
    from xstage_bench.fused.moe.group import Group

    group = Group(Layer(shape(experts=8, top_k=4), 300, 2, routing="skewed"), gpus)
    build = Build(presum=True)
    prepared = group.prepare(Order("interleaved"), build)
    for _ in range(3):
        group.poison()
        group.run(prepared)
        assert all(group.worst_error(rank, build) < 1e-2 for rank in range(2))
        have, want = group.written(build)
        assert have == want
