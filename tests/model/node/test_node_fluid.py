"""The event loop against cases with a closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.model.node.fluid import FREE, TIMED, FluidColumns, level_of, solve

L, F, Q, CREDIT = 100.0, 25.0, 10_000.0, 400.0


def _rows(
    members: list[float], load: list[float], *, rule: int = 0, gap: float = 0.0, period: float = 0.0, buffer: float = 0.0
) -> FluidColumns:
    n, m = len(load), np.array(members)[:, None]
    link = {"link": L, "sm_rate": F, "buffer": buffer, "credit": CREDIT, "store_bytes": 512.0, "evens_out": 1e5}
    link |= dict.fromkeys(("turnaround", "gap_overhead", "stall_turnaround", "blur"), 0.0)
    bursts = {"load": np.array(load)[:, None], "free": np.full((n, 1), 100.0), "gap": np.full((n, 1), gap), "unheld": np.zeros((n, 1))}
    return FluidColumns(
        members=m, weight=np.ones_like(m), multiple=np.ones_like(m), capacity=m * Q, deadline=period * np.arange(n, dtype=float)[:, None],
        bursts=np.array([n]), rule=np.array([rule]), **bursts, **{name: np.array([x]) for name, x in link.items()},
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 5)), min_size=1, max_size=12), st.floats(1, 200))
def test_the_level_serves_exactly_the_link(children: list[tuple[float, float]], link: float) -> None:
    children.sort(key=lambda c: c[0] / c[1])
    demand, weight = (np.array([c[i] for c in children])[:, None] for i in (0, 1))
    level = level_of(np.array([link]), demand, weight)
    served = np.minimum(demand, weight * np.where(np.isfinite(level), level, 1e30)).sum()
    assert served == pytest.approx(min(link, demand.sum()), rel=1e-9)


@pytest.mark.parametrize(
    ("members", "load", "buffer", "end"),
    [
        ([6, 6], 9_000.0, 0.0, 100.0),  # below the capacity: T0
        ([1], 100_000.0, 0.0, (100_000 - Q) / F + CREDIT),  # one SM alone is bound by its own rate
        ([6, 6], 50_000.0, 60_000.0, (50_000 - Q) * 12 / L + CREDIT - 60_000 / L),  # a buffer before the link delays the sharing
    ],
)
def test_an_isolated_burst_of_equal_units(members: list[float], load: float, buffer: float, end: float) -> None:
    assert solve(_rows(members, [load], buffer=buffer)).end[0, :, 0] == pytest.approx([end] * len(members), rel=1e-6)


def test_equal_units_wait_for_their_share_and_a_credit() -> None:
    out = solve(_rows([6, 6], [50_000.0]))
    per_sm = L / 12
    assert out.end[0, :, 0] == pytest.approx([(50_000 - Q) / per_sm + CREDIT] * 2)
    assert out.drained[0, :, 0] == pytest.approx([50_000 / per_sm] * 2, rel=1e-3)


def test_a_small_unit_is_served_faster_and_then_lends_its_share() -> None:
    out = solve(_rows([4, 6], [80_000.0]))
    first = (80_000 - Q) * 4 / (L / 2)
    emptied = 80_000 * 4 / (L / 2)
    drained = emptied * L / 2 / 6
    second = emptied + (80_000 - Q - drained) * 6 / L
    assert out.end[0, :, 0] == pytest.approx([first + CREDIT, second + CREDIT], rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 4000), st.integers(4, 12))
def test_equal_saturating_bursts_settle_at_the_period_of_the_link_or_of_the_isolated_burst(gap: float, bursts: int) -> None:
    out = solve(_rows([6, 6], [20_000.0] * bursts, rule=FREE, gap=gap))
    period = np.diff(out.start[:, 0, 0])[-1]
    assert period == pytest.approx(max(20_000 * 12 / L, gap + 10_000 * 12 / L + CREDIT), rel=1e-6)


def test_a_timed_train_slower_than_the_link_never_stalls_and_a_faster_one_does() -> None:
    need = 9_000 * 12 / L
    slow, fast = (solve(_rows([6, 6], [9_000.0] * 30, rule=TIMED, period=f * need)) for f in (1.02, 0.8))
    assert (slow.end - slow.start)[:, :, 0] == pytest.approx(100.0)
    issue = (fast.end - fast.start)[:, 0, 0]
    assert issue[0] == pytest.approx(100.0)
    assert issue[-1] > 500


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.lists(st.floats(512, 60_000), min_size=1, max_size=5), st.floats(0, 5000))
def test_every_burst_takes_its_free_time_and_drains_after_its_issue(members: list[int], load: list[float], gap: float) -> None:
    out = solve(_rows(sorted(map(float, members)), load, rule=FREE, gap=gap))
    assert (out.drained >= out.end - 1e-6).all()
    assert np.isfinite(out.end[: len(load)]).all()
    assert (out.end >= out.start + 100 - 1e-6).all()


def test_a_burst_right_after_a_stall_learns_of_its_room_a_credit_late() -> None:
    out = solve(_rows([6, 6], [50_000.0, 6_000.0], rule=FREE, gap=0.0))
    per_sm = L / 12
    assert (out.end - out.start)[1, 0, 0] == pytest.approx(6_000 / per_sm, rel=1e-6)
