"""The MoE layer as tasks, the choice of its order, and the summary of a suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import WaivedError
from xstage_bench.fused.moe.build import STAMP, ring_stages
from xstage_bench.fused.moe.forecast import (
    CALM,
    TileTimes,
    as_tasks,
    asked_of_link,
    busiest,
    calm,
    choose_order,
    pick,
    predict_order,
    tile_times,
)
from xstage_bench.fused.moe.layer import Layer, rows_of, tiles_per_sm
from xstage_bench.fused.moe.measure import PUBLISH, Variant, case_variants, plain_build
from xstage_bench.fused.moe.order import Order, TaskLists, order_named, task_lists
from xstage_bench.fused.moe.run import devices_of
from xstage_bench.fused.moe.suite import SHAPES, suite_cases
from xstage_bench.fused.moe.summary import summarise
from xstage_bench.model.stage import stage_at
from xstage_bench.pipeline import find_model
from xstage_bench.workloads.shapes import moe_shape

PROFILE = h200.MODEL
TIMES = TileTimes(linear1_ns=10_000, linear2_ns=4_000, linear1_rest_ns=2_000, linear2_rest_ns=3_000)


@pytest.mark.parametrize("combine", ["bf16", "f32", "fp8"])
@pytest.mark.parametrize("kind", ["serial", "wave", "interleaved"])
def test_the_tasks_carry_the_bytes_and_the_dependencies_of_the_layer(kind: str, combine: str) -> None:
    layer = Layer(moe_shape("keye-vl-2"), 512, 8, "fp8", "skewed", masked=0.1)
    rows = rows_of(layer, 0)
    lists = task_lists(layer, rows, Order(kind), 132)
    tasks = as_tasks(layer, 0, rows, lists, TIMES, combine, 1980.0)
    wide = {"bf16": 2, "f32": 4, "fp8": 1}[combine]
    second = tasks.phase == 1
    away = int((rows.owner > 0).sum()) * layer.shape.hidden * wide
    # Whole warp-stores of 512 bytes: four rows of FP8, two of bf16 or one of float32; of a block's tile at most the rest is left out.
    left_out = {"bf16": 1, "f32": 0, "fp8": 3}[combine]
    assert away - left_out * rows.blocks * layer.shape.hidden * wide <= tasks.volume_bytes <= away
    assert (tasks.signals_of_event == layer.shape.linear1_tiles).all()
    assert (tasks.waits_for[second] == lists.block[second]).all()
    assert set(tasks.compute_cycles[second]) == {round(4_000 * 1.98)}
    assert (tasks.remote_bytes <= tasks.bytes).all()


def test_tile_times_are_read_off_stamps_with_waits_and_first_tasks_left_out() -> None:
    words = np.array([0, 1, 1 << 31, 1 << 31 | 1] * 50, dtype=np.uint32)
    lists = TaskLists(words, np.array([0, 100, 200]))
    stamps = np.zeros(200, STAMP)
    step = np.where(lists.second, 400, 1000)
    step[10::20] += 5000  # now and then a tile waits for another SM
    stamps["computed_ns"] = 10_000 + np.concatenate([np.cumsum(step[:100]), 777_777 + np.cumsum(step[100:])])
    stamps["stored_ns"] = stamps["computed_ns"] + np.where(lists.second, 30, 20)
    assert tile_times(stamps, lists) == TileTimes(linear1_ns=1000, linear2_ns=400, linear1_rest_ns=20, linear2_rest_ns=30)


def test_waves_stay_where_every_lead_is_surely_predicted_to_be_slower() -> None:
    assert pick({"wave-4": 100.0, "interleaved-1": 105.1}, ["wave-4"]) == "wave-4"
    assert pick({"wave-4": 100.0, "interleaved-1": 104.9}, ["wave-4"]) == "interleaved-1"
    assert pick({"wave-4": 100.0, "interleaved-1": 100.0, "interleaved-2": 103.1}, ["wave-4"]) == "interleaved-1"
    assert pick({"wave-2": 110.0, "wave-4": 100.0, "wave-8": 101.0, "interleaved-1": 105.5}, ["wave-2", "wave-4", "wave-8"]) == "wave-4"
    assert pick({"wave-4": 100.0, "interleaved-1": 90.0, "interleaved-2": 92.6}, ["wave-4"]) == "interleaved-2"
    assert pick({"wave-4": 100.0, "interleaved-1": 90.0, "interleaved-2": 92.8}, ["wave-4"]) == "interleaved-1"


@given(
    st.dictionaries(st.sampled_from(["interleaved-1", "interleaved-2", "interleaved-4", "interleaved-8"]), st.floats(1, 1e6)),
    st.floats(1, 1e6),
)
@settings(max_examples=200)
def test_what_is_picked_is_never_surely_predicted_to_be_slower(predicted: dict[str, float], usual: float) -> None:
    predicted = {"wave-4": usual, "wave-8": 1.1 * usual, **predicted}
    picked = predicted[pick(predicted, ["wave-4", "wave-8"])]
    assert picked <= 1.05 * 1.0305 * usual
    leads = [ns for name, ns in predicted.items() if name.startswith("interleaved")]
    assert picked <= 1.0305 * min([*leads, 1e7])


def test_a_layer_takes_as_long_as_the_rank_with_most_rows() -> None:
    """With skewed routing one rank may have three times the rows of another."""
    layer = Layer(moe_shape("keye-vl-2"), 512, 8, "fp8", "skewed")
    ranks = sorted((rows_of(layer, rank) for rank in range(8)), key=lambda rows: int(rows.block_rows.sum()))
    assert ranks[-1].block_rows.sum() > 1.5 * ranks[0].block_rows.sum()
    model, order = find_model(PROFILE), Order("interleaved", lead=2.0)
    few, many = (
        predict_order(model, layer, rows, TIMES, "bf16", 132, order, rank).total_ns for rank, rows in enumerate((ranks[0], ranks[-1]))
    )
    assert busiest([ranks[0], ranks[-1]]) == 1
    assert choose_order(model, layer, [ranks[0], ranks[-1]], TIMES, "bf16", 132).predicted_ns[order.name] == many > 1.2 * few


@given(st.sampled_from([Order("serial"), Order(), Order("wave", 4), Order("interleaved"), Order("interleaved", lead=0.5)]))
def test_an_order_is_found_by_its_name(order: Order) -> None:
    assert order_named(order.name) == order


def test_the_suite_is_the_96_configurations() -> None:
    assert len(suite_cases()) == 96
    assert len({c.key("bf16") for c in suite_cases()}) == 96
    assert sum(c.searched for c in suite_cases()) == 12
    assert len(SHAPES) == 8


def test_a_case_times_what_it_is_judged_against() -> None:
    layer = Layer(moe_shape("dsv4-flash"), 512, 8, "fp8")
    rows = rows_of(layer, 0)
    variants = {v.name: v for v in case_variants(layer, rows, Order("interleaved", lead=2.0), "bf16", 132, search=False)}
    waves = [v.order.experts_per_wave for name, v in variants.items() if name.startswith("wave ") and name != "wave alone"]
    assert len(set(waves)) == len(waves) >= 2
    assert all(layer.local_experts % n == 0 for n in waves if n is not None)
    assert variants["chosen alone"].build.combine == "none"
    assert variants["chosen local"].local
    assert {v.build.stages for name, v in variants.items() if "other ring" in name} == {4}
    assert {v.build.stages for name, v in variants.items() if "other ring" not in name} == {5}
    assert {v.slots for v in variants.values()} == {"expert"}
    assert {v.build.fp8 for v in variants.values()} == {True}
    assert not {"chosen dispatch", "wave dispatch"} & set(variants)
    options = {v.name: v for v in case_variants(layer, rows, Order("interleaved"), "bf16", 132, search=False, options=True)}
    assert options["chosen fp8 rows"].build.combine == "fp8"
    assert options["chosen presum"].build.presum
    assert options["chosen bulk rows"].build.row_store == "bulk"
    assert [name for name, v in options.items() if v.slots == "token"] == ["chosen slots by token"]
    assert options["chosen dispatch"].build.dispatch
    assert options["wave dispatch"].build.dispatch
    assert {options[f"chosen publish {how}"].build.publish for how in ("release", "bulk")} == {"release", "bulk"}
    searched = case_variants(layer, rows, Order("interleaved"), "f32", 132, search=True)
    assert sum(v.name.startswith("search ") for v in searched) == 6
    assert {v.build.combine for v in searched} == {"f32", "none"}


def test_the_options_beyond_the_paper_are_timed_where_asked_for_and_known() -> None:
    layer = Layer(moe_shape("dsv4-flash"), 512, 8, "fp8")
    rows = rows_of(layer, 0)
    chosen, stage = Order("interleaved", lead=2.0), stage_at(find_model(PROFILE), 132, 4)

    def names(**options: Any) -> dict[str, Variant]:
        return {v.name: v for v in case_variants(layer, rows, chosen, "bf16", 132, search=False, **options)}

    usual, some, every = names(), names(options=True), names(options=True, times=TIMES, stage=stage)
    assert "dynamic" in set(some) - set(usual)
    assert set(every) - set(some) == {"paced", "chosen staggered"}
    assert {v.order for name, v in every.items() if name not in usual and name != "wave dispatch"} == {chosen}
    assert {v.build.publish for v in usual.values()} == {PUBLISH}
    assert (every["dynamic"].build.claim, every["paced"].build.claim, every["paced"].stage) == ("dynamic", "paced", stage)
    assert every["chosen staggered"].stagger_ns == 14_000
    assert every["chosen staggered"].build == every["chosen"].build


def test_ranks_get_a_gpu_each_where_there_are_enough() -> None:
    assert devices_of(8, 8) == tuple(range(8))
    assert devices_of(2, 8) == (0, 1)
    assert devices_of(8, 4) == (0, 1)  # emulated
    with pytest.raises(WaivedError, match="even an emulated group needs two"):
        devices_of(8, 1)


def row(**us: float) -> dict[str, Any]:
    variants = {name.replace("_", " "): {"arrived_us": {"value": value}} for name, value in us.items()}
    head = {"shape": "hy3", "dtype": "fp8", "combine": "bf16", "routing": "skewed", "tokens_per_rank": 512, "ep": 8, "emulated": True}
    return {**head, "variants": variants, "chosen": "interleaved-2", "unfused_us": None, "drain_us": 60.0, "flops": 10**12}


def test_the_summary_compares_with_the_best_wave_and_with_the_bound() -> None:
    rows = [
        row(wave_2=130, wave_4=120, wave_alone=90, chosen=100, chosen_alone=95, chosen_local=97, search_serial=110),
        row(wave_2=100, wave_alone=50, wave_dispatch=70, chosen=125, chosen_alone=50, chosen_local=52),
    ]
    out = summarise({"rows": rows})
    first, second = out["rows"]
    assert (first["gain"], first["experts_per_wave"], first["bound_us"]) == (1.2, 4, 90)
    assert first["regret"] == 0
    assert second["regret"] is None
    assert second["bound_us"] == 60
    overall = out["overall"][0]
    assert overall["geomean_gain"] == pytest.approx((1.2 * 0.8) ** 0.5)
    assert (overall["waves_kept"], overall["geomean_interleaving_gain_over_usual_wave"]) == (0, None)  # the usual wave is not known here
    assert overall["median_over_alone_where_compute_limits"] == pytest.approx(100 / 95)  # the second row is limited by its drain


def test_where_waves_are_kept_interleaving_gains_nothing() -> None:
    us = {"wave_2": 150, "wave_4": 100, "wave_alone": 90, "chosen_alone": 90, "chosen_local": 95}
    one = {"order": "wave-2", "measured_us": 1, "predicted_us": 1, "store_span_us": {}}
    usual = {"stalls": {"wave": one, "chosen": one}}
    kept = row(**us, chosen=100) | usual | {"chosen": "wave-4"}
    changed = row(**us, chosen=120) | usual
    out = summarise({"rows": [kept, changed]})
    assert [r["interleaves"] for r in out["rows"]] == [False, True]
    assert [r["gain_over_usual_wave"] for r in out["rows"]] == [1.5, 1.25]
    assert [r["interleaving_gain_over_usual_wave"] for r in out["rows"]] == [1.0, 1.25]
    overall = out["overall"][0]
    assert overall["waves_kept"] == 1
    assert overall["geomean_interleaving_gain_over_usual_wave"] == pytest.approx(1.25**0.5)
    assert (overall["largest_interleaving_gain_over_usual_wave"], overall["largest_gain_over_usual_wave"]) == (1.25, 1.5)


def test_the_ring_is_shorter_in_a_long_layer() -> None:
    stages = {}
    for tokens in (512, 8192):
        layer = Layer(moe_shape("hy3"), tokens, 8, "fp8")
        rows = rows_of(layer, 0)
        stages[tokens] = plain_build(layer, rows, "bf16", 132).stages
        assert stages[tokens] == ring_stages(tiles_per_sm(layer, rows, 132))
        assert tiles_per_sm(layer, rows, 132) == task_lists(layer, rows, Order(), 132).words.size / 132
    assert stages == {512: 5, 8192: 4}


def test_waves_stay_where_their_bursts_meet_no_full_stage() -> None:
    """A lead is never chosen where Linear-2 tiles alone ask little of the link, whatever is predicted; with more bytes a row it may be."""
    model = find_model(PROFILE)
    slow = replace(TIMES, linear2_ns=60_000.0)
    layer = Layer(moe_shape("dsv4-flash"), 512, 8)
    ranks = [rows_of(layer, rank) for rank in range(2)]
    assert asked_of_link(model, ranks[0], 0, slow, "none", 132) == 0
    assert asked_of_link(model, ranks[0], 0, slow, "f32", 132) == 2 * asked_of_link(model, ranks[0], 0, slow, "bf16", 132) < CALM
    # One block an expert: the smallest of those alike; else the largest.
    assert choose_order(model, layer, ranks, slow, "bf16", 132).order == Order("wave", 8)
    more = Layer(moe_shape("keye-vl-2"), 512, 8)
    of_more = [rows_of(more, rank) for rank in range(2)]
    assert choose_order(model, more, of_more, slow, "bf16", 132).order == Order("wave", 16)
    assert asked_of_link(model, ranks[0], 0, TIMES, "bf16", 132) > CALM
    assert choose_order(model, layer, ranks, TIMES, "f32", 132).order.kind == "interleaved"


def test_waves_of_uneven_experts_may_ask_less_of_the_link() -> None:
    even, uneven = np.full(16, 3), np.r_[np.full(15, 3), 9]
    assert calm(0.9, even)
    assert not calm(0.9, uneven)
    assert calm(0.6, uneven)
    assert not calm(1.1, even)
