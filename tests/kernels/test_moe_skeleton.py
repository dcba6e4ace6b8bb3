"""Skeletons of the suite's cases: the layer's own tiles and bytes, small enough for the replay, and their gains beside the rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_rows import US, suite_row

from xstage_bench.device.cuda.tasks import MAX_SM_TASKS, pack
from xstage_bench.io.assets import asset_dir
from xstage_bench.kernels.moe.layer import PADDING, rows_of
from xstage_bench.kernels.moe.skeleton import skeleton_name, skeleton_schedules, with_skeletons
from xstage_bench.kernels.moe.suite import MoeCase, suite_cases
from xstage_bench.kernels.moe.summary import summarise

ROOT = Path(__file__).parents[2]
RECORDED = asset_dir("results") / "h200-x2" / "replay" / "skeleton-block-spin" / "replay.json.gz"


def test_a_skeleton_has_the_rows_of_the_layer() -> None:
    case = MoeCase("keye-vl-2", "fp8", "skewed", 512)
    rows = rows_of(case.layer, 0)
    narrow, wide = ([*skeleton_schedules([case], [combine])] for combine in ("bf16", "f32"))
    assert [s.name for s in narrow] == [f"keye-vl-2-fp8-512-skewed-{end}" for end in ("wave", "lead1", "lead2")]
    assert [s.name for s in wide] == [f"keye-vl-2-fp8-512-skewed-f32-{end}" for end in ("wave", "lead1", "lead2")]
    shape = case.layer.shape
    for one, other in zip(narrow, wide, strict=True):
        assert (one.phase == 0).sum() == rows.blocks * shape.linear1_tiles
        assert (one.phase == 1).sum() == rows.blocks * shape.linear2_tiles
        stored = int((rows.owner != PADDING).sum()) * shape.hidden * 2
        assert stored <= one.bytes.sum() < stored + rows.blocks * shape.linear2_tiles * 2048  # whole warp-stores of four warps
        assert other.volume_bytes == pytest.approx(2 * one.volume_bytes, rel=0.02)
        assert one.volume_bytes == pytest.approx(7 / 8 * one.bytes.sum(), rel=0.02)
        assert one.both_ways
    assert len({tuple(np.sort(s.compute_cycles)) for s in narrow}) == 1  # the order is the only difference


def test_schedules_are_small_enough_for_the_replay() -> None:
    cases = [c for c in suite_cases(tokens=[8192]) if c.routing == "balanced" or c.shape in ("keye-vl-2", "dit-moe")]
    most = {}
    for s in skeleton_schedules(cases, ["f32"]):
        packed = pack(s, {gpu: range(132) for gpu in (0, 1)}, "spin")
        most[s.name] = int(packed.lists[0]["count"].max())
    assert max(most.values()) < MAX_SM_TASKS / 6


keye = partial(suite_row, shape="keye-vl-2")


def replay(head: str, compute: str, **us: float | None) -> dict[str, Any]:
    rows = [{"schedule": f"{head}-{end}", "total_us": {"value": value}, "no_store_us": {"value": 50.0}} for end, value in us.items()]
    return {"rows": rows, "compute": compute, "created": "2026-11-30T00:00:00+00:00", "processes": 1, "repetitions": 5}


def test_a_row_gets_the_better_lead_of_the_first_replay_that_has_its_case() -> None:
    head = skeleton_name("keye-vl-2", "fp8", 512, "skewed", "f32", 8)
    replays = [
        replay(head, "mma", wave=120.0, lead1=None, lead2=90.0),  # an execution failed
        replay(head, "mma", wave=120.0, lead1=100.0, lead2=96.0),
        replay(head, "spin", wave=150.0, lead1=100.0, lead2=101.0),
    ]
    document = with_skeletons({"rows": [keye(routing="skewed", combine="f32"), keye()], "left": {}}, replays)
    first, second = document["rows"]
    assert document["left"] == {}
    assert first["skeleton_gain"] == 1.25
    assert first["skeleton"]["order"] == "lead2"
    assert first["skeleton"]["compute"] == "mma"
    assert first["skeleton"]["no_store_us"] == {"wave": 50.0, "lead2": 50.0}
    assert second["skeleton_gain"] is None
    assert second["skeleton_reason"] == "keye-vl-2-fp8-512 was not replayed in waves and with leads of 1 and 2"


def test_the_summary_says_how_much_of_its_skeletons_gain_the_kernel_reaches() -> None:
    head = skeleton_name("keye-vl-2", "fp8", 512, "balanced", "bf16", 8)
    rows = [keye(), keye({**US, "chosen": 118.0}, tokens_per_rank=2048), keye(routing="skewed")]
    replays = [replay(head, "mma", wave=130.0, lead1=100.0, lead2=104.0)]
    replays.append(replay(skeleton_name("keye-vl-2", "fp8", 2048, "balanced", "bf16", 8), "mma", wave=130.0, lead1=100.0, lead2=104.0))
    out = summarise(with_skeletons({"rows": rows}, replays))
    assert [r["skeleton_gain"] for r in out["rows"]] == [1.3, 1.3, None]
    overall = out["overall"][0]
    assert (overall["skeletons"], overall["reach_0.9_of_skeleton_gain"]) == (2, 0.5)
    assert overall["median_of_skeleton_gain"] == pytest.approx((1 + 100 / 118) / 2)
    assert summarise({"rows": rows})["rows"][0]["skeleton_reason"].startswith("no replay was attached")
