"""model.json and validation.json: fixed keys, strictness, and what is said about files that are neither."""

import dataclasses
import json

import pytest

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.document import (
    IssueTimeError,
    Model,
    ModelScore,
    PairModel,
    TotalTimeError,
    Validation,
    load_model,
    load_validation,
    save,
)
from xstage_bench.model.entry import missing_entry
from xstage_bench.model.estimate import Estimate

ESTIMATE_KEYS = {"value", "standard_error", "low", "high", "level", "status", "statistic"}


def a_model() -> Model:
    number = Estimate(value=1.5, standard_error=0.1, low=1.2, high=1.8)
    first = missing_entry(8, 4, "st.v4", "no valid samples")
    entry = dataclasses.replace(first, t0_cycles=number)
    pair = PairModel(pair="0>1", flavour="st.v4", layout="contiguous", burst_gap=[entry])
    return Model(schema_version=1, backend="sim:x", gpu="a GPU", sm_clock_mhz=1980.0, pairs=[pair])


def test_the_fixed_keys_are_there_and_missing_is_null(tmp_path):
    save(tmp_path / "model.json", a_model())
    read = json.loads((tmp_path / "model.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert {"schema_version", "backend", "gpu", "sm_clock_mhz", "pairs"} <= read.keys()
    pair = read["pairs"][0]
    assert {"pair", "flavour", "layout", "burst_gap", "node", "calibrated_range"} <= pair.keys()
    assert pair["node"] == {}
    entry = pair["burst_gap"][0]
    assert {"producers", "warps", "bytes", "t0_cycles", "drain_gb_per_s", "capacity_bytes"} <= entry.keys()
    assert entry["bytes"] == 32768
    for name in ("t0_cycles", "drain_gb_per_s", "capacity_bytes"):
        assert entry[name].keys() >= ESTIMATE_KEYS
    missing = entry["drain_gb_per_s"]
    assert (missing["value"], missing["status"], missing["reason"]) == (None, "not_identified", "no valid samples")


def test_a_model_and_a_validation_come_back_as_written(tmp_path):
    save(tmp_path / "model.json", a_model())
    assert load_model(tmp_path / "model.json") == a_model()
    score = ModelScore(
        model="burst_gap", pair="0>1", flavour="st.v4", statistic="issue_mean", n_schedules=3, n_bursts=9,
        issue_time=IssueTimeError(median_error=0.1, p90_error=0.2, p95_error=None), regime_balanced_accuracy=None,
        total_time=TotalTimeError(median_error=0.1, p95_error=0.2), interval_coverage_90=0.9, interval_score=None,
        reasons={"interval_score": "because"},
    )  # fmt: skip
    validation = Validation(schema_version=1, backend="cuda", models=[score])
    save(tmp_path / "validation.json", validation)
    assert load_validation(tmp_path / "validation.json") == validation


def test_keys_of_a_later_version_are_passed_over(tmp_path):
    save(tmp_path / "model.json", a_model())
    text = json.loads((tmp_path / "model.json").read_text())
    text["a_later_key"] = {"x": 1}
    (tmp_path / "model.json").write_text(json.dumps(text))
    assert load_model(tmp_path / "model.json") == a_model()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("{", "JSON"),
        ("[]", "object"),
        ('{"schema_version": 99, "unknown": true}', "schema version 99"),
        ('{"schema_version": 1, "backend": "x", "gpu": "y", "sm_clock_mhz": "fast", "pairs": []}', "sm_clock_mhz"),
        ('{"schema_version": 1, "backend": "x", "gpu": "y", "sm_clock_mhz": NaN, "pairs": []}', "NaN"),
        ('{"schema_version": 1, "backend": "x", "gpu": "y", "sm_clock_mhz": 1980}', "pairs"),
    ],
)
def test_what_is_no_model_is_a_data_error_that_says_why(tmp_path, content, says):
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(DataError) as error:
        load_model(path)
    assert says in error.value.message
    assert str(path) in error.value.message
    with pytest.raises(UsageError):
        load_model(tmp_path / "nothing.json")
