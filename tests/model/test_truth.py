"""Do the intervals cover the truth? 100 runs of one (K, W) made with the fitted form; tests/claims/truth_recovery.py does 1000."""

import runpy
from pathlib import Path

BENCH = runpy.run_path(str(Path(__file__).parents[1] / "claims" / "truth_recovery.py"), run_name="truth_recovery")
Truth, coverage, made_by, truth_of = (BENCH[name] for name in ("Truth", "coverage", "made_by", "truth_of"))


def in_band(found, of):
    for name, counts in found.items():
        assert 0.9 * of <= counts["covered"] < of, name
        assert abs(counts["bias"]) < 0.003, name


def test_intervals_cover_the_truth_of_simulated_runs():
    in_band(coverage(lambda replica: BENCH["simulate_samples"](1, replica), BENCH["simulated_truth"](), 100), 100)


def test_intervals_cover_the_truth_when_processes_differ():
    truth = Truth(process_spread=0.005)
    in_band(coverage(made_by(truth, 1), truth_of(truth), 100), 100)


def test_a_wrong_truth_is_not_covered():
    truth = Truth()
    wrong = {name: 1.05 * value for name, value in truth_of(truth).items()}
    assert all(counts["covered"] <= 5 for counts in coverage(made_by(truth, 3), wrong, 20).values())
