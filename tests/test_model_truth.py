"""Do the intervals cover the truth? 200 runs of one (K, W) made with the fitted form; bench/truth_recovery.py does 1000."""

import runpy
from pathlib import Path

import numpy as np
import pytest

BENCH = runpy.run_path(str(Path(__file__).parent.parent / "bench" / "truth_recovery.py"), run_name="truth_recovery")
Truth, coverage, make_samples = BENCH["Truth"], BENCH["coverage"], BENCH["make_samples"]


@pytest.mark.parametrize("process_spread", [0.0, 0.005])
def test_95_percent_intervals_cover_the_truth_in_180_to_199_of_200(process_spread):
    found = coverage(Truth(process_spread=process_spread), 200, seed=1)
    for name, counts in found.items():
        assert 180 <= counts["covered"] <= 199, name
        assert abs(counts["bias"]) < 0.003, name


def test_a_wrong_truth_is_not_covered():
    right, wrong = Truth(), Truth(drain_gb_per_s=372 * 1.05)
    missed = 0
    for replica in range(20):
        samples = make_samples(right, np.random.default_rng([3, replica]))
        entry = BENCH["calibrate"](samples, backend="made", gpu="none", sm_clock_mhz=BENCH["SM_CLOCK_MHZ"]).pairs[0].burst_gap[0]
        missed += not entry.drain_gb_per_s.low <= wrong.drain_gb_per_s <= entry.drain_gb_per_s.high
    assert missed >= 15
