"""The recorded suite of the MoE kernel: docs/moe.md and docs/reproduction.md say what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import moe_rings
import numpy as np
import pytest
from moe_out_of_step import fitted, off_us

from xstage_bench.fused.moe.forecast import OUT_OF_STEP_PER_MB
from xstage_bench.fused.moe.skeleton import with_skeletons
from xstage_bench.fused.moe.stalls import CLOSE_US
from xstage_bench.fused.moe.suite import arrived_us, suite_cases
from xstage_bench.fused.moe.summary import summarise
from xstage_bench.record.json_file import read_json
from xstage_bench.replay_document import read_replay

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "h200-x2" / "moe"
PAGE = (ROOT / "docs" / "moe.md").read_text()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return read_json(FOLDER / "moe.json.gz", dict[str, Any])


def printed(*command: str) -> list[str]:
    """Lines of the table that a tool prints."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return [line for line in done.stdout.splitlines() if line.startswith("|")]


def test_it_is_the_whole_suite_on_real_gpus(document: dict[str, Any]) -> None:
    assert {row["key"] for row in document["rows"]} == {case.key(combine) for case in suite_cases() for combine in ("bf16", "f32")}
    assert not document["failed"]
    assert not document["left"]
    assert document["backend"] == "cuda"
    assert [gpu["name"] for gpu in document["environment"]["gpus"]] == ["NVIDIA H200"] * 2


def test_results_were_right(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        for name, variant in row["variants"].items():
            error = variant.get("relative_error")
            if error is not None:
                assert error < (0.06 if row["dtype"] == "fp8" or name == "chosen fp8 rows" else 0.01), (row["key"], name)
        assert row["variants"]["chosen"]["relative_error"] is not None


def test_the_summary_is_made_of_it(document: dict[str, Any]) -> None:
    again = summarise(document)
    recorded = read_json(FOLDER / "summary.json", dict[str, Any])
    assert recorded["overall"] == [pytest.approx(one) for one in again["overall"]]
    assert [row["gain"] for row in recorded["rows"]] == pytest.approx([row["gain"] for row in again["rows"]])


def test_the_skeletons_beside_it_are_the_replayed_ones(document: dict[str, Any]) -> None:
    paths = (FOLDER / "skeletons.json.gz", FOLDER.parent / "replay" / "skeleton-block-spin" / "replay.json.gz")
    again = with_skeletons(document, [read_replay(path) for path in paths])
    gains = [row["skeleton_gain"] for row in again["rows"] if row["skeleton_gain"] is not None]
    assert len(gains) == 92
    assert [row.get("skeleton_gain") for row in document["rows"]] == [row["skeleton_gain"] for row in again["rows"]]


def test_the_page_has_its_tables() -> None:
    for line in printed("tools/moe_tables.py", str(FOLDER / "moe.json.gz")):
        assert line in PAGE, line
    shown = printed("tools/moe_forecast.py", "show", str(FOLDER / "forecast.json.gz"))
    assert all(line in PAGE for line in shown[:10])
    for line in printed("tools/moe_step.py", str(FOLDER / "step.json.gz")):
        assert line in PAGE, line
    for line in printed("tools/moe_rings.py", str(FOLDER / "moe.json.gz"), str(FOLDER / "four-stages.json.gz")):
        assert line in PAGE, line


def test_the_tiles_alone_are_as_fast_as_the_library() -> None:
    """Bars: 0.80 of cuBLAS in bf16, 0.70 in FP8."""
    for line in printed("tools/moe_gemm.py", "show", str(FOLDER / "gemm.json")):
        assert line in PAGE, line
    rows = read_json(FOLDER / "gemm.json", dict[str, Any])["gemm"]
    assert len(rows) == 16
    for row in rows:
        assert row["own_over_dense"]["low"] > 0.95, row["shape"]


def test_the_bars_that_are_met_and_those_that_are_not() -> None:
    """What the page says of each; a better recording has to change the page too."""
    found = {(g["dtype"], g["combine"]): g for g in read_json(FOLDER / "summary.json", dict[str, Any])["overall"]}
    plain, fp8, wide, wide_fp8 = (found[key] for key in (("bf16", "bf16"), ("fp8", "bf16"), ("bf16", "f32"), ("fp8", "f32")))
    assert round(plain["geomean_gain"], 2) >= 1.03
    assert plain["median_over_alone_where_compute_limits"] < 1.06 < fp8["median_over_alone_where_compute_limits"]
    assert max(g["median_over_bound"] for g in (plain, fp8, wide)) < 1.10 < wide_fp8["median_over_bound"]
    assert all(g["median_regret"] <= 0.03 and g["largest_regret"] <= 0.08 for g in found.values())
    assert 1.08 < fp8["geomean_gain"] < 1.10
    assert fp8["largest_gain"] < 1.30
    assert plain["smallest_gain"] < 0.98
    assert wide_fp8["geomean_gain"] < 1.18 < wide_fp8["geomean_gain_over_usual_wave"]
    assert wide_fp8["largest_gain"] < 1.40 < wide_fp8["largest_gain_over_usual_wave"]
    assert max(g["stalls_within_1_us"] for g in found.values()) < 0.8


def test_what_the_page_says_of_the_options(document: dict[str, Any]) -> None:
    def over(variant: str, **where: str) -> dict[str, float]:
        rows = [row for row in document["rows"] if variant in row["variants"] and all(row[k] == v for k, v in where.items())]
        us = {row["key"]: {name: v["arrived_us"]["value"] for name, v in row["variants"].items()} for row in rows}
        return {key: one[variant] / one["chosen"] for key, one in us.items()}

    assert min(over("paced").values()) > 0.995
    assert [key.split("|")[0] for key, ratio in over("dynamic").items() if ratio < 1] == ["keye-vl-2"]
    assert {key.split("|")[0] for key, ratio in over("chosen presum").items() if ratio < 0.97} == {"keye-vl-2"}
    assert np.exp(np.mean(np.log(list(over("chosen fp8 rows", dtype="fp8").values())))) < 0.92


def test_sms_that_share_weights_are_apart_where_rows_are_sent_and_read_more_from_memory() -> None:
    document = read_json(FOLDER / "step.json.gz", dict[str, Any])
    apart = {(one["case"], one["rank"], one["rows"]): one["apart_us"]["median"] for one in document["apart"]}
    assert all(apart[case, rank, "alone"] < 0.6 < apart[case, rank, "remote"] for case, rank, _ in apart)
    read = {rows: [c["dram__bytes_read.sum"] for c in document["counters"] if c["rows"] == rows] for rows in ("alone", "remote")}
    assert min(read["remote"]) > 1.5 * max(read["alone"])
    received = [c["l1tex__m_xbar2l1tex_read_bytes.sum"] for c in document["counters"]]
    assert max(received) < 1.001 * min(received)


def test_the_shorter_ring_is_faster_from_the_length_on_that_the_kernel_takes_it_for() -> None:
    rows = read_json(FOLDER / "four-stages.json.gz", dict[str, Any])["rows"]
    over: dict[int, list[float]] = {}
    for row in rows:
        us = arrived_us(row)
        over.setdefault(moe_rings.stages_of(row), []).append(us["chosen other ring"] / us["chosen"])
    assert {stages: len(ratios) for stages, ratios in over.items()} == {4: 48, 5: 144}
    assert np.log(over[4]).mean() > 0.015
    assert np.log(over[5]).mean() < -0.01


def test_the_constants_of_being_out_of_step_are_fitted_to_some_rows_and_hold_for_others() -> None:
    calibration, holdout = (read_json(FOLDER / f"out-of-step-{name}.json.gz", dict[str, Any]) for name in ("calibration", "holdout"))
    assert fitted(calibration) == pytest.approx(OUT_OF_STEP_PER_MB)
    nothing = dict.fromkeys(OUT_OF_STEP_PER_MB, 0.0)
    without, with_it = (float((abs(off_us(holdout, c)) < CLOSE_US).mean()) for c in (nothing, OUT_OF_STEP_PER_MB))
    assert with_it > without + 0.1


def test_where_slots_lie_makes_no_difference(document: dict[str, Any]) -> None:
    us = [{name: v["arrived_us"]["value"] for name, v in row["variants"].items()} for row in document["rows"]]
    ratios = [one["chosen slots by token"] / one["chosen"] for one in us]
    assert len(ratios) == 192
    assert abs(np.log(ratios).mean()) < 0.005


def test_predictions_are_as_near_as_the_page_says() -> None:
    rows = read_json(FOLDER / "forecast.json.gz", dict[str, Any])["rows"]
    off = np.array([row["predicted_us"] / row["measured_us"] - 1 for row in rows])
    alone = np.array([row["predicted_given_alone_us"] / row["measured_us"] - 1 for row in rows])
    assert len(rows) == 384
    assert np.median(abs(off)) < 0.035
    assert np.median(abs(alone)) < 0.025
    assert abs(alone.mean()) < 0.01
    near = [abs(row["stall_measured_us"] - row["stall_predicted_us"]) < CLOSE_US for row in rows]
    assert 0.65 < np.mean(near) < 0.8
