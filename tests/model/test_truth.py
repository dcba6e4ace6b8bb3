"""Do the intervals cover the truth? A few runs of each kind; tests/claims/truth_recovery.py does hundreds."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).parents[1] / "claims" / "truth_recovery.py"), run_name="truth_recovery")
Truth, coverage, made_by, truth_of = (BENCH[name] for name in ("Truth", "coverage", "made_by", "truth_of"))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("preset", ["h200-nv18-x2", "burst-gap"])
def test_intervals_of_simulated_runs_cover_what_the_preset_is_by_definition(preset: str, quick: bool) -> None:
    known = BENCH["truth_of_preset"](preset)
    for name, found in coverage(BENCH["runs_of"](preset, quick), known, range(3000, 3004)).items():
        assert found["covered"] >= 0.5, name
        assert abs(found["bias"]) < 0.006, name
        assert found["half_width"] < 0.03, name


def test_the_truth_of_the_fitted_form_is_what_it_was_made_with() -> None:
    known = BENCH["truth_of_preset"]("burst-gap")
    assert (known.drain_gb_per_s, known.capacity_bytes) == pytest.approx((372.0, 132 * 18_500.0), rel=1e-6)
    assert known.t0_cycles(16384) == 64 + 20 * 4 * 8


def test_intervals_cover_the_truth_when_processes_differ() -> None:
    truth = Truth(process_spread=0.005)
    for name, found in coverage(made_by(truth, 1), truth_of(truth), range(40)).items():
        assert found["covered"] >= 0.8, name
        assert abs(found["bias"]) < 0.006, name


def test_a_wrong_truth_is_not_covered() -> None:
    truth, true = Truth(), truth_of(Truth())
    wrong = replace(true, t0_cycles=lambda n: 1.05 * true.t0_cycles(n), drain_gb_per_s=1.05 * 372, capacity_bytes=1.05 * 132 * 18_700)
    assert all(found["covered"] <= 0.25 for found in coverage(made_by(truth, 3), wrong, range(10)).values())
