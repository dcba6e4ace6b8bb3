"""The MoE layer on two real GPUs: every result row once and right, in every variant and in the cases at the edge."""

from __future__ import annotations

from functools import cache
from typing import Any

import h200
import numpy as np
import pytest

from xstage_bench.fused.moe.build import CLAIMS, Build, Claim
from xstage_bench.fused.moe.layer import Layer, Slots, slot_numbers
from xstage_bench.fused.moe.order import Order
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.pipeline import find_model
from xstage_bench.workloads.shapes import MoEShape

pytestmark = pytest.mark.gpu
PROFILE = h200.MODEL


def shape(hidden: int = 512, inter: int = 256, experts: int = 8, top_k: int = 2) -> MoEShape:
    return MoEShape(name="t", model="t", hidden=hidden, inter=inter, experts=experts, top_k=top_k, layers=1, grade="A", source="test")


@pytest.fixture(scope="module")
def gpus() -> Any:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceProperties(0)["major"] != 9:
        pytest.skip("the MoE kernel needs compute capability 9.0")
    from xstage_bench.fused.moe.group import Gpus

    return Gpus((0, 1))


@cache
def believed(sms: int) -> Stage:
    return stage_at(find_model(PROFILE), sms, 4)


def run(gpus: Any, layer: Layer, build: Build, order: Order, *, reduce: bool = False, stagger_ns: int = 0, slots: Slots = "expert") -> Any:
    from xstage_bench.fused.moe.group import Group

    group = Group(layer, gpus)
    prepared = group.prepare(order, build, stage=believed(gpus.sms), stagger_ns=stagger_ns, slots=slots)
    group.poison()
    if build.dispatch:
        for rank in group.ranks:
            gpus.use(rank.device)
            rank.arrays["gathered"].fill(0)
    group.run(prepared, reduce=reduce)
    for rank in range(len(group.ranks)):
        group.worst_error(rank, build, slots=slots)
    have, want = group.written(build)
    assert have == want
    if build.stamps:
        for rank, lists in enumerate(prepared.lists):
            assert (group.stamps(prepared, rank)["word"] == lists.words).all()
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
    *(Build(fp8=fp8, publish="bulk", stages=4) for fp8 in (False, True)),
    *(Build(fp8=fp8, combine=c, row_store="bulk") for fp8 in (False, True) for c in ("bf16", "f32", "fp8")),
    *(Build(fp8=fp8, combine=c, presum=True) for fp8 in (False, True) for c in ("bf16", "f32")),
    *(
        Build(fp8=fp8, presum=True, publish=p, dispatch=d)
        for fp8, p, d in ((False, "elsewhere", True), (True, "bulk", True), (False, "bulk", False))
    ),
    *(Build(fp8=fp8, combine="fp8", dispatch=True, publish=p) for fp8, p in ((False, "elsewhere"), (True, "bulk"))),
    *(Build(fp8=fp8, combine=c, claim=claim) for fp8 in (False, True) for c in ("bf16", "f32") for claim in CLAIMS[1:]),
    *(Build(claim=claim, publish="bulk", row_store="bulk", stamps=True) for claim in CLAIMS[1:]),
    *(Build(fp8=fp8, claim=claim, publish="elsewhere") for fp8 in (False, True) for claim in CLAIMS[1:]),
    *(Build(fp8=True, claim=claim, publish="elsewhere", dispatch=True) for claim in CLAIMS[1:]),
]


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.name)
def test_every_order_is_right(gpus: Any, order: Order, claim: Claim) -> None:
    run(gpus, Layer(shape(), 300, 2), Build(claim=claim), order)


def test_a_layer_of_many_tiles_is_right_when_claimed_again_and_again(gpus: Any) -> None:
    """The ring turns often, the counters begin anew in each launch, and which CTA gets which tile differs from launch to launch."""
    from xstage_bench.fused.moe.group import Group

    layer = Layer(shape(hidden=1024, inter=512, experts=16, top_k=8), 6000, 2, "fp8", "skewed")
    group = Group(layer, gpus)
    for build in (Build(fp8=True, claim=claim, publish=publish) for claim in CLAIMS[1:] for publish in ("release", "elsewhere")):
        prepared = group.prepare(Order("interleaved", lead=2.0), build, stage=believed(gpus.sms))
        for repetition in range(20):
            if repetition % 10 == 9:
                group.poison()
            group.run(prepared)
            if repetition % 10 == 9:
                assert len({*group.written(build)}) == 1
        for rank in range(2):
            group.worst_error(rank, build, 6)


def test_a_stagger_delays_the_ctas_one_after_another(gpus: Any) -> None:
    from xstage_bench.errors import UsageError
    from xstage_bench.fused.moe.build import REPORT
    from xstage_bench.fused.moe.group import Group

    layer = Layer(shape(), 300, 2)
    run(gpus, layer, Build(), Order("interleaved"), stagger_ns=30_000)
    group = Group(layer, gpus)
    prepared = group.prepare(Order("interleaved"), Build(), stagger_ns=200_000)
    group.run(prepared)
    report = np.frombuffer(prepared.uploaded[0]["report"].get().tobytes(), REPORT)
    late = report["begin_ns"].astype(np.int64) - int(report["begin_ns"].min())
    assert np.abs(late - 200_000 * np.arange(late.size) / late.size).max() < 20_000
    with pytest.raises(UsageError, match="stagger"):
        group.prepare(Order("interleaved"), Build(), stagger_ns=-1)
    with pytest.raises(UsageError, match="paced"):
        group.prepare(Order("interleaved"), Build(claim="paced"))


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:7]))
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


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("name", EDGES)
def test_edges(gpus: Any, name: str, claim: Claim) -> None:
    layer = EDGES[name]
    run(gpus, layer, Build(fp8=layer.dtype == "fp8", claim=claim, publish="elsewhere"), Order("interleaved"))


@pytest.mark.parametrize("option", [{"combine": "fp8"}, {"presum": True}], ids=["fp8 rows", "presum"])
@pytest.mark.parametrize("name", EDGES)
def test_edges_with_options(gpus: Any, name: str, option: dict[str, Any]) -> None:
    layer = EDGES[name]
    run(gpus, layer, Build(fp8=layer.dtype == "fp8", **option), Order("interleaved"))


@pytest.mark.parametrize("slots", ["expert", "token"])
@pytest.mark.parametrize("combine", ["bf16", "f32", "fp8"])
def test_the_reduction_weights_and_sums_each_tokens_rows(gpus: Any, combine: Any, slots: Slots) -> None:
    from xstage_bench.fused.moe.numbers import decode, decode_rows

    layer, build = Layer(shape(experts=4, top_k=3), 150, 2, masked=0.2), Build(combine=combine)
    group = run(gpus, layer, build, Order("wave"), reduce=True, slots=slots)
    for rank in group.ranks:
        gpus.use(rank.device)
        rows = decode_rows(rank.slots(rank.rank, build)).get()[slot_numbers(layer, slots)[rank.rank]]
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


def test_a_stamped_execution_gives_the_stall_of_both_orders(gpus: Any) -> None:
    from xstage_bench.fused.moe.group import Group
    from xstage_bench.fused.moe.measure import case_variants, prepare
    from xstage_bench.fused.moe.stalls import measure_stalls

    layer = Layer(shape(experts=16, top_k=4), 600, 8, "fp8", "skewed")
    group = Group(layer, gpus)
    variants = case_variants(layer, group.ranks[0].rows, Order("interleaved"), "f32", gpus.sms, search=False)
    found = measure_stalls(group, prepare(group, variants), {})
    assert set(found) == {"wave", "chosen"}
    for one in found.values():
        assert one["idle_us"] >= 0
        assert one["between_us"] == one["idle_us"] - one["idle_without_us"]
        assert 0 < one["store_span_us"]["median"] <= one["store_span_us"]["p90"] < 1e3
        assert abs(one["within_us"]) < 1e3
