"""Stalls of the tensor cores: read off stamps of known truth, predicted, and judged over a suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import h200
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_rows import suite_row, suite_stalls

from xstage_bench.kernels.moe.build import STAMP, MoeBuild
from xstage_bench.kernels.moe.forecast import MoeTileTimes, predict_order
from xstage_bench.kernels.moe.group import Prepared
from xstage_bench.kernels.moe.layer import Layer, rows_of
from xstage_bench.kernels.moe.order import SECOND_BIT, Order, TaskLists
from xstage_bench.kernels.moe.stalls import EXECUTIONS, measure_stalls, measured, pairs_of, predicted
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.model.document import Model, load_model
from xstage_bench.workloads.shapes import moe_shape

LINEAR1_NS, LINEAR2_NS, START = 1000, 400, 1 << 60
TIMES = MoeTileTimes(linear1_ns=6_400, linear2_ns=3_200, linear1_rest_ns=1_400, linear2_rest_ns=3_100)


def lists_of(tiles: int, ctas: int = 3) -> TaskLists:
    """A CTA in the middle has nothing to do; the others a Linear-1 and a Linear-2 tile in turn."""
    words = np.tile(np.array([0, 1 << SECOND_BIT], dtype=np.uint32), tiles * (ctas - 1))
    return TaskLists(words, np.array([0, *([2 * tiles] * (ctas - 1)), 2 * tiles * (ctas - 1)]))


def stamps(lists: TaskLists, idle: np.ndarray, slower: int = 0, span: int = 300) -> np.ndarray:
    """Executions with this idle time before each task, negative where it begins before the one before it has ended."""
    out = np.zeros(lists.words.size, STAMP)
    for c in range(lists.ctas):
        at = START + 1000 * c
        for i in range(lists.first[c], lists.first[c + 1]):
            out["begin_ns"][i] = at + int(idle[i])
            at += max(int(idle[i]), 0) + (LINEAR2_NS if lists.second[i] else LINEAR1_NS) + slower
            out["computed_ns"][i] = at
            out["stored_ns"][i] = at + (span if lists.second[i] else 50)
    return out


def test_a_stall_is_the_idle_time_that_stores_add_per_linear2_tile() -> None:
    lists = lists_of(10)
    bare, idle = np.full(40, -20), np.full(40, -20)
    bare[0] = bare[20] = 0
    bare[3] = 40  # a dependency that is late in any case
    idle[3], idle[5], idle[27] = 140, 700, 1160
    idle[0] = idle[20] = 9_999  # before the first tile of a list: the start of the launch, nobody's stall
    found = measured(stamps(lists, idle, slower=30), stamps(lists, bare), lists)
    assert found["idle_us"] == pytest.approx((140 + 700 + 1160) / 20 / 1e3)
    assert found["idle_without_us"] == pytest.approx(40 / 20 / 1e3)
    assert found["between_us"] == pytest.approx(1960 / 20 / 1e3)
    assert found["within_us"] == pytest.approx(30 * 2 / 1e3)  # of two tiles for each Linear-2 tile
    assert found["measured_us"] == pytest.approx(found["between_us"] + found["within_us"])
    assert found["store_span_us"] == {"median": 0.3, "p90": 0.3}


@given(st.lists(st.integers(-50, 5_000), min_size=40, max_size=40), st.lists(st.integers(-50, 5_000), min_size=40, max_size=40))
def test_idle_time_and_products_make_up_each_list(with_stores: list[int], without: list[int]) -> None:
    lists = lists_of(10)
    one, other = stamps(lists, np.array(with_stores)), stamps(lists, np.array(without))
    found = measured(one, other, lists)
    length = [sum((s["computed_ns"][[19, 39]] - s["begin_ns"][[0, 20]]).tolist()) for s in (one, other)]
    more = (length[0] - length[1]) / 20 / 1e3
    assert found["measured_us"] == pytest.approx(more, abs=1e-3)
    assert measured(one, one, lists)["measured_us"] == 0


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(h200.MODEL)


def predict(model: Model, order: Order, combine: str, **changes: Any) -> dict[str, Any]:
    layer = Layer(moe_shape("keye-vl-2"), 512, 8, "fp8")
    return predicted(model, layer, rows_of(layer, 0), replace(TIMES, **changes), combine, 132, order)


def test_the_predicted_stall_is_what_the_order_and_the_bytes_make_of_it(model: Model) -> None:
    wave, spread = (predict(model, o, "bf16") for o in (Order("wave"), Order("interleaved", lead=1.0)))
    assert wave["predicted_us"] > spread["predicted_us"] > 0
    assert predict(model, Order("wave"), "f32")["predicted_us"] > 2 * wave["predicted_us"]
    # Tiles so long that each one's stores have left before the next one's: what stays is a warpgroup's own epilogue, beside the products.
    slow = predict(model, Order("wave"), "bf16", linear1_ns=300_000.0, linear2_ns=150_000.0)
    assert abs(slow["predicted_us"]) < 0.1
    assert slow["predicted_store_span_us"]["median"] == pytest.approx(TIMES.linear2_rest_ns / 1e3, rel=0.05)


def test_both_read_the_same_definition(model: Model) -> None:
    """Predicted times written into stamps give the predicted stall: no second definition."""
    layer = Layer(moe_shape("keye-vl-2"), 512, 8, "fp8")
    rows, order = rows_of(layer, 0), Order("wave")
    made = []
    for combine in ("bf16", "none"):
        found = predict_order(model, layer, rows, TIMES, combine, 132, order)
        one = np.zeros(found.schedule.task_count, STAMP)
        stored = np.fmax(found.compute_end_ns, found.store_end_ns)
        for name, ns in (("begin_ns", found.start_ns), ("computed_ns", found.compute_end_ns), ("stored_ns", stored)):
            one[name] = START + np.rint(ns).astype(np.int64)
        made.append(one)
    lists = TaskLists((found.schedule.phase == 1).astype(np.uint32) << SECOND_BIT, found.schedule.first)
    read, told = measured(made[0], made[1], lists), predict(model, order, "bf16")
    assert read["measured_us"] == pytest.approx(told["predicted_us"], abs=2e-3)
    assert read["within_us"] == pytest.approx(told["predicted_within_us"], abs=2e-3)
    assert read["store_span_us"]["p90"] == pytest.approx(told["predicted_store_span_us"]["p90"], abs=2e-3)


@dataclass
class StampedGroup:
    """Executes nothing: leaves stamps by the build and order of what was run last."""

    lists: TaskLists
    idle: dict[tuple[str, str], int]
    ran: list[tuple[str, str]]

    def with_stamps(self, prepared: Prepared) -> Prepared:
        return replace(prepared, build=replace(prepared.build, stamps=True))

    def run(self, prepared: Prepared) -> None:
        assert prepared.build.stamps
        self.ran.append((prepared.order.name, prepared.build.combine))

    def stamps(self, prepared: Prepared, rank: int) -> np.ndarray:
        assert rank == 0
        key = prepared.order.name, prepared.build.combine
        odd = 20 if self.ran.count(key) == 2 and key[1] == "f32" else 1  # one execution that is not to be relied on
        return stamps(self.lists, np.full(40, odd * self.idle[key]))


def test_a_case_executes_both_orders_with_stores_and_without_and_the_median_counts() -> None:
    lists = lists_of(10)
    group = StampedGroup(
        lists, {("wave-4", "f32"): 900, ("wave-4", "none"): 100, ("interleaved-2", "f32"): 300, ("interleaved-2", "none"): 200}, []
    )

    def ready(order: Order, combine: Any) -> Prepared:
        return Prepared(order, MoeBuild(combine=combine), False, (lists,), ())

    wave, chosen = Order("wave", 4), Order("interleaved", lead=2.0)
    prepared = {"wave 2": ready(Order("wave", 2), "f32"), "wave 4": ready(wave, "f32"), "wave alone": ready(wave, "none")}
    prepared |= {"chosen": ready(chosen, "f32"), "chosen alone": ready(chosen, "none")}
    forecast = {"wave": {"predicted_us": 2.0, "predicted_store_span_us": {"median": 1.0, "p90": 2.0}}}
    out = measure_stalls(group, prepared, forecast)  # type: ignore[arg-type]
    assert sorted(group.ran) == sorted([*group.idle] * EXECUTIONS)
    between = 38 / 20 / 1e3  # idle times within the two lists, per Linear-2 tile
    assert (out["wave"]["order"], out["chosen"]["order"]) == ("wave-4", "interleaved-2")
    assert out["wave"]["measured_us"] == pytest.approx(800 * between)
    assert out["chosen"]["measured_us"] == pytest.approx(100 * between)
    assert (out["wave"]["predicted_us"], out["chosen"]["predicted_us"]) == (2.0, None)
    assert pairs_of({"stalls": out}) == [(out["wave"]["measured_us"], 2.0)]


def test_the_summary_counts_stalls_that_were_predicted_within_a_microsecond() -> None:
    both = [suite_stalls((3.0, 3.9), (1.0, 2.5)), suite_stalls((0.2, 0.1), (0.1, None))]
    out = summarise({"rows": [*(suite_row(stalls=stalls) for stalls in both), suite_row()]})  # the last: a document from before
    assert out["rows"][0]["stalls"]["wave"] == {k: both[0]["wave"][k] for k in ("measured_us", "predicted_us", "store_span_us")}
    assert out["rows"][2]["stalls"] is None
    assert (out["overall"][0]["stalls"], out["overall"][0]["stalls_within_1_us"]) == (3, pytest.approx(2 / 3))
