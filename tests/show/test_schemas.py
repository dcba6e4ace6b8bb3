"""The committed JSON Schemas are those of the dataclasses that write the files."""

from __future__ import annotations

from xstage_bench.io.assets import asset_dir
from xstage_bench.show.schemas import schemas, write_schemas

COMMITTED = asset_dir("results") / "schemas"


def test_committed_schemas_are_current_and_every_document_has_one(tmp_path):
    files = write_schemas(tmp_path / "new")
    assert {p.stem for p in files} == set(schemas()) == {p.stem for p in COMMITTED.glob("*.json")}
    stale = [p.stem for p in files if p.read_text() != (COMMITTED / p.name).read_text()]
    assert stale == [], "python -m xstage_bench.show.schemas"


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
