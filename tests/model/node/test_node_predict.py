"""Predictions of schedules: independence of batches, of clocks, of the calm short cut, and the closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.node import predict as predicting
from xstage_bench.model.node.parameters import NodeModel, spread_scores
from xstage_bench.model.node.placement import Placement, uniform
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import Burst, Schedule

MODEL = NodeModel(19.0, 370.0, 25.6, 16_500.0, 12_000.0, 560.0, 200_000.0, 0.1, uniform(np.arange(132)), 1980.0)
NAMES = ("issue_cycles", "issue_max_cycles", "start_ns", "end_ns", "t0_cycles", "spread_ns", "visible_ns")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    warps = draw(st.integers(1, 16))
    stores = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    start = draw(st.sampled_from(("isolated", "free", "timed")))
    gaps = draw(st.lists(st.integers(0, 30_000), min_size=len(stores), max_size=len(stores)))
    at = np.cumsum(gaps).tolist()
    bursts = tuple(Burst(n * warps * 512, g, int(t)) for n, g, t in zip(stores, gaps, at, strict=True))
    return Schedule(bursts, draw(st.integers(1, 132)), warps, start=start)


@settings(deadline=None, max_examples=20)
@given(st.lists(schedules(), min_size=2, max_size=6))
def test_a_schedule_is_predicted_alike_alone_and_among_others(many: list[Schedule]) -> None:
    together = predict_node(MODEL, many)
    for i, schedule in enumerate(many):
        alone = predict_node(MODEL, [schedule])
        mine = slice(int(together.first[i]), int(together.first[i + 1]))
        for name in NAMES:
            assert getattr(together, name)[mine] == pytest.approx(getattr(alone, name), rel=1e-9), name


@settings(deadline=None, max_examples=30)
@given(st.lists(schedules(), min_size=1, max_size=6))
def test_the_calm_short_cut_changes_no_issue_time(many: list[Schedule]) -> None:
    short = predict_node(MODEL, many, compiled=False)
    real = predicting.calm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicting, "calm", lambda rows: (np.zeros(rows.link.size, dtype=bool), *real(rows)[1:]))
        full = predict_node(MODEL, many, compiled=False)
    for name in ("issue_cycles", "issue_max_cycles", "start_ns", "end_ns"):
        assert getattr(short, name) == pytest.approx(getattr(full, name), rel=1e-4), name


@settings(deadline=None, max_examples=60)
@given(schedules(), st.booleans())
def test_no_byte_is_visible_before_the_link_can_have_carried_it(schedule: Schedule, exact: bool) -> None:
    found = predict_node(MODEL, [schedule], exact=exact, compiled=False)
    volume = np.array([b.bytes for b in schedule.bursts], dtype=np.float64) * schedule.producer_count
    through = volume if schedule.start == "isolated" else np.cumsum(volume)
    begin = schedule.bursts[0].start_ns if schedule.start == "timed" else 0
    assert (found.visible_ns >= (begin + through / MODEL.link_gb_per_s) * (1 - 1e-9)).all()


@settings(deadline=None, max_examples=30)
@given(schedules())
def test_no_burst_is_faster_than_its_issue_law_and_none_starts_before_its_time(schedule: Schedule) -> None:
    found = predict_node(MODEL, [schedule])
    assert (found.issue_max_cycles >= found.issue_cycles - 1e-6).all()
    assert (found.stall_cycles >= 0).all()
    if schedule.start == "timed":
        assert (found.start_ns >= np.array([b.start_ns for b in schedule.bursts]) - 1e-6).all()


def test_a_long_burst_of_all_sms_drains_at_the_link_s_rate() -> None:
    ends = predict_node(MODEL, [Schedule((Burst(n * 2048),), 132, 4) for n in (256, 512)]).visible_ns
    assert 132 * 2048 * 256 / (ends[1] - ends[0]) == pytest.approx(MODEL.link_gb_per_s, rel=3e-3)
    train = Schedule((Burst(32 * 2048, 500),) * 12, 132, 4, start="free")
    period = np.diff(predict_node(replace(MODEL, service_spread=0.0), [train]).start_ns)[4:8]
    assert period == pytest.approx(132 * 32 * 2048 / MODEL.link_gb_per_s, rel=0.01)


def test_another_clock_scales_the_sm_and_not_the_link() -> None:
    free, held = Schedule((Burst(8 * 512),), 132, 1), Schedule((Burst(512 * 2048),), 132, 4)
    slow, fast = (predict_node(MODEL, [free, held], sm_clock_mhz=c) for c in (990.0, 1980.0))
    assert slow.issue_cycles[0] == pytest.approx(fast.issue_cycles[0])
    held_ns = [p.issue_cycles[1] * 1e3 / p.sm_clock_mhz for p in (slow, fast)]
    assert held_ns[0] == pytest.approx(held_ns[1], rel=0.02)


def test_sms_of_small_units_end_first() -> None:
    placement = Placement((tuple(range(4)), tuple(range(4, 28)), tuple(range(28, 52))))
    model = replace(MODEL, placement=placement, service_spread=0.0)
    found = predict_node(model, [Schedule((Burst(256 * 2048),), tuple(range(52)), 4)])
    assert found.issue_max_cycles[0] > 1.05 * found.issue_cycles[0]


def test_closed_forms_follow_from_the_parameters() -> None:
    assert float(MODEL.drain_gb_per_s(1)) == pytest.approx(25.6 * 1.98)
    assert float(MODEL.drain_gb_per_s(132)) == 370.0
    assert MODEL.capacity_bytes(range(4)) == float("inf")
    sharing = MODEL.capacity_bytes(range(132))
    assert sharing == pytest.approx(132 * 16_500 + 22 * 12_000 + 200_000 - MODEL.link_bytes_per_cycle() * 560)
    # K = 1 pays what it outruns its own drain by, and no link.
    found = predict_node(MODEL, [Schedule((Burst(256 * 2048),), 1, 4)])
    assert found.issue_cycles[0] == pytest.approx(found.t0_cycles[0], rel=1e-6)


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(UsageError, match="sm_clock"):
        predict_node(MODEL, [Schedule((Burst(512),), 1)], sm_clock_mhz=0.0)
    with pytest.raises(UsageError):
        predict_node(MODEL, [Schedule((Burst(512),), 133)])
    with pytest.raises((UsageError, DataError)):
        predict_node(MODEL, [Schedule((Burst(512),), (5, 200))])


def test_scores_of_the_spread_have_no_bias() -> None:
    for count in (1, 2, 24, 25):
        scores = spread_scores(count)
        assert abs(scores.mean()) < 1e-9
        assert len(set(scores.round(9))) == count
