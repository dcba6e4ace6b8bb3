"""The same bursts with the destination in another process: one rank per GPU, CUDA IPC or NVSHMEM memory, any launcher.

::

    python -m xstage_bench.device.cuda.processes --memory plain --out plain.json
    mpirun -n 2 python -m xstage_bench.device.cuda.processes --memory ipc --out ipc.json
    torchrun --nproc-per-node 2 -m xstage_bench.device.cuda.processes --memory nvshmem --out nvshmem.json
    python -m xstage_bench.device.cuda.processes --compare plain.json ipc.json nvshmem.json

Each rank stores to the next one, one pair at a time. The kernel, its packing and its fit are those of every other run (`layout`,
`worker.BurstGpu`); only the address differs. The owner of the memory checks every byte of it before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.compile import compiled
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.device.cuda.gpu import watchdog
from xstage_bench.device.cuda.peer_memory import IpcWindows, NvshmemWindows, Windows
from xstage_bench.device.cuda.rank_gpu import RankGpu
from xstage_bench.device.cuda.rendezvous import Channel, PartnerError, Place, find_place
from xstage_bench.device.cuda.worker import WINDOWS_BYTES
from xstage_bench.errors import PairError, UsageError, WaivedError, XStageError
from xstage_bench.io.identity import Kernel, plain
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution
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


def measure_plain(repetitions: int = REPETITIONS) -> dict[str, Any]:
    """Measure the reference: one process owns source and destination (`CudaDevice`)."""
    device = CudaDevice()
    try:
        node = device.node()
        pairs = {}
        for source in range(len(node.gpus)):
            destination = (source + 1) % len(node.gpus)
            if (source, destination) not in node.pairs:
                raise WaivedError(f"pair {source}>{destination}: no peer access", "xstage topo shows the usable pairs")
            device.verify(source, destination)
            jobs = sweep(node.gpus[source].sm_count, source, destination, repetitions)
            pairs[f"{source}>{destination}"] = _rows(jobs, device.measure(jobs))
        return _document("plain", "one process", [{"name": g.name, "uuid": g.uuid} for g in node.gpus], pairs, device.kernels())
    finally:
        device.close()


def measure_rank(place: Place, memory: str, repetitions: int = REPETITIONS) -> dict[str, Any] | None:
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

            return RankRun(channel, gpu, open_windows, memory, repetitions).run()
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
        return _document(self._memory, self._place.launcher, ranks, pairs, compiled()) if self._place.rank == 0 else None

    def _introduce(self) -> list[dict[str, Any]]:
        mine = {"name": self._gpu.name, "uuid": self._gpu.uuid, "memory": self._memory}
        ranks = self._channel.exchange("GPUs", mine, _START_S)
        uuids = [r["uuid"] for r in ranks]
        if len(set(uuids)) < len(uuids):
            raise UsageError(f"ranks share a GPU: {', '.join(uuids)}", "start at most as many ranks per node as it has GPUs")
        if any(r["memory"] != self._memory for r in ranks):
            raise UsageError("the ranks were started with different --memory", "give all of them the same command")
        return [{"name": r["name"], "uuid": r["uuid"]} for r in ranks]

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


def _document(memory: str, launcher: str, ranks: list[dict[str, Any]], pairs: dict[str, Any], kernels: Sequence[Kernel]) -> dict[str, Any]:
    head = {"schema_version": 1, "memory": memory, "launcher": launcher, "kernels": plain(kernels)}
    return {**head, "ranks": ranks, "pairs": pairs}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Measure or compare as the command line says; rank 0 has something to print."""
    parser = argparse.ArgumentParser(
        prog="python -m xstage_bench.device.cuda.processes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", choices=MEMORIES, default="ipc", help="where the destination lives (default ipc; plain: one process)")
    parser.add_argument("--out", type=Path, help="the file that rank 0 writes")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where rank 0 listens, for ranks on several nodes")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="FILE", help="instead: T0, R and Q of recorded files, against plain")
    asked = parser.parse_args(arguments)
    if asked.compare:
        from xstage_bench.device.cuda.compare_memories import compare

        return compare([json.loads(path.read_text()) for path in asked.compare])
    if asked.memory == "plain":
        document: dict[str, Any] | None = measure_plain(asked.repetitions)
    else:
        document = measure_rank(find_place(rendezvous=asked.rendezvous), asked.memory, asked.repetitions)
    if document is None:
        return None
    if asked.out is not None:
        asked.out.write_text(json.dumps(document))
    return {name: document[name] for name in ("memory", "launcher", "ranks")} | {"rows": {p: len(r) for p, r in document["pairs"].items()}}


if __name__ == "__main__":
    try:
        answer = main()
    except XStageError as error:
        print(f"xstage: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(error.exit_code)  # a library's exit handlers may wait for a partner that is gone
    if answer is not None:
        json.dump(answer, sys.stdout, indent=1)
        print()
