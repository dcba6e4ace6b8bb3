"""What must hold of the recorded replays and fused kernels, of advice, and of what is predicted from published numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import advice_regret
import h200
import numpy as np
import pytest
from check_claims import ROOT
from published_node import X_STAGE, published_model
from recordings import HERE, PATHS, Row, document
from tables import load

from xstage_bench.io.json_file import read_json
from xstage_bench.kernels.attention.document import read_folder
from xstage_bench.kernels.attention.forecast import add_forecasts
from xstage_bench.kernels.attention.summary import summarise as summarise_attention
from xstage_bench.kernels.moe.suite import suite_cases
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.measure.replay_document import read_replay, with_predictions
from xstage_bench.measure.replay_run import predictor
from xstage_bench.model.document import load_model
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.tasks.costs import reference_costs
from xstage_bench.schedule.task_files import load_tasks
from xstage_bench.show.explain import glossary

pytestmark = HERE


def test_the_pacer_is_never_slower_than_the_fixed_order_of_its_depth() -> None:
    for r in document("pacer", "summary.json")["choice"]:
        assert all(r[f"paced {n}"] <= 1.0005 * r[f"fixed {n}"] for n in (4, 8, 16))


@pytest.mark.parametrize("path", sorted(PATHS["replay"].parent.glob("*/replay.json.gz")), ids=lambda p: p.parent.name)
def test_replays_are_whole_and_predicted(path: Path) -> None:
    found = read_replay(path)
    assert (found["simulated"], found["backend"], found["failed"]) == (False, "cuda", {})
    assert all(set(row["left_out"]) <= {"warmup"} for row in found["rows"])
    assert {e["status"] for e in found["instrument"].values()} == {"ok"}
    errors = {r["schedule"]: abs(r["predicted_us"] / r["total_us"]["value"] - 1) for r in found["rows"] if r.get("predicted_us")}
    off = np.array([*errors.values()])
    if not off.size:
        pytest.skip("not predicted yet: python results/h200-x2/replay/page.py predict MODEL FOLDER")
    assert np.median(off) < 0.015
    assert np.quantile(off, 0.95) < 0.08
    missed = {name for name, error in errors.items() if error >= 0.13}
    assert missed <= {"keye-vl-2-fp8-2048-lead0.25"}, "the one that missed once, by 15 %, its total known to 4 %"
    assert off.max() < 0.16


def test_advised_schedules_gain_what_they_claim() -> None:
    """The bars of the advice: never over 1 % slower, and the gain claimed within 3 percentage points in the median."""
    found = {row["schedule"]: row for row in read_replay(PATHS["replay"] / "replay.json.gz")["rows"]}
    pairs = [(row, found[name + " advised"]) for name, row in found.items() if name + " advised" in found]
    gain = np.array([row["total_us"]["value"] / after["total_us"]["value"] for row, after in pairs])
    claimed = np.array([row["predicted_us"] / after["predicted_us"] for row, after in pairs])
    assert len(pairs) >= 50
    assert gain.min() > 0.99
    assert np.median(np.abs(gain - claimed)) < 0.03


def test_todays_predictor_on_workloads_that_were_replayed() -> None:
    found = read_replay(PATHS["replay"] / "replay.json.gz")
    with TemporaryDirectory() as place:
        path = Path(place) / "schedules.json"
        path.write_bytes(gzip.decompress((PATHS["replay"] / "schedules.json.gz").read_bytes()))
        executed = load_tasks(path)
    some = {s.key() for s in executed[::7]}
    found["rows"] = [row for row in found["rows"] if row["key"] in some]
    got = with_predictions(found, executed, predictor(find_model(PATHS["profile"]), found))
    assert got["prediction"]["n"] == len(some)
    assert got["prediction"]["total_median_error"] < 0.05
    assert got["prediction"]["total_largest_error"] < 0.13


@pytest.mark.parametrize(("shape", "dtype", "tokens"), [("keye-vl-2", "bf16", 512), ("hy3", "fp8", 512), ("mimo-v2.5", "fp8", 512)])
def test_the_lead_chosen_today_is_as_good_as_the_best_of_all_replayed(shape: str, dtype: str, tokens: int) -> None:
    rows = advice_regret.replayed(PATHS["blocks"] / "replay.json.gz")[shape, dtype, tokens]
    _, lost, predicted, measured_gain = advice_regret.judge(load_model(h200.MODEL), shape, dtype, tokens, rows)
    assert lost <= 0.01
    assert predicted == pytest.approx(measured_gain, abs=0.05)


def test_the_moe_suite_is_whole_right_and_summarised() -> None:
    found = document("moe", "moe.json.gz")
    assert {row["key"] for row in found["rows"]} == {case.key(combine) for case in suite_cases() for combine in ("bf16", "f32")}
    assert (found["failed"], found["left"], found["backend"]) == ({}, {}, "cuda")
    for row in found["rows"]:
        assert row["variants"]["chosen"]["relative_error"] is not None
        for name, variant in row["variants"].items():
            most = 0.06 if row["dtype"] == "fp8" or name == "chosen fp8 rows" else 0.01
            assert (variant.get("relative_error") or 0) < most, (row["key"], name)
    recorded = document("moe", "summary.json")
    assert recorded["overall"] == [pytest.approx(one) for one in summarise(found)["overall"]]


def test_attention_is_right_summarised_and_forecast_again() -> None:
    documents = read_folder(PATHS["ulysses"])
    for found in filter(None, documents):
        assert not found["failed"]
        assert {c["ok"] for row in found["rows"] for c in row["checked"].values()} == {True}
    rows = document("ulysses", "summary.json")["rows"]
    assert rows == json.loads(json.dumps(summarise_attention(*documents)))["rows"]
    assert all(row["over_alone"]["cudnn"]["value"] >= 1.05 for row in rows)
    case = next(r for r in documents[0]["rows"] if r["seq"] == 8192 and r["sp"] == 8)
    before = {(f["store"], f["order"]): f["residual_us"] for f in case["forecast"]}
    again = {k: v for k, v in case.items() if k not in ("forecast", "predicted_serial_us")}
    add_forecasts({"rows": [again]}, load_model(h200.MODEL))
    assert {(f["store"], f["order"]): f["residual_us"] for f in again["forecast"]} == {
        k: pytest.approx(us, abs=1.5) for k, us in before.items()
    }


def test_what_is_written_down_of_published_numbers_is_what_the_predictor_says() -> None:
    page, found = load("published"), read_json(ROOT / "results" / "published" / "x-stage-moe.json.gz", Row)
    assert (found["kind"], found["from"]) == ("predicted", "published")
    for variant in found["variants"]:
        rows = {(r["shape"], r["dtype"], r["routing"], r["tokens_per_rank"]): r for r in variant["rows"]}
        assert len(rows) == 84
        again = published_model(X_STAGE, reference_costs(), variant["service_spread"], loads_wait=variant["loads_wait"])
        case = next(c for c in suite_cases(("dsv4-flash",), tokens=(512,), routings=["balanced"]) if c.dtype == "bf16")
        row = page.row_of(again, case, X_STAGE.producers, variant["tflops_per_sm"]["bf16"] * 1e12)
        assert row["us"] == pytest.approx(rows["dsv4-flash", "bf16", "balanced", 512]["us"], rel=1e-6)


def test_three_numbers_of_a_measured_node_predict_its_replayed_gains() -> None:
    """The control: what the order gains in skeletons that were replayed, from T0, R and Q of that node alone."""
    page = load("published")
    known = page.numbers_of(load_model(h200.MODEL))
    ours = published_model(known, reference_costs("spin"))
    replayed = {r["schedule"]: r["total_us"]["value"] for r in read_replay(PATHS["blocks"] / "replay.json.gz")["rows"]}
    for case in suite_cases(("keye-vl-2", "hy3", "glm-5.2"), tokens=(512,), routings=["balanced"]):
        head = f"{case.shape}-{case.dtype}-512"
        row = page.row_of(ours, case, known.producers, {"bf16": 6.0e12, "fp8": 10.5e12}[case.dtype], leads=(1.0,))
        assert abs(page.gain(row) - replayed[f"{head}-wave"] / replayed[f"{head}-lead1"]) < 0.06


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "h200-x2").glob("*/summary.json")), ids=lambda p: p.parent.name)
def test_every_key_of_a_recorded_summary_is_explained(path: Path) -> None:
    rows = json.loads(path.read_text()).get("rows", [])
    assert {key for row in rows for key in row} - {entry.word for entry in glossary()} == set()
