"""The kernel's schedule as tasks, and the summary that scripts read; of synthetic times."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_node import X_STAGE, published_model

from xstage_bench.errors import DataError
from xstage_bench.kernels.attention.attention import STAMP, AttentionBuild
from xstage_bench.kernels.attention.forecast import AttentionTileTimes, add_forecasts, drain_us, tasks_of
from xstage_bench.kernels.attention.problem import Problem
from xstage_bench.kernels.attention.summary import best_of, chosen_of, summarise
from xstage_bench.kernels.attention.tile_facts import tile_facts
from xstage_bench.kernels.attention.tile_order import ORDERS, tiles_of
from xstage_bench.kernels.spread import spread
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.tasks.costs import TaskCosts, reference_costs
from xstage_bench.schedule.tasks import TaskSchedule

#: Scripts read these.
KEYS = {
    *("shape", "heads", "head_dim", "seq", "sp", "emulated", "alone_us", "cudnn_us", "serial_nccl_us", "serial_push_us"),
    *("fused_us", "fused_visible_us", "predicted_fused_us"),
}
RATES = {"drain_gb_per_s.one_way": 370.0, "drain_gb_per_s.both_ways": 355.0}
BUILDS = {"st.v4": AttentionBuild(128, 128, 2), "bulk": AttentionBuild(128, 160, 2, store="bulk")}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([2, 4, 8]), st.integers(1, 5000), st.integers(0, 7), st.sampled_from(sorted(BUILDS)), st.sampled_from(sorted(ORDERS)),
    st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=132),
)  # fmt: skip
def test_tasks_store_every_row_and_send_what_others_own(
    ranks: int, seq: int, rank: int, store: Any, name: str, late_us: list[float]
) -> None:
    p, build, rank = Problem(2 * ranks, 2 * ranks, 128, seq, ranks), BUILDS[store], rank % ranks
    order = tiles_of(name, p.local_heads, seq, build.tile_rows, ranks, rank)
    ctas = min(132, order.size)
    tasks = tasks_of(p, build, order, rank, ctas, AttentionTileTimes([10.0], 0.1, 0.1, late_us), 1000.0)
    every = tasks_of(p, build, order, rank, 132, AttentionTileTimes([10.0], 0.1, 0.1, late_us), 1000.0)  # also where an SM has no tile
    assert every.task_count == order.size
    assert tasks.form == "single"
    assert tasks.task_count == order.size
    unit = tasks.warps * 512
    assert seq * p.row_bytes <= tasks.bytes.sum() < seq * p.row_bytes + order.size * unit
    assert 0 <= p.remote_bytes(rank) - tasks.remote_bytes.sum() < order.size * 512
    assert abs(tasks.compute_cycles.mean() - 10_000) < 500


def test_tile_times_are_found_again() -> None:
    """Also where the last wave is not full: an SM is late against those with as many tiles."""
    tiles, ctas, rng = 3 * 132 + 40, 132, np.random.default_rng(0)
    late = rng.normal(0.0, 0.6, ctas)
    late[:40] -= late[:40].mean()
    late[40:] -= late[40:].mean()
    truth = AttentionTileTimes([100.0, 95.0, 90.0, 85.0], 0.0, 0.0, late.tolist())
    us = truth.tiles_us(tiles, ctas)
    stamps = np.zeros((tiles, 2), STAMP)
    for cta in range(ctas):
        end = 7.0 + np.cumsum(us[cta::ctas])
        stamps["computed_ns"][cta::ctas] = np.round(1e3 * end)[:, None].astype(np.uint64)
        stamps["begin_ns"][cta::ctas] = np.round(1e3 * (end - us[cta::ctas]))[:, None].astype(np.uint64)
    found = AttentionTileTimes.of(stamps, ctas)
    assert np.allclose(found.wave_us, truth.wave_us, atol=0.1)  # those with a fourth tile spread their lateness over four
    assert np.allclose(found.late_us, late, atol=0.002)
    assert found.between_us == pytest.approx(np.std(late / np.where(np.arange(ctas) < 40, 4, 3)), abs=0.02)
    assert found.within_us < 0.02
    end = [np.sum(found.tiles_us(tiles, ctas)[cta::ctas]) for cta in range(ctas)]
    assert np.std(np.array(end[40:]) - np.mean(end[40:]) - late[40:]) < 0.01


def test_a_document_that_does_not_say_when_sms_end_is_refused() -> None:
    case = row(alone=[100.0], alone_bulk=[99.0], fused_bulk_rotated=[101.0])
    with pytest.raises(DataError, match="late_us"):
        add_forecasts({"rows": [case]}, cast(Any, None))  # before it asks the model


def test_the_time_line_is_that_of_the_sm_with_the_longest_stores() -> None:
    stamps = np.zeros((6, 2), STAMP)
    stamps["smid"] = np.array([0, 1, 2, 0, 1, 2])[:, None]
    stamps["tile"] = np.arange(6)[:, None]
    stamps["begin_ns"], stamps["computed_ns"], stamps["stored_ns"] = 1000, 2000, 2100
    slow = stamps.copy()
    slow["stored_ns"][4, 1] = 9000
    facts = tile_facts(stamps, slow, 3)
    assert facts["time_line"]["fused"]["smid"] == 1
    assert facts["time_line"]["fused"]["tiles"] == [1, 4]
    assert facts["time_line"]["fused"]["ns"][1][1] == [0, 1000, 8000]
    assert facts["most_stored_ns_of_one_sm"] == 7100.0
    assert facts["store_ns"]["alone"] == [100.0] * 5


def test_the_interval_covers_the_true_median_19_times_in_20() -> None:
    rng = np.random.default_rng(0)
    inside = [(f := spread(rng.exponential(1.0, 25)))["low"] <= np.log(2.0) <= f["high"] for _ in range(2000)]
    assert 0.93 < np.mean(inside) < 0.98
    few = spread(np.array([3.0, 1.0, 2.0]))
    assert (few["n"], few["value"], few["low"], few["high"]) == (3, 2.0, None, None)


facts = {
    "compute": {"wave_us": [90.0, 89.0]}, "quantiles": [0, 50, 100], "store_ns": {"alone": [900.0, 1000.0, 1100.0]},
    "most_stored_ns_of_one_sm": 5000.0, "time_line": {"fused": {"tiles": [0, 132]}},
}  # fmt: skip


def row(**times: list[float]) -> dict[str, Any]:
    samples = {name.replace("__", ".").replace("_", " "): np.array(us) for name, us in times.items()}
    return {
        "shape": "x", "heads": 4, "kv_heads": 4, "head_dim": 128, "seq": 8192, "sp": 2, "emulated": False,
        "tflop_of_one_rank": 0.1, "rounds": 8,
        "builds": {"st.v4": {}, "bulk": {}}, "tiles": dict.fromkeys(("st.v4", "bulk"), facts),
        "times_us": {n: spread(us) for n, us in samples.items()}, "samples_us": {n: us.tolist() for n, us in samples.items()},
    }  # fmt: skip


def test_the_summary_pairs_within_rounds() -> None:
    drift = np.linspace(1.0, 1.5, 8)  # a clock that falls over the run
    case = row(
        alone=100 * drift, alone_bulk=99 * drift, push=130 * drift, nccl=150 * drift, nccl_graph=149 * drift,
        **{"fused_st__v4_row-major": 104 * drift, "fused_bulk_row-major": 102 * drift, "fused_bulk_owner-interleaved": 101 * drift},
    )  # fmt: skip
    (found,) = summarise({"rows": [case]})["rows"]
    assert KEYS.issubset(found)
    assert found["fused"] == "fused bulk owner-interleaved"
    assert found["predicted_fused_us"] is None
    assert all(found["fused_over_alone"][k] == pytest.approx(101 / 99, rel=1e-5) for k in ("value", "low", "high"))
    assert found["hidden_share"]["serial_push"]["value"] == pytest.approx((130 - 101) / (130 - 99), rel=1e-5)
    assert found["speed_up"]["serial_nccl"]["value"] == pytest.approx(149 / 101, rel=1e-5)
    assert found["stall_us"]["bulk"] == {"predicted": None, "measured": 3.0}
    assert best_of(case)[0] == "fused bulk owner-interleaved"
    assert chosen_of({**case, "forecast": [{"store": "st.v4", "order": "row-major"}]}) == ("st.v4", "row-major")


def test_what_fusing_costs_is_taken_from_pairs_where_they_time_what_counts() -> None:
    short = {"alone": [100.0] * 8, "fused_st__v4_owner-interleaved": [110.0] * 8, "push": [130.0] * 8}
    case = {**row(**short), "builds": {"st.v4": {}}, "forecast": [{"store": "st.v4", "order": "owner-interleaved"}]}
    case["forecast"][0] |= {"fused_us": 101.0, "residual_us": 1.0, "issue_stall_us": 2.0}
    pair = row(**{"alone": [200.0] * 9, "fused_st__v4_owner-interleaved": [202.0] * 9})
    (found,) = summarise({"rows": [case]}, {"rows": [pair]})["rows"]
    assert found["from_pairs"]
    assert [found["fused_over_alone"][k] for k in ("value", "n")] == [1.01, 9]
    assert found["measured_residual_us"]["value"] == 2.0
    assert [found["fused_us"], found["alone_us"]] == [110.0, 100.0]
    for other in ({**pair, "seq": 4096}, {**pair, "samples_us": {"alone": [200.0] * 9}}):
        (found,) = summarise({"rows": [case]}, {"rows": [other]})["rows"]
        assert not found["from_pairs"]
        assert found["fused_over_alone"]["value"] == pytest.approx(1.1)


def test_what_comes_after_the_attention_pays_the_rate_of_both_directions() -> None:
    """An All-to-All has both directions busy: 370 GB/s one way are 355 then; and local bytes cross no link."""
    node = published_model(X_STAGE, reference_costs("mma"))
    both = {name: Estimate(value=v, standard_error=None, low=None, high=None) for name, v in RATES.items()}
    model = dataclasses.replace(node, tasks=[TaskCosts(gpu="x", compute="mma", sm_clock_mhz=None, instrument=both)])
    k, size = X_STAGE.producers, 65536
    tasks = TaskSchedule(
        producers=k, producer=np.arange(k), compute_cycles=np.zeros(k, int), bytes=np.full(k, size), remote_bytes=np.full(k, size // 2),
        waits_for=np.full(k, -1), signals=np.full(k, -1), form="single",
    )  # fmt: skip
    one_way = k * size / 2 / X_STAGE.drain_gb_per_s / 1e3
    assert drain_us(model, dataclasses.replace(tasks, both_ways=True)) == pytest.approx(one_way * 370 / 355)
    assert drain_us(model, dataclasses.replace(tasks, both_ways=False)) == pytest.approx(one_way)
