"""The compiled event loop against numpy's, unit by unit and in classes; what must not be loaded; what must not get in."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_worlds import NODE, drawn

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model import jit
from xstage_bench.model.node import compiled
from xstage_bench.model.node.classes import unit_table
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.node.packed import pack
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node, predict_packed
from xstage_bench.schedule.bursts import Burst, Schedule

NAMES = ("issue_cycles", "issue_max_cycles", "start_ns", "end_ns", "t0_cycles", "backlog_bytes", "visible_ns")


def agree(a: object, b: object) -> None:
    for name in NAMES:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-6, abs=1e-3), name
    # A difference of two large numbers.
    assert a.spread_ns == pytest.approx(b.spread_ns, rel=1e-6, abs=1e-3)


@pytest.fixture
def numba() -> None:
    pytest.importorskip("numba", exc_type=ImportError)


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("clock", [1980.0, 1200.0])
def test_the_compiled_loop_gives_the_numbers_of_numpy_s(exact: bool, clock: float) -> None:
    many = drawn(150, 7)
    fast, slow = (predict_node(NODE, many, sm_clock_mhz=clock, exact=exact, compiled=c) for c in (True, False))
    assert 0.2 < slow.stalled.mean() < 0.8
    agree(fast, slow)


QUEUED = IssueLaw(
    store_bytes=512.0, unroll=1.0, queue_operations=(4.0, 6.0, 8.0, 6.0), engine_operations=(4.0, 6.0, 8.0, 6.0), engine_cycles=20.0
)
OTHERS = [
    {"link_buffer_bytes": 0.0}, {"service_spread": 0.0}, {"credit_cycles": 0.0}, {"link_gb_per_s": 40.0}, {"link_gb_per_s": 5000.0},
    {"sm_bytes_per_cycle": 2.0}, {"placement": Placement((tuple(range(132)),))}, {"placement": Placement(tuple((i,) for i in range(132)))},
    {"issue": IssueLaw(tail_unheld=1.0)}, {"issue": QUEUED},
]  # fmt: skip


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("changes", OTHERS, ids=lambda c: next(iter(c.items()))[0] + str(next(iter(c.values())))[:6])
def test_they_agree_for_other_nodes_and_flavours(changes: dict[str, object]) -> None:
    many = drawn(40, 11, 200)
    fast, slow = (predict_node(replace(NODE, **changes), many, compiled=c) for c in (True, False))
    agree(fast, slow)
    if "issue" in changes:
        plain = predict_node(NODE, many, compiled=False)
        assert np.abs(slow.issue_cycles / plain.issue_cycles - 1).max() > 0.1, "the law makes a difference"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.booleans())
def test_they_agree_on_any_schedule(seed: int, exact: bool) -> None:
    pytest.importorskip("numba", exc_type=ImportError)
    many = drawn(3, seed)
    agree(*(predict_node(NODE, many, exact=exact, compiled=c) for c in (True, False)))


def test_a_class_of_like_units_is_exact() -> None:
    alike = replace(NODE, service_spread=0.0)
    many = drawn(60, 5)
    merged, exact = (predict_node(alike, many, exact=e, compiled=False) for e in (False, True))
    for name in ("issue_cycles", "issue_max_cycles", "start_ns", "end_ns", "backlog_bytes"):
        assert getattr(merged, name) == pytest.approx(getattr(exact, name), rel=1e-6, abs=1e-3), name


def test_merging_changes_little() -> None:
    many = drawn(200, 3)
    merged, exact = (predict_node(NODE, many, exact=e, compiled=False).issue_cycles for e in (False, True))
    deviation = np.abs(merged / exact - 1)
    assert np.median(deviation) < 0.002
    assert np.quantile(deviation, 0.95) < 0.07


@pytest.mark.parametrize("levels", [None, 1, 2, 3, 99])
def test_classes_keep_every_producer_and_byte_of_capacity(levels: int | None) -> None:
    members = np.array([NODE.placement.members(Schedule((Burst(0),), k).smids(range(132))) for k in (1, 23, 60, 100, 132)])
    count, table = unit_table(NODE, members, levels)
    assert table[:, 0].sum(axis=1) == pytest.approx(members.sum(axis=1))
    assert table[:, 1].sum(axis=1) == pytest.approx(NODE.unit_capacity(members).sum(axis=1))
    active = (members > 0).sum(axis=1)
    kinds = np.array([len({int(n) for n in row if n}) for row in members])
    assert (count == (active if levels in (None, 99) else np.minimum(count, kinds * levels))).all()
    for i, n in enumerate(count):
        assert table[i, 2, :n].sum() == active[i]
        order = table[i, 0, :n] / (table[i, 2, :n] * np.exp(table[i, 3, :n]))
        assert (np.diff(order) >= -1e-12).all()


def test_a_burst_of_idle_producers_is_drained_soon_even_when_a_later_one_stalls() -> None:
    first, later = Burst(4 * 2048), Burst(512 * 2048, 3000)
    alone = predict_node(NODE, [Schedule((first,), 132, 4, start="free")], compiled=False)
    both = predict_node(NODE, [Schedule((first, later), 132, 4, start="free")], compiled=False)
    assert both.visible_ns[0] == pytest.approx(alone.visible_ns[0], rel=0.2)
    assert both.backlog_bytes[0] == pytest.approx(alone.backlog_bytes[0], rel=0.01)


def test_arrays_are_predicted_as_the_schedules_they_came_from() -> None:
    many = drawn(20, 2)
    packed = pack(many)
    assert packed.first[-1] == sum(len(s.bursts) for s in many)
    assert packed.sets[packed.producers[4]] == many[4].producers
    agree(predict_packed(NODE, packed, compiled=False), predict_node(NODE, many, compiled=False))
    assert predict_node(NODE, []).issue_cycles.size == 0


def test_arrays_that_would_leave_their_bounds_are_refused() -> None:
    packed = pack(drawn(5, 1))
    for changes in (
        {"producers": packed.producers + 99}, {"producers": packed.producers - 99}, {"first": packed.first + 1},
        {"first": packed.first[::-1].copy()}, {"bytes": packed.bytes.astype(np.float32)}, {"bytes": packed.bytes[:-1]},
        {"gap_cycles": packed.gap_cycles * np.nan}, {"start_ns": packed.start_ns - 1.0}, {"rule": packed.rule + 3},
        {"warps": packed.warps * 0}, {"store_bytes": packed.store_bytes * 0},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="packed schedules"):
            replace(packed, **changes)


def test_without_numba_predictions_are_numpy_s_and_asking_for_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    jit.compiled.cache_clear()
    monkeypatch.setattr(compiled, "WORTH_LOADING", 1)
    many = drawn(3, 4)
    agree(predict_node(NODE, many), predict_node(NODE, many, compiled=False))
    with pytest.raises(UsageError, match="numba") as caught:
        predict_node(NODE, many, compiled=True)
    assert "pip install" in str(caught.value.hint)


@pytest.mark.usefixtures("numba")
def test_a_link_that_drains_nothing_is_refused_and_not_waited_for() -> None:
    with pytest.raises(DataError):
        predict_node(replace(NODE, link_gb_per_s=0.0), drawn(2, 1), compiled=True)


def test_numba_is_loaded_by_the_first_large_prediction_only() -> None:
    code = (
        "import sys\nimport xstage_bench.cli\nfrom xstage_bench.model.node.predict import predict_node\n"
        "from xstage_bench.model.node.parameters import NodeModel\nfrom xstage_bench.model.node.placement import uniform\n"
        "from xstage_bench.schedule.bursts import Burst, Schedule\n"
        "m = NodeModel(19.0, 370.0, 25.6, 16500.0, 12000.0, 560.0, 200000.0, 0.16, uniform(range(132)), 1980.0)\n"
        "predict_node(m, [Schedule((Burst(512),), 1)])\nassert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
