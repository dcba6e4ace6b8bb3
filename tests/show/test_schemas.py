"""The committed JSON Schemas are those of the dataclasses that write the files."""

from __future__ import annotations

import json

import pytest

from xstage_bench.io.assets import asset_dir
from xstage_bench.show.schemas import schemas, write_schemas

COMMITTED = asset_dir("results") / "schemas"


@pytest.mark.parametrize("name", ["manifest", "model", "validation", "schedules", "task_schedules", "exported_model", "survey"])
def test_committed_schema_is_current(name):
    stale = f"results/schemas/{name}.json is stale: python -m xstage_bench.show.schemas"
    assert json.loads((COMMITTED / f"{name}.json").read_text()) == schemas()[name], stale


def test_all_documents_have_one(tmp_path):
    assert {p.stem for p in write_schemas(tmp_path / "new")} == set(schemas()) == {p.stem for p in COMMITTED.glob("*.json")}


def test_fixed_keys_of_validation_and_model():
    """Scripts read these keys; they are added to, never renamed."""
    defined = schemas()["validation"]["$defs"]
    assert {"schema_version", "backend", "models"} <= set(defined["Validation"]["properties"])
    score = {"model", "pair", "flavour", "statistic", "n_schedules", "n_bursts", "issue_time", "total_time"}
    assert score | {"regime_balanced_accuracy", "interval_coverage_90", "interval_score"} <= set(defined["ModelScore"]["properties"])
    defined = schemas()["model"]["$defs"]
    assert {"schema_version", "backend", "gpu", "sm_clock_mhz", "pairs"} <= set(defined["Model"]["properties"])
    assert {"pair", "flavour", "layout", "burst_gap", "node", "calibrated_range"} <= set(defined["PairModel"]["properties"])
    estimate = {"value", "standard_error", "low", "high", "level", "status", "statistic"}
    assert estimate <= set(defined["Estimate"]["properties"])
