"""The cuda device as its callers see it: packs Schedules, hands them to the worker process, and watches over it.

Every wait has a deadline. A worker that outlives it, or dies, is killed; the pair that was under way fails with `DeviceLostError`, and
the next call starts a new worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import permutations
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from xstage_bench.device.cuda import layout, tasks, visibility, worker
from xstage_bench.device.cuda import scene as scene_layout
from xstage_bench.device.cuda.debug import timeout_scale
from xstage_bench.device.cuda.footprint import Shape
from xstage_bench.device.cuda.pulls import PullShape
from xstage_bench.device.cuda.variant import Variant, variant_of
from xstage_bench.errors import DeviceLostError, PairError, WaivedError, XStageError
from xstage_bench.io.identity import Kernel, merged
from xstage_bench.machine.topology import read_topology
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.completion import completion_of, every_completion
from xstage_bench.schedule.device import Compute, Execution, Gpu, Node, PairLink
from xstage_bench.schedule.flavour import for_architecture
from xstage_bench.schedule.layouts import LAYOUTS
from xstage_bench.schedule.scenes import Scene, SceneTrace
from xstage_bench.schedule.tasks import Form, TaskSchedule, TaskTrace
from xstage_bench.schedule.trace import Trace
from xstage_bench.schedule.watches import Sighting, Watch

_START_S = 180.0  # contexts on every GPU, first compilation included
_COMPILE_S = 5.0  # one variant of the instrument, on every GPU
_GRACE_S = 20.0  # over twice the expected duration of a launch: the kernels' own time-outs end well before


class CudaDevice:
    """Real GPUs, in a worker process of their own.

    Parameters
    ----------
    process : int
        Number of this process within the run; a new one has new allocations.
    peer : {'gpu', 'host'}
        What the pairs of `node` store to: other GPUs, or pinned host memory.
    expect_links : int, optional
        NVLinks that should be up on each GPU, as in `read_topology`.
    """

    backend = "cuda"

    def __init__(self, *, process: int = 0, peer: Literal["gpu", "host"] = "gpu", expect_links: int | None = None) -> None:
        self.process = process
        self._peer = peer
        self._expect_links = expect_links
        self._worker: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._node: Node | None = None
        self._tag = process << 24
        self._level_mhz: dict[int, float] = {}
        self._loaded: set[tuple[Variant, bool]] = set()
        self._verified: set[tuple[int, int, str, str]] = set()
        self._arch: dict[int, str] = {}
        self._kernels: list[Kernel] = []
        self._rates: dict[tuple[int, str, str, int], tasks.TensorRate] = {}

    def node(self) -> Node:
        """Describe the GPUs; starts the worker.

        Raises
        ------
        WaivedError
            No CUDA driver, or no GPU.
        """
        if self._node is None or self._worker is None:
            facts = self._start()
            self._arch = {g["index"]: g["arch"] for g in facts["gpus"]}
            oldest = min(facts["gpus"], key=lambda g: int(str(g["arch"]).removeprefix("sm_")))["arch"]
            described: list[dict[str, Any]] = [{k: v for k, v in g.items() if k != "arch"} for g in facts["gpus"]]
            gpus = tuple(Gpu(**{**g, "smids": tuple(g["smids"])}) for g in described)
            granted = tuple((a, b) for a, b in facts["pairs"])
            joined = read_topology(expect_links=self._expect_links).by_uuid({g.uuid: g.index for g in gpus})
            pairs = tuple(pair for pair in granted if pair not in joined or joined[pair].usable)
            unusable = {
                f"{a}>{b}": (joined[a, b].reason if (a, b) in joined else None) or "the driver grants no peer access"
                for a, b in permutations([g.index for g in gpus], 2)
                if (a, b) not in pairs
            }
            links = {f"{a}>{b}": PairLink(c.links, c.line_rate_gb_per_s) for (a, b), c in joined.items()}
            rates = Counter(known.line_rate_gb_per_s for known in links.values() if known.line_rate_gb_per_s is not None)
            line_rate = max(rates, key=lambda rate: (rates[rate], rate), default=None)
            if self._peer == "host":  # the links to other GPUs say nothing about this one
                pairs, line_rate, links = tuple((g.index, HOST) for g in gpus), None, {}
            known = (for_architecture(oldest), tuple(LAYOUTS), every_completion())
            self._node = Node(gpus, pairs, facts["timer_tick_ns"], line_rate, unusable or None, *known, links or None)
        return self._node

    def kernels(self) -> list[Kernel]:
        """As `CompilingDevice.kernels`."""
        return self._kernels

    def verify(self, source: int, destination: int) -> None:
        """Check every byte of the destination, on the destination, after one burst into poisoned memory."""
        self.node()
        for flavour, plain in {(f, y) for a, b, f, y in self._verified if (a, b) == (source, destination)} or {("st.v4", "contiguous")}:
            self._verify(source, destination, Schedule((Burst(0),), 1, flavour=flavour, layout=plain))

    def _verify(self, source: int, destination: int, like: Schedule) -> None:
        """As `verify`, by the variant of the schedule `like`."""
        if destination == HOST and (like.flavour, like.layout) != ("st.v4", "contiguous"):
            raise PairError(f"pair {source}>{destination}: only plain stores to host memory can be verified", "use st.v4, contiguous")
        gpu, variant = self.node().gpus[source], variant_of(like)
        group = variant.flavour.group
        producers = gpu.sm_count - (completion_of(like.completion).who == "sm")
        for warps, most in ((4, 24), (1, 3)):
            fit = (layout.WINDOW_BYTES // warps // (group * variant.flavour.warp_store_bytes) - 1) * group
            stores = max(1, min(most, fit))
            size = stores * warps * like.warp_store_bytes
            shape = {"bursts": (Burst(size),), "producers": producers, "warps": warps, "start": "isolated"}
            schedule = replace(like, source=source, destination=destination, **shape)  # type: ignore[arg-type]
            (batch,) = layout.batches([Execution(schedule)], gpu.smids, gpu.sm_clock_mhz, self._next_tag(1))
            burst = {"producers": producers, "warps": warps, "stores": stores, "tag": int(batch.items["tag"][0]), "stamps": batch.stamps}
            self._send("verify", source, destination, variant, _arrays(batch), burst)
            found = self._receive(source, destination, 10.0)
            what = "" if (like.flavour, like.layout) == ("st.v4", "contiguous") else f" ({like.flavour}, {like.layout})"
            if found["state"] != layout.STATE_DONE:
                raise PairError(
                    f"pair {source}>{destination}{what}: stores did not complete", "check the fabric manager, IOMMU and ACS settings"
                )
            if found["mismatches"]:
                raise PairError(
                    f"pair {source}>{destination}{what}: {found['mismatches']} of the destination's words are wrong, the first at offset "
                    f"{found['offset']}: expected 0x{found['expected']:08x}, found 0x{found['found']:08x}",
                    "do not use this link; check peer access, IOMMU and ACS settings, and run 'xstage doctor'",
                )
        self._verified.add((source, destination, like.flavour, like.layout))

    def _prepare(self, source: int, destination: int, executions: Sequence[Execution]) -> None:
        """Load the kernels of these executions on every GPU, and verify each flavour and layout once on this pair before it is timed."""
        wanted = {(variant_of(e.schedule), timeline): e.schedule for e in executions for timeline in {False, e.timeline}}
        missing = [key for key in wanted if key not in self._loaded]
        if missing:
            self._send("prepare", missing)
            self._receive(source, destination, _COMPILE_S * timeout_scale() * len(missing))
            self._loaded.update(missing)
        for schedule in wanted.values():
            if (source, destination, schedule.flavour, schedule.layout) not in self._verified:
                self._verify(source, destination, schedule)

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        """Execute in order; one launch runs on the GPU while the one before it is unpacked."""
        if not executions:
            return
        source, destination = executions[0].schedule.source, executions[0].schedule.destination
        if any((e.schedule.source, e.schedule.destination) != (source, destination) for e in executions):
            raise ValueError("all executions of one call must have the same source and destination")
        gpu = self.node().gpus[source]
        for schedule in {e.schedule for e in executions}:
            layout.check(schedule, gpu.smids)
        self._prepare(source, destination, executions)
        flying: deque[layout.Batch] = deque()
        try:
            for batch in layout.batches(executions, gpu.smids, gpu.sm_clock_mhz, self._next_tag(len(executions))):
                alone = batch.executions[0].timeline  # the buffer of per-store stamps exists once
                while flying and alone:
                    yield from self._collect(flying, source, destination)
                longest_s = max(layout.duration_s(s, gpu.sm_clock_mhz) for s in {e.schedule for e in batch.executions})
                self._send("launch", source, destination, batch.variant, _arrays(batch), batch.stamps, longest_s, alone)
                self._receive(source, destination, sum(b.expected_s for b in flying))
                flying.append(batch)
                if len(flying) == 2 or alone:
                    yield from self._collect(flying, source, destination)
            while flying:
                yield from self._collect(flying, source, destination)
        finally:
            if flying:  # interrupted with launches under way: their replies would be taken for those of the next call
                self._kill()

    def measure_scene(self, scene: Scene, repetitions: int) -> list[SceneTrace]:
        """Execute a scene on all of its GPUs at once, in one launch each; the first of the repetitions is marked ``warmup``.

        Raises
        ------
        PairError
            One of its pairs cannot be reached.
        """
        node = self.node()
        for a, b in scene.pairs():
            if (a, b) not in node.pairs and b != HOST:
                raise PairError(f"pair {a}>{b} cannot be measured: {(node.unusable or {}).get(f'{a}>{b}', 'no such pair')}", "xstage topo")
        packed = scene_layout.pack(scene, node, repetitions, self._next_tag(1))
        self._send("scene", packed)
        ends = scene.pairs()[0] if scene.pairs() else (scene.gpus()[0],) * 2
        return scene_layout.unpack(packed, self._receive(*ends, packed.expected_s), node.timer_tick_ns)

    def execute_tasks(self, schedules: Sequence[TaskSchedule], *, repetitions: int, compute: Compute) -> Iterator[TaskTrace]:
        """Execute TaskSchedules, as `TaskDevice.execute_tasks`; results/h200-x2/replay. One call at a time.

        Raises
        ------
        PairError
            Their pair cannot be reached, or its destination does not hold what is stored.
        UsageError
            The replay cannot execute one of them.
        """
        if not schedules:
            return
        a, b = schedules[0].source, schedules[0].destination
        if any((s.source, s.destination) != (a, b) for s in schedules):
            raise ValueError("all schedules of one call must have the same source and destination")
        for flavour, both_ways in {(s.flavour, s.both_ways) for s in schedules}:
            self._check_tasks(a, b, flavour)
            if both_ways:
                self._check_tasks(b, a, flavour)
        packed = {key: self._pack_tasks(s, compute) for key, s in {id(s): s for s in schedules}.items()}
        self._load_tasks(list(packed.values()))
        place = {key: i for i, key in enumerate(packed)}
        for _ in range(repetitions):
            for s in schedules:
                yield tasks.unpack(s, packed[id(s)], self._execute_tasks(place[id(s)], packed[id(s)]))

    def tensor_rate(self, source: int, form: Form, warps: int) -> tuple[str, tasks.TensorRate]:
        """Return the instruction that does tensor-core work here, and what it costs; measured when first asked for."""
        node = self.node()
        instruction = tasks.instruction_for("mma", warps, self._arch[source])
        key = (source, instruction, form, warps)
        if key not in self._rates:
            schedule = tasks.calibration(warps, form, node.gpus[source].sm_count, source)
            packed = tasks.pack(schedule, {source: node.gpus[source].smids}, instruction)
            self._load_tasks([packed])
            found = [tasks.rate_of(packed, self._execute_tasks(0, packed)[source]["stamps"]) for _ in range(5)][1:]
            self._rates[key] = tasks.TensorRate(*(float(x) for x in np.median([astuple(r) for r in found], axis=0)))
        return instruction, self._rates[key]

    def _check_tasks(self, source: int, destination: int, flavour: str) -> None:
        node = self.node()
        if source == destination:
            return
        if (source, destination) not in node.pairs:
            why = (node.unusable or {}).get(f"{source}>{destination}", "no such pair")
            raise PairError(f"pair {source}>{destination} cannot be measured: {why}", "xstage topo")
        if (source, destination, flavour, "contiguous") not in self._verified:
            plain = Schedule((Burst(0),), 1, source=source, destination=destination, flavour=flavour)
            self._prepare(source, destination, [Execution(plain)])

    def _pack_tasks(self, schedule: TaskSchedule, compute: Compute) -> tasks.PackedTasks:
        gpus = self.node().gpus
        ends = (schedule.source, schedule.destination) if schedule.both_ways else (schedule.source,)
        smids = {g: gpus[g].smids for g in ends}
        if compute == "spin":
            return tasks.pack(schedule, smids, "spin")
        return tasks.pack(schedule, smids, *self.tensor_rate(schedule.source, schedule.form, schedule.warps))

    def _load_tasks(self, packed: list[tasks.PackedTasks]) -> None:
        self._send("tasks_load", packed)
        self._receive(packed[0].source, packed[0].destination, _COMPILE_S * len({p.variant for p in packed}) + 0.01 * len(packed))

    def _execute_tasks(self, which: int, packed: tasks.PackedTasks) -> Any:
        self._send("tasks_execute", which, self._next_tag(1) * 0x61C88647 & 0xFFFFFFFF)
        return self._receive(packed.source, packed.destination, packed.expected_s)

    def _collect(self, flying: deque[layout.Batch], source: int, destination: int) -> list[Trace]:
        self._send("collect")
        stamps, verdicts, lines = self._receive(source, destination, sum(b.expected_s for b in flying))
        batch = flying.popleft()
        clocks = layout.clocks_mhz(verdicts, len(batch.executions))
        # A launch of a few executions measures its clock badly; one reading above the GPU's highest clock would mark all after it.
        seen = min(float(np.median(clocks)), self.node().gpus[source].sm_clock_mhz)
        level = self._level_mhz[source] = max(self._level_mhz.get(source, 0.0), seen)
        return list(layout.unpack(batch, stamps, verdicts, level, lines))

    def watch(self, watch: Watch) -> Sighting:
        """See when the stores of a schedule become visible (results/h200-x2/visibility)."""
        s = watch.schedule
        packed = visibility.pack(watch, self.node().gpus[s.source].smids, self._next_tag(watch.repetitions))
        sizes = (watch.window_bytes * s.producer_count, visibility.DESTINATION_BOX_BYTES)
        self._send("visibility", s.source, s.destination, packed, visibility.result_shapes(watch), *sizes)
        return visibility.unpack(watch, packed["smids"], self._receive(s.source, s.destination, visibility.TOTAL_NS * 1e-9))

    def copy(self, source: int, destination: int, size: int, loops: int, samples: int, warmups: int, method: str) -> dict[str, Any]:
        """Copy a whole buffer to a peer, by the copy engine or by a kernel on all SMs (`copies_worker.Copies.copy`)."""
        self._send("copy", source, destination, size, loops, samples, warmups, method)
        return dict(self._receive(source, destination, size * (loops * samples + warmups) / 20e9))

    def deal(self, source: int, shape: Shape, largest_bytes: int, count: int) -> list[Any]:
        """Execute a burst that is dealt over a large destination (`footprint.Footprints.execute`)."""
        self._send("deal", source, shape, largest_bytes, count)
        return list(self._receive(source, shape.destination, 1.0))

    def verify_deal(self, source: int, shape: Shape, largest_bytes: int) -> None:
        """Let the destination check every byte of such a burst.

        Raises
        ------
        PairError
            Naming the first wrong word.
        """
        self._send("verify_deal", source, shape, largest_bytes)
        found = self._receive(source, shape.destination, 5.0)
        if found["mismatches"]:
            raise PairError(
                f"pair {source}>{shape.destination}: {found['mismatches']} wrong 16-byte words in {shape}, the first at offset "
                f"{found['offset']}: expected 0x{found['expected']:08x}, found 0x{found['found']:08x}",
                "do not use this link; run 'xstage doctor'",
            )

    def pull(self, source: int, shape: PullShape, count: int) -> list[Any]:
        """Load from the memory of a GPU or of the host (`pulls.Pulls.execute`)."""
        self._send("pull", source, shape, count)
        return list(self._receive(source, shape.owner, 1.0))

    def fill_pulled(self, source: int, owner: int, salt: int) -> None:
        """Write what `pull` reads."""
        self._send("pull_fill", source, owner, salt)
        self._receive(source, owner, 5.0)

    def close(self) -> None:
        """End the worker: politely by closing the pipe, then by force."""
        if self._pipe is not None:
            self._pipe.close()
        if self._worker is not None:
            self._worker.join(5.0)
            self._kill()
        self._pipe = self._worker = None

    def _next_tag(self, count: int) -> int:
        tag, self._tag = self._tag, self._tag + count
        return tag

    def _start(self) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._worker = context.Process(target=worker.main, args=(there,), name=f"xstage-cuda-{self.process}", daemon=True)
        self._worker.start()
        there.close()
        self._pipe = here
        self._loaded, self._verified = set(), set()
        if not here.poll(_START_S * timeout_scale()):
            self._kill()
            raise XStageError(
                f"the CUDA worker did not start within {_START_S * timeout_scale():.0f} s",
                "run 'xstage doctor'; try one GPU with CUDA_VISIBLE_DEVICES",
            )
        try:
            status, facts, *compiled = here.recv()
        except EOFError:
            self._kill()
            raise XStageError("the CUDA worker died while starting", "run with --debug; run 'xstage doctor'") from None
        if status != "ok":
            self._kill()
            if "ModuleNotFoundError" in facts or "ImportError" in facts:
                raise XStageError(f"the CUDA libraries are not installed: {facts}", "pip install 'xstage-bench[cuda13]' (or cuda12)")
            raise WaivedError(f"CUDA cannot be used here: {facts}", "run 'xstage doctor'; use --backend sim for a simulated node")
        self._kernels = merged(self._kernels, *compiled)
        return dict(facts)

    def _send(self, *message: Any) -> None:
        self.node()
        assert self._pipe is not None
        with contextlib.suppress(OSError):  # the worker is gone; the receive that follows says so
            self._pipe.send(message)

    def _receive(self, source: int, destination: int, expected_s: float) -> Any:
        assert self._pipe is not None
        pair = f"pair {source}>{destination}"
        patience_s = (2 * expected_s + _GRACE_S) * timeout_scale()
        try:
            if not self._pipe.poll(patience_s):
                self._kill()
                raise DeviceLostError(
                    f"{pair}: the GPU did not answer within {patience_s:.0f} s and its process was ended",
                    "likely causes: IOMMU or ACS on the path, a bridge half seated, the fabric manager; run 'xstage doctor'",
                )
            status, payload, *compiled = self._pipe.recv()
        except (EOFError, OSError):
            self._kill()
            raise DeviceLostError(f"{pair}: the process that owns the GPUs died", "see the kernel log (dmesg | grep -i xid)") from None
        if status != "ok":
            self._kill()  # a CUDA error is sticky: nothing more can be done in that context
            raise DeviceLostError(f"{pair}: {payload}", "see the kernel log (dmesg | grep -i xid); run 'xstage doctor'")
        self._kernels = merged(self._kernels, *compiled)
        return payload

    def _kill(self) -> None:
        if self._worker is not None and self._worker.is_alive():
            self._worker.kill()
            self._worker.join(10.0)
        self._worker = None
        self._node = None


def _arrays(batch: layout.Batch) -> dict[str, Any]:
    return {"items": batch.items, "bursts": batch.bursts, "producer_of": batch.producer_of}
