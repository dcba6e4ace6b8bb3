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
    validations = [load_validation(ROOT / path) for path in paths]
    scores = [s for v in validations for s in (*v.models, *v.families)]
    for error in yardstick.errors:
        if error.bar:
            continue
        mine = [s for s in scores if (s.flavour, s.model, s.family) == (error.flavour, error.model, error.family)]
        found = asdict(error)
        judged = {"median_error", "p95_error", "regime_balanced_accuracy"} - {name for name, value in found.items() if value is None}
        assert "p95_error" in judged
        for name in judged:
            of = [getattr(s if name.startswith("regime") else s.issue_time, name) for s in mine]
            assert found[name] in of, (error.flavour, error.family, error.model, name)
        if (error.flavour, error.family, error.model) == ("st.v4", "holdout", "node"):
            first = [s for s in load_validation(ROOT / paths[0]).models if (s.flavour, s.model) == ("st.v4", "node")]
            assert found["median_error"] == max(s.issue_time.median_error for s in first)
            assert found["interval_coverage_90"] == min(s.interval_coverage_90 for s in first)
