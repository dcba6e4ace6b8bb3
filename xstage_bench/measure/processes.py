"""The same bursts with the destination in another process: one rank per GPU, CUDA IPC or NVSHMEM memory, any launcher.

Each rank stores to the next one, one pair at a time. The kernel, its packing and its fit are those of every other run (`layout`,
`worker.BurstGpu`); only the address differs. The owner of the memory checks every byte of it before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.compile import compiled
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.device.cuda.gpu import watchdog
from xstage_bench.device.cuda.peer_memory import IpcWindows, NvshmemWindows, Windows
from xstage_bench.device.cuda.rank_gpu import RankGpu
from xstage_bench.device.cuda.rendezvous import Channel, PartnerError, Place
from xstage_bench.device.cuda.worker import WINDOWS_BYTES
from xstage_bench.errors import PairError, UsageError, WaivedError, XStageError
from xstage_bench.machine.environment import snapshot
from xstage_bench.measure.rounds import Outcome, Work, name_of
from xstage_bench.measure.survey import head_of, take
from xstage_bench.record.manifest import utc_now
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.trace import Trace

MEMORIES = ("plain", "ipc", "nvshmem")
#: Warp-stores per warp, by warps: an isolated sweep with its knee, long enough for the slope of the slowest producer.
SIZES = {1: (8, 16, 24, 28, 32, 36, 40, 44, 48, 64, 96, 128, 256, 512), 4: (4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)}
REPETITIONS, WARMUP = 9, 30
_START_S, _STEP_S, _MEASURE_S = 180.0, 60.0, 180.0
_VERIFY = ((4, 24), (1, 3))  # warps, warp-stores per warp: as CudaDevice.verify


def sweep(sm_count: int, source: int, destination: int, repetitions: int = REPETITIONS) -> list[Execution]:
    """All SMs, in a random order that is the same for every memory, after some warm-up."""
    schedules = [Schedule((Burst(n * w * 512),), sm_count, w, source, destination) for w, sizes in SIZES.items() for n in sizes]
    jobs = [Execution(s, r) for s in schedules for r in range(repetitions)]
    order = np.random.default_rng(0).permutation(len(jobs))
    warm = Schedule((Burst(64 * 4 * 512),), sm_count, 4, source, destination)
    return [*(Execution(warm, i, kind="warmup") for i in range(WARMUP)), *(jobs[i] for i in order)]


def row(trace: Trace, repetition: int) -> dict[str, Any]:
    """Reduce one execution to what the fit needs."""
    s, summary = trace.schedule, trace.summary()
    return {
        "producers": s.producer_count,
        "warps": s.warps,
        "stores": int(s.stores_per_warp()[0]),
        "repetition": repetition,
        **{n: round(float(summary[n][0]), 3) for n in ("issue_mean_cycles", "issue_max_cycles", "drain_mean_cycles")},
        "sm_clock_mhz": round(trace.sm_clock_mhz, 2),
        "status": trace.status,
        "detail": trace.detail,
    }


def measure_plain(repetitions: int = REPETITIONS, **kept: Any) -> dict[str, Any]:
    """Measure the reference: one process owns source and destination (`CudaDevice`).

    Parameters
    ----------
    repetitions : int
        Of each burst.
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.
    """
    rows: list[dict[str, Any]] = []

    def work(device: CudaDevice, process: int) -> Iterator[Work]:
        node = device.node()
        for source in range(len(node.gpus)):
            pair = source, (source + 1) % len(node.gpus)
            if pair not in node.pairs:
                raise WaivedError(f"pair {name_of(pair)}: no peer access", "xstage topo shows the usable pairs")
            yield Work((pair,), partial(measure, device, pair), device.verify)

    def measure(device: CudaDevice, pair: tuple[int, int]) -> Iterator[int]:
        jobs = sweep(device.node().gpus[pair[0]].sm_count, *pair, repetitions)
        rows.extend({"pair": name_of(pair), **row} for row in _rows(jobs, device.measure(jobs)))
        yield len(jobs)

    def body(node: Node) -> dict[str, Any]:
        ranks = [{"name": g.name, "uuid": g.uuid} for g in node.gpus]
        return {"memory": "plain", "launcher": "one process", "ranks": ranks, "rows": rows}

    return take("processes", lambda process: CudaDevice(process=process), work, body, processes=1, **kept)


def measure_rank(place: Place, memory: str, repetitions: int = REPETITIONS, argv: Sequence[str] = ()) -> dict[str, Any] | None:
    """Be one rank of a measurement; rank 0 returns the document.

    Raises
    ------
    PartnerError
        Another rank ended, hung or failed; it is named.
    PairError
        A destination does not hold what was stored.
    WaivedError, UsageError
        The memory cannot be shared here, or two ranks share a GPU.
    """
    if place.size < 2:
        raise UsageError("one process alone has no partner", "mpirun -n 2 ..., or --memory plain")
    watchdog(_START_S)
    with Channel(place) as channel:
        try:
            gpu = RankGpu(place.local_rank)

            def open_windows() -> Windows:
                if memory == "ipc":
                    return IpcWindows(gpu.index, gpu.window, channel)
                return NvshmemWindows(gpu.index, WINDOWS_BYTES, channel)

            before, created, started = snapshot(), utc_now(), time.monotonic()
            found = RankRun(channel, gpu, open_windows, memory, repetitions).run()
            if found is None:
                return None
            gpus = tuple(Gpu(i, r["name"], tuple(r["smids"]), r["sm_clock_mhz"], r["uuid"]) for i, r in enumerate(found["ranks"]))
            node = Node(gpus, tuple((i, (i + 1) % place.size) for i in range(place.size)), gpu.timer_tick_ns())
            outcome = Outcome({}, len(found["rows"]), time.monotonic() - started, [], compiled(), complete=True)
            return {**head_of("processes", "cuda", node, outcome, before, created, place.size, argv=argv), **found}
        except PartnerError:
            raise
        except Exception as error:
            channel.fail(error.message if isinstance(error, XStageError) else f"{type(error).__name__}: {error}")
            raise
        finally:
            watchdog(None)


class RankRun:
    """One rank of a measurement: the steps that all ranks take together.

    Parameters
    ----------
    channel : Channel
    gpu : RankGpu
    open_windows : callable
        Maps the windows of all ranks, a collective.
    memory : str
    repetitions : int
    """

    def __init__(self, channel: Channel, gpu: RankGpu, open_windows: Callable[[], Windows], memory: str, repetitions: int) -> None:
        self._channel, self._gpu, self._open = channel, gpu, open_windows
        self._place, self._memory, self._repetitions = channel.place, memory, repetitions
        self._tag = self._place.rank << 24

    def run(self) -> dict[str, Any] | None:
        """Verify and measure every pair; the rows travel to rank 0."""
        ranks = self._introduce()
        watchdog(_MEASURE_S)
        windows = self._open()
        pairs = {}
        for source in range(self._place.size):
            destination = (source + 1) % self._place.size
            for warps, stores in _VERIFY:
                self._verify(windows, source, destination, warps, stores)
            pair = f"{source}>{destination}"
            rows = None
            watchdog(_MEASURE_S)
            if self._place.rank == source:
                jobs = sweep(len(self._gpu.smids), source, destination, self._repetitions)
                rows = _rows(jobs, self._traces(jobs, windows.peers[destination]))
            pairs[pair] = self._channel.exchange(f"measured {pair}", rows, _MEASURE_S)[source]
        windows.close()
        if self._place.rank:
            return None
        rows = [{"pair": pair, **row} for pair, mine in pairs.items() for row in mine]
        return {"memory": self._memory, "launcher": self._place.launcher, "ranks": ranks, "rows": rows}

    def _introduce(self) -> list[dict[str, Any]]:
        facts = {"name": self._gpu.name, "uuid": self._gpu.uuid, "smids": list(self._gpu.smids), "sm_clock_mhz": self._gpu.sm_clock_mhz}
        mine = {**facts, "memory": self._memory}
        ranks = self._channel.exchange("GPUs", mine, _START_S)
        uuids = [r["uuid"] for r in ranks]
        if len(set(uuids)) < len(uuids):
            raise UsageError(f"ranks share a GPU: {', '.join(uuids)}", "start at most as many ranks per node as it has GPUs")
        if any(r["memory"] != self._memory for r in ranks):
            raise UsageError("the ranks were started with different --memory", "give all of them the same command")
        return [{name: r[name] for name in facts} for r in ranks]

    def _traces(self, jobs: list[Execution], address: int) -> Iterator[Trace]:
        level = 0.0
        for batch in layout.batches(jobs, self._gpu.smids, self._gpu.sm_clock_mhz, self._tag):
            stamps, verdicts = self._gpu.execute(batch, address)
            level = max(level, float(np.median(layout.clocks_mhz(verdicts, len(batch.executions)))))
            yield from layout.unpack(batch, stamps, verdicts, level)
        self._tag += len(jobs)

    def _verify(self, windows: Windows, source: int, destination: int, warps: int, stores: int) -> None:
        """Poison, store, and let the owner of the memory check every byte of it."""
        mine, step = self._place.rank, f"{source}>{destination}, {warps} warps"
        watchdog(_MEASURE_S)
        if mine == destination:
            self._gpu.poison(windows.own)
        self._channel.exchange(f"poisoned {step}", timeout_s=_STEP_S)
        said = None
        if mine == source:
            schedule = Schedule((Burst(stores * warps * 512),), len(self._gpu.smids), warps, source, destination)
            (batch,) = layout.batches([Execution(schedule)], self._gpu.smids, self._gpu.sm_clock_mhz, self._tag)
            self._tag += 1
            _, verdicts = self._gpu.execute(batch, windows.peers[destination])
            burst = {"producers": len(self._gpu.smids), "warps": warps, "stores": stores, "tag": int(batch.items["tag"][0])}
            said = {"state": int(verdicts["state"][0]), "burst": burst}
        stored = self._channel.exchange(f"stored {step}", said, _STEP_S)[source]
        found = self._gpu.check(windows.own, stored["burst"]) if mine == destination else None
        found = self._channel.exchange(f"checked {step}", found, _STEP_S)[destination]
        if stored["state"] != layout.STATE_DONE:
            raise PairError(f"pair {source}>{destination}: stores did not complete", "check the fabric manager, IOMMU and ACS settings")
        if found["mismatches"]:
            raise PairError(
                f"pair {source}>{destination}: {found['mismatches']} of the destination's 16-byte words are wrong, the first at offset "
                f"{found['offset']}: expected 0x{found['expected']:08x}, found 0x{found['found']:08x}",
                "do not use this memory; check IOMMU and ACS settings, and run 'xstage doctor'",
            )


def _rows(jobs: Sequence[Execution], traces: Iterator[Trace]) -> list[dict[str, Any]]:
    """Rows of all executions; a wrong or unfinished one fails the pair."""
    out = [row(trace, job.repetition) for job, trace in zip(jobs, traces, strict=True)]
    for one in out:
        if one["status"] in ("corrupt", "timeout"):
            raise PairError(one["detail"])
    return out
