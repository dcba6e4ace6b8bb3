"""The closed forms: their limits, their relations to each other, and their units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.model import burst_gap as bg

TIMES = st.floats(0, 1e6)
VOLUMES = st.floats(1, 1e9)
RATES = st.floats(1, 5000)
CAPACITIES = st.floats(0, 1e8)


def test_the_papers_gpu():
    # 148 SMs x 32 KiB, T0 0.76 us, R 717 GB/s, Q 4.25 MiB: knee 33 KiB per producer, and the burst itself fits.
    volume, q = 148 * 32768, 4.25 * 2**20
    assert bg.knee_bytes(760, 717, q) / 148 / 1024 == pytest.approx(33, abs=0.5)
    assert bg.isolated_issue_ns(760, volume, 717, q) == 760
    assert bg.recovery_gap_ns(760, volume, 717) == pytest.approx(volume / 717 - 760)


def test_one_gb_per_s_is_one_byte_per_ns():
    assert bg.isolated_issue_ns(0, 3000, 2, 1000) == 1000
    assert bg.cycles_to_ns(1980, 1980) == 1000
    assert bg.ns_to_cycles(bg.cycles_to_ns(123.0, 1755), 1755) == pytest.approx(123)


@given(TIMES, VOLUMES, RATES, CAPACITIES)
def test_an_isolated_burst_stalls_past_its_knee_and_only_there(t0, volume, rate, q):
    issue = bg.isolated_issue_ns(t0, volume, rate, q)
    knee = bg.knee_bytes(t0, rate, q)
    assert issue >= t0
    if volume < knee * (1 - 1e-9):
        assert issue == t0
    if volume > knee * (1 + 1e-9) + 1e-6:
        assert issue > t0 or np.isclose(issue, t0)


@given(TIMES, VOLUMES, RATES, TIMES)
def test_the_period_is_issue_plus_gap_and_never_beats_the_drain(t0, volume, rate, gap):
    issue = bg.periodic_issue_ns(t0, volume, rate, gap)
    period = bg.periodic_period_ns(t0, volume, rate, gap)
    assert period == pytest.approx(issue + gap, rel=1e-9, abs=1e-6)
    assert volume / period <= rate * (1 + 1e-9)
    assert bg.issue_overhead_ns(t0, volume, rate, gap) == pytest.approx(issue - t0, rel=1e-9, abs=1e-6 + 1e-9 * volume / rate)


@given(TIMES, VOLUMES, RATES)
def test_the_recovery_gap_is_the_shortest_without_overhead(t0, volume, rate):
    gap = bg.recovery_gap_ns(t0, volume, rate)
    slack = 1e-6 * (1 + volume / rate)
    assert bg.issue_overhead_ns(t0, volume, rate, gap) <= slack
    if gap > slack:
        assert bg.issue_overhead_ns(t0, volume, rate, gap - slack) > 0


@given(TIMES, VOLUMES, RATES, CAPACITIES, TIMES)
def test_free_of_backpressure_means_neither_law_stalls(t0, volume, rate, q, gap):
    if bg.is_free_of_backpressure(t0, volume, rate, q, gap):
        assert bg.periodic_issue_ns(t0, volume, rate, gap) <= t0 + 1e-6 * (1 + volume / rate)
        assert bg.isolated_issue_ns(t0, volume, rate, q) <= t0 + 1e-6 * (1 + volume / rate)
        assert bg.peak_backlog_bytes(t0, volume, rate) <= q


def test_forms_broadcast():
    issue = bg.periodic_issue_ns(100.0, np.array([[1e4], [1e6]]), 372.0, np.array([0.0, 50.0, 1e5]))
    assert issue.shape == (2, 3)
    assert (issue >= 100).all()
    assert issue[1, 0] == pytest.approx(1e6 / 372)
