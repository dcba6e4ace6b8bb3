"""The predictor of TaskSchedules: closed forms, the node model as its special case, and both ways of running the loop."""

from __future__ import annotations

from dataclasses import replace

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from published_node import X_STAGE, published_model
from random_schedules import random_tasks

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.document import load_model
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.tasks.costs import TaskCosts, costs_of, costs_of_replay, reference_costs
from xstage_bench.model.tasks.predict import TaskPrediction, predict_tasks
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule

NS = 1e3 / 1980.0
MODEL = load_model(h200.MODEL)
ENTRY = entry_of(MODEL.find("0>1"))  # type: ignore[arg-type]
assert ENTRY is not None
LINK = ENTRY.used["link_gb_per_s"]


def costs(**known: float) -> TaskCosts:
    """Constants that are what is given and nothing otherwise: closed forms have no instrument. `__` stands for the dot of a name."""
    found = {name.replace("__", "."): Estimate(value=value, standard_error=None, low=None, high=None) for name, value in known.items()}
    return TaskCosts(gpu="none", compute="spin", sm_clock_mhz=None, instrument=found)


NOTHING = costs()
PUBLISHING = {"signal_cycles__relaxed": 20.0, "signal_cycles__release__gpu": 800.0, "signal_cycles__release__sys": 2400.0}


def everything() -> TaskCosts:
    """Constants of every kind."""
    return costs(
        **PUBLISHING,
        **{f"event_cycles__{p.replace('.', '__')}": 900.0 for p in PUBLISHES},
        **{f"turn_cycles__{form}": 40.0 for form in FORMS},
        store_cycles__1=300.0,
        store_cycles__8=600.0,
        drain_gb_per_s__one_way=370.0,
        drain_gb_per_s__both_ways=355.0,
    )


def tasks(producers: int | tuple[int, ...], per_sm: list[dict[str, int]], **more: object) -> TaskSchedule:
    """Every producer executes the same list."""
    k = producers if isinstance(producers, int) else len(producers)
    n = len(per_sm)
    columns = {name: np.tile([t.get(name, default) for t in per_sm], k) for name, default in
               (("compute_cycles", 0), ("bytes", 0), ("waits_for", NONE), ("signals", NONE))}  # fmt: skip
    columns["remote_bytes"] = np.tile([t.get("remote_bytes", t.get("bytes", 0)) for t in per_sm], k)
    return TaskSchedule(producers=producers, producer=np.repeat(np.arange(k), n), **columns, **more)  # type: ignore[arg-type]


def predicted(s: TaskSchedule, c: TaskCosts = NOTHING, compiled: bool | None = False) -> TaskPrediction:
    return predict_tasks(MODEL, s, costs=c, compiled=compiled)


@pytest.mark.parametrize("form", FORMS)
def test_compute_alone_is_its_sum(form: str) -> None:
    c = costs(**{f"compute_excess_cycles__{form}": 10, f"turn_cycles__{form}": 5})
    p = predicted(tasks(132, [{"compute_cycles": 1000}] * 7, form=form), c)
    assert p.total_ns == pytest.approx((7 * 1010 + 6 * 5) * NS)
    assert p.without_stores_ns == p.total_ns
    assert np.isnan(p.store_end_ns).all()


def test_a_lone_sm_that_stores_little_pays_t0_only() -> None:
    p = predicted(tasks((7,), [{"compute_cycles": 5000, "bytes": 8192}] * 4, form="single", publish="relaxed"))
    assert p.issue_ns == pytest.approx(p.t0_ns)
    assert p.total_ns == pytest.approx((4 * 5000 * NS) + p.t0_ns.sum())


def test_ping_pong_hides_what_single_pays() -> None:
    work = [{"compute_cycles": 20_000, "bytes": 32_768}] * 12
    one, two = (predicted(tasks((7,), work, form=form)) for form in ("single", "ping_pong"))
    assert two.total_ns == pytest.approx(12 * 20_000 * NS + two.issue_ns[-1])
    assert one.total_ns == pytest.approx(12 * 20_000 * NS + one.issue_ns.sum())


@pytest.mark.parametrize(("compute", "size"), [(2_000, 32_768), (60_000, 32_768), (10_000, 65_536)])
@pytest.mark.parametrize("form", FORMS)
def test_a_long_job_takes_the_longer_of_compute_and_drain(compute: int, size: int, form: str) -> None:
    """max(compute, V/R), for as many tasks as make start and end not matter."""
    n = 60
    p = predicted(tasks(132, [{"compute_cycles": compute, "bytes": size}] * n, form=form, publish="relaxed"))
    drain = n * 132 * size / LINK
    busy = n * (compute * NS + (p.t0_ns[0] if form == "single" else 0.0))
    # `single` adds what of T0 the drain hides; the last stores of the slowest SMs add some percent.
    assert max(drain, busy) * 0.95 < p.total_ns < max(drain, busy) * 1.12


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_a_release_pays_its_empty_cost_and_the_backlog(share: float) -> None:
    """[V - R*T0]+ outstanding after an aligned burst of all SMs, at the link's rate, then the empty cost (results/h200-x2/fences)."""
    c = costs(signal_cycles__release__gpu=800, drain_gb_per_s__one_way=370, drain_gb_per_s__both_ways=370 * share)
    p = predicted(tasks(132, [{"bytes": 10_240, "signals": 0}, {"waits_for": 0}], both_ways=True), c)
    rate = LINK * share
    backlog = 132 * 10_240 - rate * p.t0_ns[0]
    mean = np.nanmean(p.publish_ns[p.schedule.signals >= 0])
    assert backlog / rate + 800 * NS > mean > 0.75 * backlog / rate + 800 * NS  # SMs of small units are through earlier
    assert np.nanmax(p.signal_end_ns) == pytest.approx(132 * 10_240 / rate + 800 * NS, rel=0.01)
    assert p.backlog_bytes[0] == pytest.approx(backlog, rel=0.06)
    none = predicted(tasks(132, [{"signals": 0}, {"waits_for": 0}]), c)
    assert none.publish_ns[0] == pytest.approx(800 * NS)


def test_scope_decides_whether_an_idle_sm_waits_for_the_others() -> None:
    base = tasks(132, [{"bytes": 10_240}])
    idle = 131
    quiet = np.where(base.producer == idle, 0, base.bytes)
    signals = np.where(base.producer == idle, 0, NONE)
    compute = np.where(base.producer == idle, 600, 0)
    found = {}
    for publish in PUBLISHES:
        s = replace(base, bytes=quiet, remote_bytes=quiet, signals=signals, compute_cycles=compute, publish=publish)
        found[publish] = predicted(s, costs(**PUBLISHING)).publish_ns[idle]
    assert found["relaxed"] == pytest.approx(20 * NS)
    assert found["release.gpu"] == pytest.approx(800 * NS)
    assert found["release.sys"] > (2400 + 3000) * NS


def test_an_event_waits_for_all_its_signals() -> None:
    s = tasks(4, [{"compute_cycles": 1000, "signals": 0}, {"compute_cycles": 10, "waits_for": 0}], publish="relaxed")
    s = replace(s, compute_cycles=np.where((s.producer == 2) & (s.signals == 0), 9000, s.compute_cycles))
    p = predicted(s, costs(signal_cycles__relaxed=7, event_cycles__relaxed=100))
    assert p.start_ns[s.waits_for == 0] == pytest.approx([(9000 + 7 + 100) * NS] * 4)


def test_dependencies_line_bursts_up_and_cost() -> None:
    """Without dependencies the SMs stagger and a wave order loses nothing; a wait at each wave's end lines them up again."""
    wave = [{"compute_cycles": 12_000, "signals": 0}] * 2 + [{"compute_cycles": 4000, "bytes": 32_768, "waits_for": 0}] * 2
    work = [{k: v + i if k in ("signals", "waits_for") else v for k, v in t.items()} for i in range(6) for t in wave]
    free = [{k: v for k, v in t.items() if k != "waits_for"} for t in work]
    tied, loose = predicted(tasks(132, work)), predicted(tasks(132, free))
    assert tied.total_ns / tied.without_stores_ns > 1.1 + loose.total_ns / loose.without_stores_ns - 1


def plain(k: int, warps: int, size: int, gap: int, n: int) -> tuple[Schedule, TaskSchedule]:
    """The same bursts as a Schedule with gaps and as tasks whose compute are the gaps, the instrument's part of them included."""
    wait = int(max(ENTRY.issue.turnaround, gap + ENTRY.issue.gap_overhead))
    bursts = [{"compute_cycles": wait if i else 0, "bytes": size} for i in range(n)]
    return (
        Schedule(tuple(Burst(size, gap) for _ in range(n)), k, warps, start="free"),
        tasks(k, bursts, warps=warps, form="single", publish="relaxed"),
    )


@pytest.mark.parametrize(
    ("k", "warps", "size", "gap", "n"),
    [(132, 4, 8192, 1000, 10), (132, 4, 32768, 4000, 20), (132, 4, 32768, 16000, 10), (132, 4, 65536, 20000, 10), (132, 4, 20480, 500, 10),
     (32, 4, 32768, 0, 10), (16, 1, 16384, 100, 20), (66, 8, 65536, 5000, 8), (12, 4, 65536, 500, 8), (8, 4, 65536, 500, 8)],
)  # fmt: skip
def test_plain_schedules_are_the_node_models(k: int, warps: int, size: int, gap: int, n: int) -> None:
    """What differs: after a stall the burst instrument's stamp queues behind the stores (`stall_turnaround`); tasks have no such part."""
    schedule, same = plain(k, warps, size, gap, n)
    node = predict_node(model_of(ENTRY), [schedule])
    p = predicted(same)
    issue = p.issue_ns.reshape(k, n).mean(axis=0) / NS
    assert issue[0] == pytest.approx(node.issue_cycles[0], rel=0.03)
    assert p.end_ns.reshape(k, n).mean(axis=0)[-1] == pytest.approx(
        node.start_ns[-1] + node.issue_cycles[-1] * NS - ENTRY.issue.start_lag_ns, rel=0.025
    )
    assert p.total_ns == pytest.approx(node.end_ns[-1] - ENTRY.issue.start_lag_ns, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(s=random_tasks())
def test_no_order_is_broken_and_no_byte_is_early(s: TaskSchedule) -> None:
    c = everything()
    p = predicted(s, c)
    assert np.isfinite(p.end_ns).all()
    assert (p.start_ns[1:] >= p.compute_end_ns[:-1] - 1e-6)[s.producer[1:] == s.producer[:-1]].all()
    lag = 1 if s.form == "single" else 2
    assert (p.start_ns[lag:] >= p.end_ns[:-lag] - 1e-6)[s.producer[lag:] == s.producer[:-lag]].all()
    for event in range(s.event_count):
        waiting = s.waits_for == event
        if waiting.any():
            assert p.start_ns[waiting].min() >= p.signal_end_ns[s.signals == event].max() + 900 * NS - 1e-6
    stored = s.bytes > 0
    assert (p.issue_ns[stored] >= p.t0_ns[stored] - 1e-6).all()
    assert (p.visible_ns >= p.store_end_ns - 1e-6)[s.remote_bytes > 0].all()
    if s.volume_bytes:
        assert p.all_visible_ns >= s.volume_bytes / (LINK * costs_of(c, s).link) - 1e-6
    assert p.total_ns == p.end_ns.max()
    assert np.nanmin(p.backlog_bytes, initial=0.0) >= -1e-3


@settings(max_examples=15, deadline=None)
@given(s=random_tasks())
def test_compiled_and_plain_loops_agree(s: TaskSchedule) -> None:
    pytest.importorskip("numba", exc_type=ImportError)
    c = everything()
    kernel = {name.replace(".", "__"): e.value for name, e in c.instrument.items()}
    for these in (c, costs(**kernel, operands_ahead_cycles=900.0, publishing_warps=1.0)):
        a, b = predicted(s, these, False), predicted(s, these, True)
        for name in ("start_ns", "compute_end_ns", "store_end_ns", "signal_end_ns", "backlog_bytes", "visible_ns"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-6, err_msg=name)


def test_a_lower_clock_stretches_what_the_sm_does_only() -> None:
    s = tasks(132, [{"compute_cycles": 50_000, "bytes": 2048}] * 5)
    slow, fast = (predict_tasks(MODEL, s, costs=NOTHING, sm_clock_mhz=mhz).total_ns for mhz in (1485.0, 1980.0))
    assert slow / fast == pytest.approx(1980 / 1485, rel=1e-3)
    s = tasks(132, [{"compute_cycles": 100, "bytes": 65_536}] * 20)
    slow, fast = (predict_tasks(MODEL, s, costs=NOTHING, sm_clock_mhz=mhz).total_ns for mhz in (1485.0, 1980.0))
    assert slow / fast == pytest.approx(1.0, abs=0.02)
    assert predicted(s.local()).stall_ns.max() == 0.0, "local stores meet no link"


def test_what_cannot_be_predicted_is_said() -> None:
    s = tasks(4, [{"bytes": 2048}])
    for change, clock, words in (
        ({"source": 3}, None, "no pair 3>1"),
        ({}, 0.0, "sm_clock_mhz"),
        ({"producers": (0, 1, 2, 500)}, None, "smid 500"),
    ):
        with pytest.raises(UsageError, match=words):
            predict_tasks(MODEL, replace(s, **change), sm_clock_mhz=clock)
    bare = replace(MODEL, pairs=[replace(p, node_basis=None) for p in MODEL.pairs])
    with pytest.raises(DataError, match="no node model"):
        predict_tasks(bare, s)
    assert predict_tasks(MODEL, s).in_calibrated_range.all()


def test_without_its_twin_the_rest_of_a_prediction_is_the_same() -> None:
    s = tasks(132, [{"compute_cycles": 500, "bytes": 32768}] * 3)
    both, alone = (predict_tasks(MODEL, s, costs=NOTHING, compiled=False, twin=twin) for twin in (True, False))
    assert np.isnan(alone.without_stores_ns)
    assert both.without_stores_ns < both.total_ns == alone.total_ns
    assert np.array_equal(both.store_end_ns, alone.store_end_ns)
    nothing = predict_tasks(MODEL, s.without_stores(), costs=NOTHING, compiled=False, twin=False)
    assert nothing.without_stores_ns == nothing.total_ns == both.without_stores_ns


def test_loads_wait_behind_the_sms_own_stores() -> None:
    """The event has long happened, but the load that reads it leaves the SM after what is outstanding; so does one of shared memory."""
    s = tasks(132, [{"bytes": 20_480}, {"compute_cycles": 10}], form="single", publish="relaxed")
    first = s.first[:-1]
    early = np.where(np.arange(s.task_count) == first[-1], 0, NONE)  # one SM stores nothing, and signals at once
    size = np.where(early == 0, 0, s.bytes)
    loose = replace(s, bytes=size, remote_bytes=size, signals=early)
    tied = replace(loose, waits_for=np.where(np.isin(np.arange(s.task_count), first + 1), 0, NONE))
    none, event = predicted(loose), predicted(tied)
    fetch = predicted(loose, everything())
    backlog_ns = 132 * 20_480 / 368 - none.issue_ns[0]
    for late in (event, fetch):
        assert late.start_ns[first + 1].mean() - none.start_ns[first + 1].mean() > 0.5 * backlog_ns


def test_operands_wait_until_the_sm_has_taken_its_stores() -> None:
    """One SM, 16 KB and then compute: what is asked for while they are issued comes 514 cycles after the last one."""
    s = tasks(1, [{"compute_cycles": 1000, "bytes": 16_384}, {"compute_cycles": 20_000}])

    def longer(ahead: float) -> tuple[float, float]:
        t = predicted(s, costs(operands_ahead_cycles=ahead))
        return float((t.compute_end_ns[1] - t.start_ns[1]) / NS) - 20_000, float(t.issue_ns[0] / NS)

    for ahead in (300.0, 600.0):  # what is asked for at the second task's start lies behind the stores of the first
        late, issue = longer(ahead)
        assert late == pytest.approx(issue + min(514, ahead) - ahead)
    assert longer(issue + 514)[0] == pytest.approx(0, abs=1e-6)
    assert longer(0.0)[0] == pytest.approx(0, abs=1e-6)  # a schedule that needs nothing from memory
    bare = predicted(s.without_stores(), costs(operands_ahead_cycles=600.0))
    assert (bare.compute_end_ns - bare.start_ns) / NS == pytest.approx([1000, 20_000])
    kept = predicted(s.local(), costs(operands_ahead_cycles=300.0))  # compute times are of such stores
    assert (kept.compute_end_ns[1] - kept.start_ns[1]) / NS == pytest.approx(20_000)


def test_operands_that_come_late_delay_products_and_the_start_of_the_next_task() -> None:
    k = 132
    for size, least in ((32_768, 1.1), (8_192, 1.0)):  # which the stage has no room for, and which it has
        s = tasks(k, [{"compute_cycles": 30_000, "bytes": size}] * 3)
        kernel, replay = (predicted(s, costs(operands_ahead_cycles=ahead)) for ahead in (1000.0, 0.0))
        assert least * replay.total_ns <= kernel.total_ns < 1.5 * replay.total_ns
        assert kernel.without_stores_ns == pytest.approx(replay.without_stores_ns)
        assert (np.diff(kernel.start_ns.reshape(k, 3), axis=1) >= 30_000 * NS - 1e-6).all()
    # A short task's operands are asked for whole in the task before: it begins when they have come, less what that one had asked for more.
    brief = tasks(k, [{"compute_cycles": 900, "bytes": 65_536}] * 3)
    late, plain = (predicted(brief, costs(operands_ahead_cycles=ahead)).start_ns.reshape(k, 3) for ahead in (1000.0, 0.0))
    later = (late[:, 2] - plain[:, 2]) / NS - (514 - (1000 - 900))
    assert later.min() > -1  # and until most of what the SM has stored has drained, at its share of the link
    assert later.mean() == pytest.approx((17_000 - 9_000) / (368 / 132 * NS), rel=0.3)


def test_a_role_goes_on_where_another_warp_publishes() -> None:
    """What a release waits for delays the event, not the role."""
    index = np.arange(132 * 4) % 4
    s = tasks(132, [{"compute_cycles": 3000, "bytes": 8192, "signals": i} for i in range(4)], form="single")
    own, other, relaxed = (
        predicted(replace(s, publish=p), costs(**PUBLISHING, publishing_warps=w))
        for p, w in (("release.gpu", 0.0), ("release.gpu", 1.0), ("relaxed", 0.0))
    )
    assert own.total_ns > 1.3 * other.total_ns
    assert other.start_ns == pytest.approx(relaxed.start_ns, abs=4 * 20 * NS + 1)  # but for a relaxed signal's own 20 cycles
    waits = replace(s, waits_for=np.where(index > 0, index - 1, NONE))
    late, early = (predicted(replace(waits, publish=p), costs(**PUBLISHING, publishing_warps=1.0)) for p in ("release.gpu", "relaxed"))
    assert late.total_ns > early.total_ns


def test_the_constants_of_the_recorded_node_and_of_a_replay() -> None:
    mma = reference_costs("mma")
    s = tasks(132, [{"bytes": 32_768, "signals": 0}, {"waits_for": 0}], both_ways=True)
    found = costs_of(mma, s)
    assert 0.9 < found.link <= 1.0
    assert found.wait > 500
    assert found.again > found.turn > 0
    assert costs_of(mma, replace(s, both_ways=False)).link == 1.0
    estimate = {"value": 700.0, "standard_error": 1.0, "low": 690.0, "high": 710.0}
    row = {"sm_clock_mhz": {**estimate, "value": 1790.0}}
    document = {"gpus": [{"name": "GPU X"}], "compute": "mma", "instrument": {"turn_cycles.single": estimate}, "rows": [row]}
    taken = costs_of_replay(document)
    assert (taken.gpu, taken.sm_clock_mhz, taken.instrument["turn_cycles.single"].value) == ("GPU X", 1790.0, 700.0)
    with pytest.raises(DataError, match="no constants"):
        costs_of_replay({"rows": []})
    own = predict_tasks(replace(MODEL, gpu="GPU X", tasks=[taken]), s)
    assert own.notes == ()
    assert own.document()["costs_from"] == "GPU X"


def test_issuing_costs_what_was_measured_and_between_and_beyond_on_the_same_lines() -> None:
    """Of a node that is written by hand; a single measured size has no slope."""
    published = published_model(X_STAGE, reference_costs())
    for stores, known, cycles in (
        ([1, 4, 8, 16, 64], {"store_cycles__1": 300.0, "store_cycles__8": 650.0}, [300, 450, 650, 1050, 3450]),
        ([8, 16], {"store_cycles__8": 650.0}, [650, 650]),
    ):
        work = [{"compute_cycles": 50_000, "bytes": n * 2048, "remote_bytes": 0} for n in stores]
        found = predict_tasks(published, tasks(1, work, form="single", publish="relaxed"), costs=costs(**known))
        assert found.t0_ns * X_STAGE.sm_clock_mhz / 1e3 == pytest.approx(cycles, abs=0.5)
