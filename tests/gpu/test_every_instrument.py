"""Every instrument once, in seconds: on one GPU to its own memory and to the host's, and to a peer where there is one."""

from __future__ import annotations

import h200
import numpy as np
import pytest
from pacing import STEP, WORKS, Pacing

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.kernels.attention.attention import STORES, best_build
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.variants import fused, then_push
from xstage_bench.measure import pulls
from xstage_bench.measure.copies import METHODS
from xstage_bench.measure.footprint import reduce, shapes
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.stage import stage_at
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.completion import completion_of
from xstage_bench.schedule.device import Compute, Execution
from xstage_bench.schedule.scenes import Scene
from xstage_bench.schedule.tasks import FORMS, NONE, TaskSchedule
from xstage_bench.schedule.watches import DOMAINS, Watch

pytestmark = pytest.mark.gpu
ITSELF, PEER = 0, 1


@pytest.fixture(params=[ITSELF, PEER], ids=["itself", "peer"])
def to(request: pytest.FixtureRequest, node: CudaDevice) -> int:
    if request.param == PEER and (0, PEER) not in node.node().pairs:
        pytest.skip("no second GPU that can be reached")
    return int(request.param)


def sms(node: CudaDevice) -> int:
    return node.node().gpus[0].sm_count


def measured(node: CudaDevice, to: int, flavour: str = "st.v4", completion: str = "fence.sys") -> None:
    """Verified first, then twice as many executions as there are slots."""
    k = sms(node) - (completion_of(completion).who == "sm")
    schedule = Schedule((Burst(65536),) * 2, k, 2, 0, to, flavour=flavour, completion=completion)
    found = list(node.measure([Execution(schedule, i, timeline=i == 3 and flavour == "st.v4") for i in range(4)]))
    assert {t.status for t in found} <= {"ok", "throttled"}, [t.detail for t in found]
    assert all((t.issue_cycles > 0).all() for t in found)
    assert (found[3].timeline_cycles is not None) == (flavour == "st.v4")


def test_bursts_to_the_host(node: CudaDevice) -> None:
    measured(node, HOST)


@pytest.mark.parametrize("flavour", ["st.v4", "red.f32", "bulk.2048", "tensor.8192"])
def test_bursts(node: CudaDevice, to: int, flavour: str) -> None:
    if flavour not in node.node().flavours:
        pytest.skip(f"this GPU has no {flavour}")
    measured(node, to, flavour, "red.release.gpu@sm" if flavour == "st.v4" else "fence.sys")


@pytest.mark.parametrize("work", ["idle", "mma"])
def test_a_scene(node: CudaDevice, to: int, work: str) -> None:
    ends = [(0, to), (0, HOST)] if to == ITSELF else [(0, 1), (1, 0)]
    halves = [tuple(node.node().gpus[0].smids[i : i + 8]) for i in (0, 8)]
    schedules = tuple(Schedule((Burst(65536),), half, 4, *pair, start="free") for half, pair in zip(halves, ends, strict=True))
    found = node.measure_scene(Scene(schedules, gap_work=work), 3)  # type: ignore[arg-type]
    assert {t.status for t in found[1:]} == {"ok"}, [t.detail for f in found for t in f.traces]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compute", ["spin", "mma"])
def test_a_replay(node: CudaDevice, to: int, form: str, compute: Compute) -> None:
    n, k = 4 * sms(node), sms(node)
    size, none = np.full(n, 8 * 2048), np.full(n, NONE)
    s = TaskSchedule(
        k, np.repeat(np.arange(k), 4), np.full(n, 8000), size, size, none, none, form=form, destination=to, both_ways=to == PEER
    )  # type: ignore[arg-type]
    found = list(node.execute_tasks([s, s.without_stores()], repetitions=2, compute=compute))
    assert {t.status for t in found} == {"ok"}, [t.detail for t in found]


@pytest.mark.parametrize("mode", ["curve", "message", *DOMAINS])
def test_a_watch(node: CudaDevice, to: int, mode: str) -> None:
    schedule, domains = Schedule((Burst(8192),), 16, 1, 0, to), mode if mode in DOMAINS else "same"
    watch = Watch(schedule, "ping" if mode in DOMAINS else mode, repetitions=6, domains=domains)  # type: ignore[arg-type]
    assert node.watch(watch).status == "ok"


@pytest.mark.parametrize("method", METHODS)
def test_a_copy(node: CudaDevice, to: int, method: str) -> None:
    found = node.copy(0, to, 1 << 26, 4, 3, 1, method)
    assert found["wrong"] == 0
    assert min(found["ms"]) > 0


def test_the_pacer(node: CudaDevice, to: int) -> None:
    stage, pacing = stage_at(find_model(h200.MODEL), min(132, sms(node)), 4), Pacing(0, to)
    pacing.verify(stage, 32)
    steps = np.zeros(8, dtype=STEP)
    steps["stores"], steps["work"] = 8, 4000
    for work in WORKS:
        assert (pacing.run(stage, steps, "paced", 4, work).issue_cycles > 0).all()  # type: ignore[arg-type]


def test_a_footprint(node: CudaDevice, to: int) -> None:
    for shape in shapes((to,), sms(node), [1, 4]):
        node.verify_deal(0, shape, 4 << 20)
        (stamps,) = node.deal(0, shape, 4 << 20, 1)
        assert reduce(stamps, shape, 0)["issue_mean_cycles"] > 0


def test_loads(node: CudaDevice, to: int) -> None:
    node.fill_pulled(0, to, 77)
    for _, shape in pulls.shapes(to, sms(node), 1, True):
        for stamps in node.pull(0, shape, 2):
            assert pulls.reduce(stamps, shape, 0, 77)["makespan_ns"] > 0


def test_the_attention(node: CudaDevice, to: int) -> None:
    gpus = {device: AttentionGpu(device) for device in {0, to}}
    if gpus[0].capability != (9, 0):
        pytest.skip("the attention kernel needs a GPU of sm_90")
    for gpu in gpus.values():
        gpu.reach(gpus)
    problem = Problem(4, 2, 128, 200, 2)
    rig = Rig(gpus, Placing(problem, (0, to)), seed=1)
    try:
        for store in STORES:
            build = best_build(128, store, 200, 2, sms(node))
            for variant in (fused(rig, build, "row-major"), then_push(rig, build)):
                found = rig.verify(variant.queue)
                assert [found[what] for what in ("unwritten", "stray", "late")] == [0, 0, False], variant.name
                assert all(v.ok for v in found["ranks"]), variant.name  # type: ignore[attr-defined]
    finally:
        rig.close()
