"""The errors that models are held against are those of the recordings that they name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from xstage_bench.judge.gate import yardsticks
from xstage_bench.model.document import load_validation

ROOT = Path(__file__).parents[2]
RECORDED = [y for y in yardsticks() if "results/" in y.source]


@pytest.mark.parametrize("yardstick", RECORDED, ids=[f"{y.name} to {y.destination}" for y in RECORDED])
def test_each_recorded_error_is_the_worst_of_its_recording(yardstick):
    paths = [word.strip(":;,") for word in yardstick.source.split() if word.startswith("results/")]
    scores = [s for path in paths for s in load_validation(ROOT / path).models]
    for error in yardstick.errors:
        if error.bar:
            continue
        mine = [s for s in scores if (s.flavour, s.model) == (error.flavour, error.model)]
        found = asdict(error)
        assert any(s.issue_time.median_error == found["median_error"] for s in mine), (error.flavour, error.model)
        assert any(s.issue_time.p95_error == found["p95_error"] for s in mine)
        assert any(s.regime_balanced_accuracy == found["regime_balanced_accuracy"] for s in mine)
        if error.flavour == "st.v4" and error.model == "node":
            first = [s for s in load_validation(ROOT / paths[0]).models if (s.flavour, s.model) == ("st.v4", "node")]
            assert found["median_error"] == max(s.issue_time.median_error for s in first)
            assert found["interval_coverage_90"] == min(s.interval_coverage_90 for s in first)
