"""The MoE layer as tasks, the choice of its order, and the summary of a suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import h200
import numpy as np
import pytest
from suite_rows import suite_row, suite_stalls

from xstage_bench.errors import WaivedError
from xstage_bench.kernels.moe.build import STAMP, ring_stages
from xstage_bench.kernels.moe.forecast import (
    CALM,
    MoeTileTimes,
    as_tasks,
    asked_of_link,
    busiest,
    calm,
    choose_order,
    pick,
    predict_order,
    remote_tile_bytes,
    tile_times,
)
from xstage_bench.kernels.moe.layer import Layer, rows_of, tiles_per_sm
from xstage_bench.kernels.moe.measure import case_variants, plain_build, remote_bytes
from xstage_bench.kernels.moe.order import Order, TaskLists, order_named, task_lists
from xstage_bench.kernels.moe.run import devices_of
from xstage_bench.kernels.moe.suite import suite_cases
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.model.run_fit import find_model
from xstage_bench.workloads.shapes import moe_shape

PROFILE = h200.MODEL
TIMES = MoeTileTimes(linear1_ns=10_000, linear2_ns=4_000, linear1_rest_ns=2_000, linear2_rest_ns=3_000)


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


@pytest.mark.parametrize("combine", ["none", "bf16", "f32", "fp8"])
def test_the_bytes_that_a_tile_sends_away_add_up(combine: str) -> None:
    layer = Layer(moe_shape("keye-vl-2"), 200, 4, routing="skewed", masked=0.2)
    for rank in range(2):
        rows = rows_of(layer, rank)
        each = remote_tile_bytes(rows, rank, combine)
        assert each.sum() * layer.shape.linear2_tiles == remote_bytes(rows, rank, layer.shape.hidden, combine)
        assert each.max() <= 128 * 128 * 4


def test_tile_times_are_read_off_stamps_with_waits_and_first_tasks_left_out() -> None:
    words = np.array([0, 1, 1 << 31, 1 << 31 | 1] * 50, dtype=np.uint32)
    lists = TaskLists(words, np.array([0, 100, 200]))
    stamps = np.zeros(200, STAMP)
    step = np.where(lists.second, 400, 1000)
    step[10::20] += 5000  # now and then a tile waits for another SM
    stamps["computed_ns"] = 10_000 + np.concatenate([np.cumsum(step[:100]), 777_777 + np.cumsum(step[100:])])
    stamps["stored_ns"] = stamps["computed_ns"] + np.where(lists.second, 30, 20)
    assert tile_times(stamps, lists) == MoeTileTimes(linear1_ns=1000, linear2_ns=400, linear1_rest_ns=20, linear2_rest_ns=30)


def test_waves_stay_where_every_lead_is_surely_predicted_to_be_slower() -> None:
    assert pick({"wave-4": 100.0, "interleaved-1": 105.1}, ["wave-4"]) == "wave-4"
    assert pick({"wave-4": 100.0, "interleaved-1": 104.9}, ["wave-4"]) == "interleaved-1"
    assert pick({"wave-4": 100.0, "interleaved-1": 100.0, "interleaved-2": 103.1}, ["wave-4"]) == "interleaved-1"
    assert pick({"wave-2": 110.0, "wave-4": 100.0, "wave-8": 101.0, "interleaved-1": 105.5}, ["wave-2", "wave-4", "wave-8"]) == "wave-4"
    assert pick({"wave-4": 100.0, "interleaved-1": 90.0, "interleaved-2": 92.6}, ["wave-4"]) == "interleaved-2"
    assert pick({"wave-4": 100.0, "interleaved-1": 90.0, "interleaved-2": 92.8}, ["wave-4"]) == "interleaved-1"


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


@pytest.mark.parametrize(
    "order", [Order("serial"), Order(), Order("wave", 4), Order("interleaved"), Order("interleaved", lead=0.5)], ids=str
)
def test_an_order_is_found_by_its_name(order: Order) -> None:
    assert order_named(order.name) == order


def test_every_case_of_the_suite_has_a_key_of_its_own() -> None:
    assert len({c.key("bf16") for c in suite_cases()}) == len(suite_cases())


def test_a_case_times_what_it_is_judged_against() -> None:
    layer = Layer(moe_shape("dsv4-flash"), 512, 8, "fp8")

    def variants_of(combine: str, lead: float | None = None, *, search: bool = False, options: bool = False) -> dict[str, Any]:
        order = Order("interleaved") if lead is None else Order("interleaved", lead=lead)
        found = case_variants(layer, rows_of(layer, 0), order, combine, 132, search=search, options=options)  # type: ignore[arg-type]
        return {v.name: v for v in found}

    variants = variants_of("bf16", 2.0)
    waves = [v.order.experts_per_wave for name, v in variants.items() if name.startswith("wave ") and name != "wave alone"]
    assert len(set(waves)) == len(waves) >= 2
    assert all(layer.local_experts % n == 0 for n in waves if n is not None)
    assert variants["chosen alone"].build.combine == "none"
    assert variants["chosen local"].local
    assert {("other ring" in name, v.build.stages, v.build.fp8) for name, v in variants.items()} == {(True, 4, True), (False, 5, True)}
    options = variants_of("bf16", options=True)
    assert set(options) - set(variants) == {"chosen fp8 rows", "chosen dispatch", "wave dispatch"}
    assert options["chosen fp8 rows"].build.combine == "fp8"
    assert options["chosen dispatch"].build.dispatch
    assert options["wave dispatch"].build.dispatch
    searched = variants_of("f32", search=True)
    assert sum(name.startswith("search ") for name in searched) == 6
    assert {v.build.combine for v in searched.values()} == {"f32", "none"}


def test_ranks_get_a_gpu_each_where_there_are_enough() -> None:
    assert devices_of(8, 8) == tuple(range(8))
    assert devices_of(2, 8) == (0, 1)
    assert devices_of(8, 4) == (0, 1)  # emulated
    with pytest.raises(WaivedError, match="even an emulated group needs two"):
        devices_of(8, 1)


def test_the_summary_compares_with_the_best_wave_and_with_the_bound() -> None:
    us = {"wave 2": 130, "wave 4": 120, "wave alone": 90, "chosen": 100, "chosen alone": 95, "chosen local": 97, "search serial": 110}
    other = {"wave 2": 100, "wave alone": 50, "wave dispatch": 70, "chosen": 125, "chosen alone": 50, "chosen local": 52}
    out = summarise({"rows": [suite_row(us), suite_row(other)]})
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
    us = {"wave 2": 150, "wave 4": 100, "wave alone": 90, "chosen alone": 90, "chosen local": 95}
    usual = suite_stalls((1, 1), (1, 1))
    kept, changed = (suite_row({**us, "chosen": t}, stalls=usual, chosen=order) for t, order in ((100, "wave-4"), (120, "interleaved-2")))
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
    # Uneven experts may ask less of the link.
    even, uneven = np.full(16, 3), np.r_[np.full(15, 3), 9]
    assert [calm(asked, experts) for asked, experts in ((0.9, even), (0.9, uneven), (0.6, uneven), (1.1, even))] == [
        True,
        False,
        True,
        False,
    ]
