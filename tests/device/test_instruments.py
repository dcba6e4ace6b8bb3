"""Each instrument on its GPU, against a driver that keeps a log: while kernels run there are only launches and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_cuda
import numpy as np
import pytest
from fake_cuda import SHARED_BYTES, FakeCuda
from pacing import CONTROL, REPORT, STEP, Pacing

from xstage_bench.device.cuda import footprint, layout, scene, tasks, visibility, worker
from xstage_bench.device.cuda.copies_worker import Copies
from xstage_bench.device.cuda.footprint import Shape
from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.device.cuda.rank_gpu import RankGpu
from xstage_bench.device.cuda.scene_worker import SceneWorker
from xstage_bench.device.cuda.tasks_worker import TaskWorker
from xstage_bench.device.cuda.variant import Variant
from xstage_bench.device.cuda.visibility_worker import Visibility
from xstage_bench.errors import WaivedError
from xstage_bench.kernels.attention.attention import PLAN, AttentionBuild
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.model.stage import Stage
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.patterns import both_directions
from xstage_bench.schedule.scenes import Scene
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.schedule.watches import Watch

SMS = 24
LONE = SHARED_BYTES // 2 + 1024
NODE = Node(tuple(Gpu(i, "g", tuple(range(SMS)), 1980.0) for i in range(2)), ((0, 1), (1, 0)), 32.0)
#: What may happen between the first launch and the first wait after the last: nothing that compiles, allocates or waits.
HARMLESS = {"launch", "memcpyAsync", "record"}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch, sms=SMS)


def executions(count: int = 3, **changed: Any) -> list[Execution]:
    return [Execution(Schedule((Burst(4096),) * 2, 8, 1, 0, 1, **changed), i) for i in range(count)]


def started(gpu: worker.BurstGpu, slot: int, batch: layout.Batch, **more: Any) -> None:
    arrays = {"items": batch.items, "bursts": batch.bursts, "producer_of": batch.producer_of}
    gpu.start(slot, gpu.window, arrays, batch.stamps, 0.1, **more)


def test_bursts_fly_in_two_slots_and_only_copy_while_one_runs(cuda: FakeCuda) -> None:
    gpu = worker.BurstGpu(0)
    assert [x.kernel for x in cuda.launches] == ["xstage_census"]
    assert (cuda.launches[0].shared_bytes, gpu.smids) == (LONE, list(range(SMS)))
    written: list[int] = []

    def burst(launch: fake_cuda.Launch) -> None:
        """Check what came in, and stamp."""
        written.append(int(launch.read(0, layout.ITEM)["tag"]))
        stamps = np.zeros(48, layout.STAMP)
        stamps["start"] = len(written)
        launch.write(7, stamps)

    cuda.kernels["xstage_burst"] = burst
    batches = [next(layout.batches(executions(), gpu.smids, 1980.0, tag)) for tag in (0, 100)]
    cuda.log.clear()
    started(gpu, 0, batches[0])
    started(gpu, 1, batches[1])
    found = [gpu.collect(slot, batch.stamps) for slot, batch in enumerate(batches)]
    assert cuda.in_flight() == HARMLESS
    assert {entry[0] for entry in cuda.log} == HARMLESS | {"synchronize"}, "nor does reading a slot out wait for the other"
    assert cuda.did("synchronize") == [("synchronize", "event")] * 2
    assert written == [int(b.items["tag"][0]) for b in batches]
    assert [int(stamps["start"][0]) for stamps, _, _ in found] == [1, 2]
    assert all(verdicts.size == 4 and not verdicts["state"].any() and lines is None for _, verdicts, lines in found)
    launch = cuda.launches[-1]
    assert (launch.grid[0], launch.block[0], launch.attributes) == (SMS, 512, {"COOPERATIVE": 1})
    assert launch.shared_bytes >= LONE
    streams = {entry[-1] for entry in cuda.did("memcpyAsync", "record")}
    assert streams == {launch.stream} != {0}


def test_a_burst_variant_is_loaded_once_and_never_by_its_launch(cuda: FakeCuda) -> None:
    gpu, bulk = worker.BurstGpu(0), Variant(FLAVOURS["bulk.2048"])
    batch = next(layout.batches(executions(flavour="bulk.2048"), gpu.smids, 1980.0, 0))
    with pytest.raises(KeyError):
        started(gpu, 0, batch, kernel=(bulk, False))
    gpu.prepare(bulk, False)
    compiled = cuda.did("compile")
    gpu.prepare(bulk, False)
    started(gpu, 0, batch, kernel=(bulk, False))
    assert cuda.did("compile") == compiled
    assert cuda.launches[-1].shared_bytes == worker.BULK_SHARED_BYTES


def test_a_pair_is_verified_by_its_destination(cuda: FakeCuda) -> None:
    source, destination = worker.BurstGpu(0), worker.BurstGpu(1)
    batch = next(layout.batches(executions(1), source.smids, 1980.0, 0))

    cuda.kernels["xstage_consume"] = lambda launch: launch.write(7, np.array([(3, 512, 1, 2)], layout.FINDING))
    cuda.launches.clear()
    burst = {"producers": 8, "warps": 1, "stores": 8, "tag": 5, "stamps": batch.stamps}
    arrays = {"items": batch.items, "bursts": batch.bursts, "producer_of": batch.producer_of}
    found = source.verify(destination, Variant(FLAVOURS["st.v4"]), arrays, burst)
    assert found == {"state": 0, "mismatches": 3, "offset": 512, "expected": 1, "found": 2}
    who = [(x.kernel.removeprefix("xstage_"), x.gpu) for x in cuda.launches]
    assert who == [("poison", 1), ("burst", 0), ("consume", 1), ("untouched", 1)]
    assert [int(cuda.launches[2].parameter(i, "<u4")) for i in range(1, 6)] == [layout.WINDOW_BYTES, 8, 1, 8, 5]
    assert {int(x.parameter(0, "<u8")) for x in cuda.launches if x.gpu == 1} == {destination.window}


def test_a_rank_owns_a_burst_instrument(cuda: FakeCuda) -> None:
    gpu = RankGpu(3)
    assert (gpu.index, gpu.smids) == (1, list(range(SMS)))
    stamps, verdicts = gpu.execute(next(layout.batches(executions(), gpu.smids, 1980.0, 0)), gpu.window)
    assert (stamps.size, verdicts.size) == (48, 4)
    assert not any(gpu.check(gpu.window, {"producers": 8, "warps": 1, "stores": 8, "tag": 5}).values())


def run_scene(cuda: FakeCuda) -> list[str]:
    both, play = both_directions(NODE, (Burst(8192),)), SceneWorker()
    play.run(scene.pack(Scene((Schedule((Burst(8192),), 4, 4, 0, HOST),)), NODE, 1, 0))
    for rounds in (2, 3):  # buffers grow
        packed = scene.pack(both, NODE, rounds, 0)
        cuda.log.clear()
        found = play.run(packed)
        assert {gpu: out["repetitions"].size for gpu, out in found.items()} == {0: rounds, 1: rounds}
        assert found[0]["stamps"].shape == (rounds, SMS)
    assert [x.parameter(12, "<u4") for x in cuda.launches] == [0, 0, 1, 0, 1], "each is a rank of its own"
    return ["xstage_scene"] * 5


def run_tasks(cuda: FakeCuda) -> list[str]:
    n = 16
    none, zero = np.full(n, NONE), np.zeros(n, dtype=np.int64)
    schedule = TaskSchedule(8, np.repeat(np.arange(8), 2), zero + 100, zero + 4096, zero + 4096, none, none, warps=4, both_ways=True)
    packed = [tasks.pack(schedule, {0: range(SMS), 1: range(SMS)}, "spin")] * 2
    play = TaskWorker()
    play.load(packed)
    play.load(packed)
    assert len(cuda.did("compile")) == 2, "on each GPU once"
    cuda.log.clear()
    found = play.execute(1, 7)
    assert {gpu: out["stamps"].size for gpu, out in found.items()} == {0: n, 1: n}
    first, second = cuda.launches
    assert (first.block[0], first.parameter(8, "<u4"), second.parameter(12, "<u4")) == (256, 7, 1)
    assert cuda.memory[int(first.parameter(5, "<u8"))][0] == 1, "each stores to the other"
    assert cuda.memory[int(second.parameter(5, "<u8"))][0] == 0
    return ["xstage_tasks"] * 2


def run_visibility(cuda: FakeCuda) -> list[str]:
    play = Visibility()
    for domains in ("same", "prober", "prober.mapped", "producers"):
        watch = Watch(Schedule((Burst(8192),), 4, 1, 0, 1), "ping", domains=domains, beside=domains == "prober")  # type: ignore[arg-type]
        sizes = (watch.window_bytes * 4, visibility.DESTINATION_BOX_BYTES)
        cuda.log.clear()
        found = play.watch(0, 1, visibility.pack(watch, range(SMS), 3), visibility.result_shapes(watch), *sizes)
        assert {name: (out.shape, out.dtype) for name, out in found.items()} == visibility.result_shapes(watch)
    attributes = [x.attributes for x in cuda.launches]
    remote, mapped = {"MEM_SYNC_DOMAIN": "REMOTE"}, {"MEM_SYNC_DOMAIN_MAP": (2, 3)}
    assert attributes[::3] == [{}, {}, {}, remote]
    assert attributes[2::3] == [{}, remote, mapped, {}]
    assert [(x.gpu, x.grid[0], x.block[0], x.shared_bytes) for x in cuda.launches[3:6]] == [
        (0, SMS, 512, LONE), (1, 1, 1024, LONE), (0, 1, 32, 0),
    ]  # fmt: skip
    assert len({x.stream for x in cuda.launches[:3]}) == 3
    plan = cuda.launches[0].parameter(0, visibility.PLAN)
    assert {cuda.memory[int(plan[n])][0] for n in ("data", "destination_box", "found")} == {1}
    assert {cuda.memory[int(plan[n])][0] for n in ("source_box", "producer_of", "issue_stamps", "ping_stamps")} == {0}
    return ["xstage_vis_produce", "xstage_vis_respond", "xstage_vis_probe"] * 4


def run_copies(cuda: FakeCuda) -> list[str]:
    play = Copies()
    play.copy(0, 1, 1 << 20, 2, 1, 0, "copy_kernel")
    cuda.launches.clear()
    cuda.log.clear()
    found = play.copy(0, 1, 1 << 20, 3, 1, 1, "copy_engine")
    assert found == {"bytes": 1 << 20, "ms": [1.5], "wrong": 0}
    assert len(cuda.did("memcpyAsync")) == 4, "one to warm up, three that count"
    at = [i for i, entry in enumerate(cuda.log) if entry[:2] == ("launch", "xstage_hold")]
    assert {entry[0] for entry in cuda.log[at[1] : cuda.log.index(("synchronize", "event"), at[1])]} == HARMLESS
    cuda.log[:] = cuda.log[at[1] : cuda.log.index(("synchronize", "event"), at[1]) + 1]
    return ["xstage_number", "xstage_number", "xstage_hold", "xstage_hold", "xstage_numbered"]


def run_attention(cuda: FakeCuda) -> list[str]:
    gpu, build = AttentionGpu(0), AttentionBuild()
    pieces, mail = (gpu.zeroed(64), 1), gpu.zeroed(128)
    kernel = gpu.kernel(build)
    plan = np.zeros(1, PLAN)
    cuda.log.clear()
    gpu.meet(mail, 0, 1, mail, 1)
    begin = gpu.event()
    gpu.kernel(build).launch(plan, gpu.stream.ptr, SMS)
    kernel.launch(plan, gpu.stream.ptr, 5)
    gpu.copy_pieces(pieces, gpu.side_stream, blocks=8, epoch=3)
    gpu.event(gpu.side_stream)
    gpu.synchronize()
    assert gpu.elapsed_ms(begin, begin) == 1.5
    assert [x.grid[0] for x in cuda.launches] == [1, SMS, 5, 1]
    assert [x.shared_bytes for x in cuda.launches] == [0, build.shared_bytes, build.shared_bytes, 0]
    assert cuda.launches[0].stream == cuda.launches[1].stream != cuda.launches[3].stream
    assert cuda.launches[1].parameter(0, PLAN) == plan[0]
    assert not gpu.was_late()
    return ["xstage_meet", "xstage_attention", "xstage_attention", "xstage_copy_pieces"]


@pytest.mark.parametrize("run", [run_scene, run_tasks, run_visibility, run_copies, run_attention])
def test_nothing_is_compiled_allocated_or_awaited_while_kernels_run(cuda: FakeCuda, run: Callable[[FakeCuda], list[str]]) -> None:
    expected = run(cuda)
    assert [x.kernel for x in cuda.launches] == expected
    assert cuda.in_flight() <= HARMLESS
    assert not [entry for entry in cuda.log if entry[0] in ("compile", "module", "function")], "the second time everything is there"


def test_pulls_by_bulk_loads_and_the_attention_need_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = fake_cuda.install(monkeypatch, capability=(8, 0))
    with pytest.raises(WaivedError, match=r"GPU 1 has compute capability 8\.0"):
        AttentionGpu(1).kernel(AttentionBuild())
    assert CudaGpu(0).arch == "sm_80"
    assert "sm_90a" not in {entry[2] for entry in cuda.did("compile")}


def test_the_pacer_reads_what_was_asked_and_says_what_was_stamped(cuda: FakeCuda) -> None:
    stage = Stage.__new__(Stage)
    for name in Stage.__dataclass_fields__:
        object.__setattr__(stage, name, 4)
    pacing = Pacing()
    assert cuda.reached == {(0, 1)}
    assert cuda.memory[pacing.window][0] == 1

    def pace(launch: fake_cuda.Launch) -> None:
        reports, control = np.zeros((4, 2), REPORT), np.zeros(1, CONTROL)
        reports["start"], reports["end"], control["last_clock"], control["last_ns"] = 10, 30, 2000, 1000
        for number, array in ((10, reports), (11, control)):
            launch.write(number, array)

    cuda.kernels["xstage_pacing"] = pace
    found = pacing.run(stage, np.zeros(2, STEP), "paced", 3, "mma")
    assert (found.issue_cycles.tolist(), found.sm_clock_mhz) == ([[20, 20]] * 4, 2000.0)
    (launch,) = cuda.launches
    assert [int(launch.parameter(i, "<u4")) for i in (1, 2, 3, 5, 8)] == [2, 2, 3, 4, layout.WINDOW_BYTES]
    assert [entry[3] for entry in cuda.did("compile")] == [{"XSTAGE_COMPUTE": "0"}, {"XSTAGE_COMPUTE": "1"}]


def test_a_footprint_is_measured_in_memory_taken_before(cuda: FakeCuda) -> None:
    def burst(launch: fake_cuda.Launch) -> None:
        deal = launch.parameter(1, footprint.DEAL)
        results = np.zeros(int(deal["producers"]) * int(deal["warps"]), footprint.RESULT)
        results["end"], results["drained"], results["end_ns"], results["state"] = deal["stores"], deal["stores"] + 5, 9, 1
        launch.write(3, results)

    cuda.kernels["xstage_footprint"] = burst
    worker, shape = footprint.Footprints(), Shape(1, 1 << 20, 1, SMS, 4, 8)
    assert worker.verify(0, shape, 1 << 20)["mismatches"] == 0
    taken = len(cuda.log)
    found = worker.execute(0, shape, 1 << 20, 3)
    assert [(int(s["end"].max()), s.shape) for s in found] == [(8, (SMS, 4))] * 3
    assert not {entry[0] for entry in cuda.log[taken:]} & {"malloc", "function", "compile"}
    for launch in cuda.launches:
        assert launch.shared_bytes == (LONE if launch.kernel == "xstage_footprint" else 0)
    assert cuda.launches[-1].parameter(1, footprint.DEAL)["chunk_mask"] == shape.deal(0)["chunk_mask"]
