"""Predictions from a model with round numbers: they reduce to the closed forms and follow the start rules."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model import burst_gap as bg
from xstage_bench.model.document import CalibratedRange, DrainRate, Model, PairModel
from xstage_bench.model.entry import missing_entry
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.interpolate import law_at
from xstage_bench.model.predict import predict
from xstage_bench.model.prediction import APART, EXTRAPOLATED
from xstage_bench.schedule.bursts import Burst, Schedule

CLOCK, BASE, COST, RATE, PER_SM = 2000.0, 80.0, 20.0, 400.0, 20_000.0


def known(value):
    return Estimate(value=value, standard_error=0.0, low=value, high=value)


def entry(producers, warps, *, base=BASE, cost=COST, rate=RATE, per_sm=PER_SM):
    """One (K, W) whose mean and makespan share R, so that the three numbers are the closed form's."""
    store = warps * 512
    slope = producers * store / (rate * 1e3 / CLOCK)
    # T0 = (V - Q)/R at the knee of n stores: base + cost*n = slope*n - Q/R.
    knee = (base + producers * per_sm / (rate * 1e3 / CLOCK)) / (slope - cost) * store
    return dataclasses.replace(
        missing_entry(producers, warps, "st.v4", "not needed"), issue_base_cycles=known(base), issue_cycles_per_warp_store=known(cost),
        stalled_cycles_per_warp_store=known(slope), knee_bytes=known(knee), drain_gb_per_s=known(rate),
        capacity_bytes=known(per_sm * producers), p90_error=0.1,
    )  # fmt: skip


def model_of(*entries):
    missing = Estimate.missing("not measured")
    counts = sorted({e.producers for e in entries})
    drain = [DrainRate(producers=k, makespan=known(RATE), sustained=missing, zero_gap=missing, mean_slope=missing) for k in counts]
    ranges = CalibratedRange(producers=(counts[0], counts[-1]), warps=(1, 4), bytes=(512, 262144))
    pair = PairModel(pair="0>1", flavour="st.v4", layout="contiguous", burst_gap=list(entries), drain=drain, calibrated_range=ranges)
    return Model(schema_version=1, backend="made", gpu="none", sm_clock_mhz=CLOCK, pairs=[pair])


MODEL = model_of(entry(64, 1), entry(128, 1), entry(64, 4), entry(128, 4))


def test_an_isolated_burst_follows_the_isolated_law():
    sizes = [1, 8, 30, 39, 45, 64, 200]
    schedule = Schedule(tuple(Burst(n * 512) for n in sizes), 128)
    got = predict(MODEL, schedule)
    n = np.array(sizes)
    t0 = BASE + COST * n
    expected = bg.ns_to_cycles(bg.isolated_issue_ns(t0 * 1e3 / CLOCK, 128 * 512.0 * n, RATE, 128 * PER_SM), CLOCK)
    np.testing.assert_allclose(got.issue_cycles, expected, rtol=1e-9)
    np.testing.assert_allclose(got.t0_cycles, t0)
    left = np.maximum(128 * 512.0 * n - RATE * got.issue_cycles * 1e3 / CLOCK, 0)
    np.testing.assert_allclose(got.backlog_bytes, left, rtol=1e-6)
    assert got.backlog_bytes.max() <= 128 * PER_SM * (1 + 1e-9), "never more than the capacity"
    np.testing.assert_allclose(got.visible_ns, got.end_ns + got.backlog_bytes / RATE)
    assert got.total_ns == pytest.approx(expected.sum() * 1e3 / CLOCK)
    assert (got.regime[0], got.regime[-1]) == ("free", "stalled")


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 400), st.integers(0, 100_000), st.sampled_from([64, 128]))
@example(stores=1, gap=32, producers=64)
def test_periodic_bursts_settle_at_the_periodic_law(stores, gap, producers):
    t0_ns = (BASE + COST * stores) * 1e3 / CLOCK
    volume = producers * stores * 512.0
    # Settled is what has filled the stage: small bursts only just too close to each other need hundreds for that.
    left_by_each = volume - RATE * (t0_ns + gap * 1e3 / CLOCK)
    fill = producers * PER_SM / left_by_each if left_by_each > 0 else 0.0
    assume(fill < 1000)
    schedule = Schedule((Burst(stores * 512, gap),) * (100 + int(1.2 * fill)), producers, start="free")
    got = predict(MODEL, schedule)
    single = bg.isolated_issue_ns(t0_ns, volume, RATE, producers * PER_SM)
    law = np.maximum(single, bg.periodic_issue_ns(t0_ns, volume, RATE, gap * 1e3 / CLOCK))
    assert got.issue_cycles[-1] * 1e3 / CLOCK == pytest.approx(float(law), rel=0.02)
    free = bg.is_free_of_backpressure(t0_ns, volume, RATE, producers * PER_SM, gap * 1e3 / CLOCK)
    if free:
        assert got.stall_cycles.max() < 1e-6


def test_backlog_carries_over_and_unequal_bursts_pay_for_those_before():
    # 128 x 36 stores fill most of Q; right after it even a small burst stalls, after a long gap it does not.
    def second(gap):
        return predict(MODEL, Schedule((Burst(36 * 512), Burst(16 * 512, gap)), 128, start="free"))

    soon, late = second(0), second(100_000)
    t0_ns = (BASE + COST * 36) * 1e3 / CLOCK
    assert soon.backlog_bytes[0] == pytest.approx(float(bg.peak_backlog_bytes(t0_ns, 128 * 36 * 512, RATE)))
    assert (soon.regime[1], late.regime[1]) == ("stalled", "free")
    assert late.backlog_bytes[1] < soon.backlog_bytes[1]
    assert late.issue_cycles[1] == pytest.approx(late.t0_cycles[1])


def test_timed_bursts_start_on_their_deadline_or_when_the_one_before_has_ended():
    far = predict(MODEL, Schedule((Burst(512), Burst(512, start_ns=50_000)), 128, start="timed"))
    assert far.start_ns.tolist() == [0, 50_000]
    late = predict(MODEL, Schedule((Burst(200 * 512), Burst(512, start_ns=10)), 128, start="timed"))
    assert late.start_ns[1] == late.end_ns[0]
    np.testing.assert_allclose(late.end_ns - late.start_ns, late.issue_cycles * 1e3 / CLOCK)


def test_the_drain_does_not_scale_with_the_sm_clock():
    schedule = Schedule((Burst(4 * 512), Burst(400 * 512)), 128)
    slow, fast = predict(MODEL, schedule, sm_clock_mhz=1000.0), predict(MODEL, schedule, sm_clock_mhz=2000.0)
    assert slow.issue_cycles[0] == fast.issue_cycles[0]
    assert slow.end_ns[1] == pytest.approx(fast.end_ns[1])
    assert slow.end_ns[0] == pytest.approx(2 * fast.end_ns[0])


def test_between_fitted_points_the_law_lies_between_them():
    model = model_of(*(entry(k, w, cost=c, rate=r) for w, c in ((1, COST), (4, 40.0)) for k, r in ((8, 50.0), (128, 800.0))))
    at = law_at(model.pairs[0], 128, 4, CLOCK)
    assert (at.issue_base_cycles, at.issue_cycles_per_store) == pytest.approx((BASE, 40))
    assert at.mean_gb_per_s == pytest.approx(800)
    assert at.mean_capacity_bytes == pytest.approx(128 * PER_SM)
    middle = law_at(model.pairs[0], 32, 2, CLOCK)
    assert COST < middle.issue_cycles_per_store < 40
    assert middle.mean_gb_per_s == pytest.approx(200)  # a rate proportional to K stays so
    assert middle.mean_capacity_bytes == pytest.approx(32 * PER_SM)
    edge = law_at(model.pairs[0], 1000, 16, CLOCK)
    assert (edge.issue_cycles_per_store, edge.mean_gb_per_s) == (at.issue_cycles_per_store, at.mean_gb_per_s)
    assert edge.mean_capacity_bytes == pytest.approx(1000 * PER_SM)


def test_a_sweep_that_never_saturated_does_not_stall():
    law = {"issue_base_cycles": known(BASE), "issue_cycles_per_warp_store": known(COST)}
    never = dataclasses.replace(missing_entry(8, 1, "st.v4", "never"), **law)
    got = predict(model_of(never), Schedule((Burst(1 << 20),) * 4, 8, start="free"))
    np.testing.assert_allclose(got.issue_cycles, BASE + COST * 2048)
    assert set(got.regime) == {"free"}


def test_range_and_intervals():
    got = predict(MODEL, Schedule((Burst(512), Burst(1 << 20)), 128))
    assert got.in_calibrated_range.tolist() == [True, False]
    np.testing.assert_allclose(got.issue_high_cycles, 1.1 * got.issue_cycles)
    assert not predict(MODEL, Schedule((Burst(512),), 8)).in_calibrated_range.any()
    row = got.rows()[1]
    assert (row["burst"], row["in_calibrated_range"]) == (1, False)
    empty = predict(MODEL, Schedule((Burst(0), Burst(512)), 64, start="free"))
    assert (empty.issue_cycles[0], empty.regime[0]) == (0, "free")


def test_what_the_model_cannot_predict_is_refused():
    with pytest.raises(UsageError, match="no pair 1>0"):
        predict(MODEL, Schedule((Burst(512),), 8, source=1, destination=0))
    assert predict(MODEL, Schedule((Burst(512),), 8, source=1, destination=0), pair="0>1").pair == "0>1"
    with pytest.raises(UsageError, match="positive"):
        predict(MODEL, Schedule((Burst(512),), 8), sm_clock_mhz=float("nan"))
    with pytest.raises(DataError, match="nothing was identified"):
        predict(model_of(missing_entry(8, 1, "st.v4", "no valid samples")), Schedule((Burst(512),), 8))


@pytest.mark.parametrize("start", ["free", "timed"])
def test_bursts_after_the_first_of_warps_that_do_not_meet_are_flagged_and_nothing_else(start):
    bursts = tuple(Burst(8192, 3000 * (i > 0), 4000 * i) for i in range(3))
    meet = Schedule(bursts, 128, 4, start=start)
    apart = dataclasses.replace(meet, warps_meet=False)
    usual, flagged = predict(MODEL, meet), predict(MODEL, apart)
    assert (usual.in_calibrated_range.tolist(), usual.notes) == ([True] * 3, ())
    assert (flagged.in_calibrated_range.tolist(), flagged.notes) == ([True, False, False], (APART,))
    np.testing.assert_array_equal(flagged.issue_cycles, usual.issue_cycles)
    assert predict(MODEL, dataclasses.replace(apart, bursts=bursts[:1])).notes == ()
    wide = predict(MODEL, dataclasses.replace(apart, warps=8))
    assert (wide.in_calibrated_range.any(), wide.notes) == (np.False_, (EXTRAPOLATED, APART))
