"""Task schedules on the simulator: order, bounds, agreement with the predictor that shares no code with it, and the device's manners."""

from __future__ import annotations

from dataclasses import replace

import h200
import numpy as np
import pytest

from xstage_bench.device.sim import Faults, SimDevice
from xstage_bench.device.sim.core import Conditions
from xstage_bench.device.sim.presets import PRESETS
from xstage_bench.device.sim.tasks import POLL_CYCLES, TURN_CYCLES, course_of
from xstage_bench.errors import PairError, UsageError
from xstage_bench.model.document import load_model
from xstage_bench.model.tasks.costs import TaskCosts
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.device import TaskDevice
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule, TaskTrace

PRESET = PRESETS["h200-nv18-x2"]
LINK = PRESET.link_gb_per_s * 1e3 / PRESET.sm_clock_mhz


def alike(k: int, per_sm: list[tuple[int, int]], **more: object) -> TaskSchedule:
    """Every SM executes the same (compute, bytes)."""
    n = len(per_sm)
    compute, size = (np.tile([t[i] for t in per_sm], k) for i in (0, 1))
    none = np.full(k * n, NONE)
    columns = {"waits_for": none, "signals": none, "remote_bytes": size, **more}
    return TaskSchedule(producers=k, producer=np.repeat(np.arange(k), n), compute_cycles=compute, bytes=size, **columns)  # type: ignore[arg-type]


def executed(s: TaskSchedule, device: SimDevice | None = None) -> TaskTrace:
    return next(iter((device or SimDevice()).execute_tasks([s], repetitions=1, compute="spin")))


@pytest.mark.parametrize("form", FORMS)
def test_compute_alone_is_its_sum_and_what_is_limited_by_the_link_takes_its_time(form: str) -> None:
    course = course_of(PRESET, alike(132, [(1000, 0)] * 5, form=form), Conditions())
    assert course.end() == pytest.approx(5 * 1000 + 4 * TURN_CYCLES)
    s = alike(132, [(500, 65_536)] * 3, form=form)
    course = course_of(PRESET, s, Conditions())
    drain = s.volume_bytes / LINK
    assert course.visible >= drain
    # The SMs of a small unit are through first, and the last ones do not fill the link.
    assert 0.75 * drain < course.end() < 1.2 * drain


def test_a_lone_sm_pays_t0_and_its_own_drain() -> None:
    course = course_of(PRESET, alike(1, [(3000, 8192)], form="single"), Conditions())
    assert course.stored[0] - course.computed[0] == pytest.approx(178, abs=30)
    long = course_of(PRESET, alike(1, [(3000, 262_144)], form="single"), Conditions())
    drain = (262_144 - PRESET.capacity_alone_bytes) / PRESET.sm_bytes_per_cycle
    assert long.stored[0] - long.computed[0] == pytest.approx(drain + PRESET.credit, rel=0.1)


@pytest.mark.parametrize("publish", PUBLISHES)
def test_a_release_waits_for_its_scope(publish: str) -> None:
    s = alike(132, [(0, 10_240), (0, 0)], publish=publish)
    idle = s.first[-2]  # the last SM stores nothing and signals when the others have issued all theirs
    size = np.where(s.producer == 131, 0, s.bytes)
    signals = np.where(np.arange(s.task_count) == idle, 1, np.where(np.arange(s.task_count) == 0, 0, NONE))
    compute = np.where(s.producer == 131, 600, 0)
    s = replace(s, bytes=size, remote_bytes=size, signals=signals, compute_cycles=compute)
    course = course_of(PRESET, s, Conditions())
    own, other = course.signalled[0] - course.stored[0], course.signalled[idle] - course.computed[idle]
    assert other < 200 if publish == "relaxed" else other >= 600
    assert own < 100 if publish == "relaxed" else own > 2000
    assert (other > 3000) == (publish == "release.sys")


def test_an_event_waits_for_all_its_signals_and_a_poll() -> None:
    s = alike(3, [(1000, 0), (100, 0)], publish="relaxed")
    s = replace(s, signals=np.tile([0, NONE], 3), waits_for=np.tile([NONE, 0], 3))
    s = replace(s, compute_cycles=np.where((s.producer == 1) & (s.signals == 0), 9000, s.compute_cycles))
    course = course_of(PRESET, s, Conditions())
    assert course.start[s.waits_for == 0] == pytest.approx([9000 + POLL_CYCLES] * 3)


@pytest.mark.parametrize(("compute", "size"), [(20_000, 32_768), (9_000, 32_768)])
@pytest.mark.parametrize("dependent", [False, True])
def test_it_agrees_with_the_predictor(compute: int, size: int, dependent: bool) -> None:
    """They share no code, and their trees differ: the slowdown by stores within 8 %."""
    per_sm = [(compute, 0), (compute // 2, size)] * 3
    s = alike(132, per_sm)
    if dependent:
        wave = np.tile(np.arange(6) // 2, 132)
        quiet = s.bytes == 0
        s = replace(s, signals=np.where(quiet, wave, NONE), waits_for=np.where(quiet, NONE, wave))
    model = load_model(h200.MODEL)
    predicted = predict_tasks(model, s, costs=TaskCosts(gpu="", compute="spin", sm_clock_mhz=None, instrument={}), compiled=False)
    with_stores, without = executed(s), executed(s.without_stores())
    assert with_stores.total_ns / without.total_ns == pytest.approx(predicted.total_ns / predicted.without_stores_ns, rel=0.08)


def test_the_device_interleaves_repetitions_and_repeats_itself() -> None:
    a, b = alike(4, [(1000, 2048)]), alike(4, [(2000, 4096)])
    device = SimDevice()
    assert isinstance(device, TaskDevice)
    found = list(device.execute_tasks([a, b], repetitions=2, compute="mma"))
    assert [t.schedule for t in found] == [a, b, a, b]
    again = list(SimDevice().execute_tasks([a, b], repetitions=2, compute="mma"))
    assert [t.total_ns for t in found] == [t.total_ns for t in again]
    assert found[0].smids.tolist() == [0, 33, 66, 99]
    assert np.isnan(found[0].signal_end_ns).all()
    assert found[0].total_ns % PRESET.timer_tick_ns == 0


def test_what_it_cannot_execute_is_said() -> None:
    s = alike(4, [(1000, 2048)])
    for device, asked, words in (
        (SimDevice("burst-gap"), s, "knows no tasks"),
        (SimDevice(), replace(s, destination=5), "no GPU 5"),
        (SimDevice(), alike(200, [(1000, 2048)]), "200 producers"),
        (SimDevice(), replace(s, flavour="st.v2"), "flavour"),
    ):
        with pytest.raises(UsageError, match=words):
            executed(asked, device)
    with pytest.raises(PairError, match="0>1"):
        executed(s, SimDevice(faults=Faults(dropped=frozenset({(0, 1)}))))
