"""How far the destination of a burst may spread before address translation costs: the same stores, dealt over 1 MiB to 8 GiB.

``python -m xstage_bench.device.cuda.footprint --pair 0>1 --out footprint.json`` measures; it needs the GPUs for some seconds and ends by
itself. `rates` and `issue_times` reduce the rows to R and T0 (results/h200-x2/footprint). Kept apart from the probes: a Schedule has no
field for where in memory a burst goes.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import compile_kernel, compiled
from xstage_bench.device.cuda.identity import plain
from xstage_bench.errors import PairError, UsageError

DEAL = np.dtype([(n, "<u4") for n in ("chunk_mask", "run_log2", "multiplier", "inverse", "producers", "warps", "stores", "tag")])
RESULT = np.dtype([(n, "<u4") for n in ("start", "end", "drained", "start_ns", "end_ns", "state")])
MEETING = np.dtype([("start_ns", "<u8")] + [(n, "<u4") for n in ("arrived", "released", "abort", "pad")])
WRONG = np.dtype([("mismatches", "<u8"), ("offset", "<u8"), ("expected", "<u4"), ("found", "<u4")])

SLOT_BYTES = 512
FOOTPRINTS_MIB = tuple(1 << i for i in range(17))
LARGEST_MIB = 8192
RUN_SLOTS = (1, 128, 4096)  # 512 B, 64 KiB and 2 MiB (the page of cudaMalloc) before a warp moves elsewhere
STORES = {"all": (4, 8, 16, 32, 64, 256, 512), "few": (8, 32, 64, 512, 1024)}
FEW, WARPS = 8, 4
PASSES, REPETITIONS = 3, 5
_MULTIPLIER = 0x9E3779B1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 32)
_POISON, _THREADS, _LEAD_NS, _TIMEOUT_NS, _WATCHDOG_S = 0xA5A5A5A5, 512, 3000, 2_000_000_000, 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """One burst: K producers of W warps with `stores` warp-stores each, in runs of `run_slots`, over `footprint_bytes`."""

    destination: int
    footprint_bytes: int
    run_slots: int
    producers: int
    warps: int
    stores: int

    def deal(self, tag: int) -> NDArray[Any]:
        """Return the kernel's argument; the number of chunks is a power of two."""
        chunks = self.footprint_bytes // SLOT_BYTES // self.run_slots
        run_log2 = self.run_slots.bit_length() - 1
        values = (chunks - 1, run_log2, _MULTIPLIER, _INVERSE, self.producers, self.warps, self.stores, tag & 0xFFFFFFFF)
        return np.array([values], DEAL)


def slots(shape: Shape, producer: int, warp: int) -> NDArray[np.int64]:
    """Slots that a warp stores to, in order: what ``cuda/footprint.cu`` computes, for tests and for counting pages."""
    j = np.arange(shape.stores, dtype=np.uint64)
    low = shape.run_slots.bit_length() - 1
    chunk = (j >> np.uint64(low)) * np.uint64(shape.producers * shape.warps) + np.uint64(producer * shape.warps + warp)
    mask = np.uint64(shape.footprint_bytes // SLOT_BYTES // shape.run_slots - 1)
    place = (chunk * np.uint64(_MULTIPLIER)) & mask
    return np.asarray(place << np.uint64(low) | (j & np.uint64(shape.run_slots - 1)), dtype=np.int64)


def shapes(destinations: Sequence[int], sm_count: int, footprints_mib: Sequence[int] = FOOTPRINTS_MIB) -> list[Shape]:
    """Every burst of the sweep. Runs too long for each warp to have a chunk of its own are left out."""
    return [
        Shape(destination, mib << 20, run, producers, WARPS, stores)
        for destination in destinations
        for producers, sizes in ((sm_count, STORES["all"]), (min(FEW, sm_count), STORES["few"]))
        for mib in footprints_mib
        for run in RUN_SLOTS
        if run == 1 or (mib << 20) // (run * SLOT_BYTES) >= producers * WARPS
        for stores in sizes
    ]


class _Gpu:
    """Kernels of one GPU, and the largest footprint as its own memory. Everything is loaded and allocated before the first launch."""

    def __init__(self, index: int, largest_bytes: int, folder: Path) -> None:
        import cupy
        from cupy.cuda import runtime

        self.index, self._cupy, self._runtime = index, cupy, runtime
        runtime.setDevice(index)
        p = runtime.getDeviceProperties(index)
        self.name, self.sm_count = p["name"].decode(), int(p["multiProcessorCount"])
        raw = bytes(p["uuid"]).hex()
        self.uuid = f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:32]}"
        self.sm_clock_mhz = (p.get("clockRate") or runtime.deviceGetAttribute(13, index)) / 1e3
        cubin = folder / f"footprint{index}.cubin"
        cubin.write_bytes(compile_kernel("footprint.cu", f"sm_{p['major']}{p['minor']}"))
        module = cupy.RawModule(path=str(cubin), enable_cooperative_groups=True)
        self._burst, self._poison, self._check = (module.get_function(f"xstage_footprint{n}") for n in ("", "_poison", "_check"))
        self._shared = int(p["sharedMemPerMultiprocessor"]) // 2 + 1024  # a second CTA cannot join the SM
        self._burst.max_dynamic_shared_size_bytes = self._shared
        for kernel in (self._burst, self._poison, self._check):
            assert kernel.kernel is not None  # loads it now
        self.memory = runtime.malloc(largest_bytes)
        self._results = runtime.malloc(self.sm_count * 16 * RESULT.itemsize)
        self._meeting = runtime.malloc(MEETING.itemsize)
        self._wrong = runtime.malloc(WRONG.itemsize)
        self._producer_of = {k: cupy.asarray(self._table(k)) for k in (self.sm_count, min(FEW, self.sm_count))}

    def _table(self, producers: int) -> NDArray[np.int16]:
        table = np.full(max(256, self.sm_count), -1, np.int16)
        table[np.arange(producers) * self.sm_count // producers] = np.arange(producers)
        return table

    def burst(self, memory: int, shape: Shape, tag: int) -> NDArray[Any]:
        """Execute one burst; per producer and warp what the kernel stamped."""
        self._runtime.setDevice(self.index)
        self._runtime.memset(self._meeting, 0, MEETING.itemsize)
        out = np.zeros((shape.producers, shape.warps), RESULT)
        self._runtime.memset(self._results, 0, out.nbytes)
        deal = shape.deal(tag)
        u64 = np.uint64
        arguments = (u64(memory), deal, self._producer_of[shape.producers], u64(self._results), u64(self._meeting))
        self._burst((self.sm_count,), (_THREADS,), (*arguments, np.uint32(_LEAD_NS), u64(_TIMEOUT_NS)), shared_mem=self._shared)
        self._runtime.memcpy(out.ctypes.data, self._results, out.nbytes, self._runtime.memcpyDeviceToHost)
        return out

    def poison(self, size: int) -> None:
        self._runtime.setDevice(self.index)
        self._poison((self.sm_count * 4,), (256,), (np.uint64(self.memory), np.uint64(size // 16), np.uint32(_POISON)))
        self._runtime.deviceSynchronize()

    def check(self, shape: Shape, tag: int) -> NDArray[Any]:
        """Let this GPU check its own memory, every byte of the footprint."""
        self._runtime.setDevice(self.index)
        self._runtime.memset(self._wrong, 0, WRONG.itemsize)
        count = np.uint64(shape.footprint_bytes // 16)
        arguments = (np.uint64(self.memory), count, shape.deal(tag), np.uint32(_POISON), np.uint64(self._wrong))
        self._check((self.sm_count * 4,), (256,), arguments)
        out = np.zeros(1, WRONG)
        self._runtime.memcpy(out.ctypes.data, self._wrong, out.nbytes, self._runtime.memcpyDeviceToHost)
        return out


def measure(source: int, destination: int, footprints_mib: Sequence[int], passes: int = PASSES) -> dict[str, Any]:
    """Measure one ordered pair and the LOCAL control of its source; the longest burst of each kind is verified by the destination first.

    Returns
    -------
    dict
        ``gpus``, and ``rows``: one per execution, the first of each shape and pass marked ``first`` (its translations are cold).

    Raises
    ------
    PairError
        The destination does not hold what was stored, or a wait in the kernel timed out.
    """
    from cupy.cuda import runtime

    with TemporaryDirectory(prefix="xstage-") as folder:
        largest = max(footprints_mib) << 20
        gpus = {i: _Gpu(i, largest, Path(folder)) for i in dict.fromkeys((source, destination))}
        if source != destination:
            runtime.setDevice(source)
            runtime.deviceEnablePeerAccess(destination)
        gpu, tag = gpus[source], 0
        todo = shapes(tuple(gpus)[::-1], gpu.sm_count, footprints_mib)
        longest = {(s.destination, s.footprint_bytes, s.run_slots, s.producers): s for s in todo}  # sizes ascend
        rows: list[dict[str, Any]] = []
        order = np.random.default_rng(0)
        for shape in longest.values():
            faulthandler.dump_traceback_later(_WATCHDOG_S, exit=True)  # ends this process, even from within a call of CUDA
            tag += 1
            _verify(gpu, gpus[shape.destination], shape, tag * _MULTIPLIER)
        for number in range(passes):
            for at in order.permutation(len(todo)):
                shape = todo[at]
                faulthandler.dump_traceback_later(_WATCHDOG_S, exit=True)
                for repetition in range(REPETITIONS + 1):
                    tag += 1
                    stamps = gpu.burst(gpus[shape.destination].memory, shape, tag * _MULTIPLIER)
                    rows.append({**asdict(shape), "pass": number, "first": repetition == 0, **reduce(stamps, shape, source)})
        faulthandler.cancel_dump_traceback_later()
    facts = {i: {"uuid": g.uuid, "name": g.name, "sm_count": g.sm_count, "sm_clock_mhz": g.sm_clock_mhz} for i, g in gpus.items()}
    head = {"schema_version": 1, "source": source, "destination": destination, "kernels": plain(compiled())}
    return {**head, "gpus": facts, "rows": rows}


def reduce(stamps: NDArray[Any], shape: Shape, source: int) -> dict[str, float]:
    """Reduce one execution's stamps, shape (K, W), to the numbers of a row: per producer first start to last end, as everywhere."""
    if (stamps["state"] != 1).any():
        raise PairError(f"pair {source}>{shape.destination}: a wait inside the kernel ended by its time-out", "run 'xstage doctor'")
    first, last = stamps["start"].min(axis=1).astype(np.int64), stamps["end"].max(axis=1).astype(np.int64)
    issue = last - first
    return {
        "issue_mean_cycles": float(issue.mean()),
        "issue_max_cycles": float(issue.max()),
        "drain_mean_cycles": float((stamps["drained"].max(axis=1) - last).mean()),
        "makespan_ns": float(stamps["end_ns"].max()) - float(stamps["start_ns"].min()),
    }


def _verify(gpu: _Gpu, destination: _Gpu, shape: Shape, tag: int) -> None:
    destination.poison(shape.footprint_bytes)
    gpu.burst(destination.memory, shape, tag)
    (found,) = destination.check(shape, tag)
    if found["mismatches"]:
        raise PairError(
            f"pair {gpu.index}>{destination.index}: {found['mismatches']} wrong 16-byte words in {shape}, the first at offset "
            f"{found['offset']}: expected 0x{found['expected']:08x}, found 0x{found['found']:08x}"
        )


def rates(rows: Sequence[dict[str, Any]], sm_clock_mhz: float) -> Iterator[dict[str, Any]]:
    """R of each footprint: the slope of the slowest producer between the two longest bursts, in GB/s, over passes."""
    for key, group in _grouped(rows):
        sizes = sorted({r["stores"] for r in group})[-2:]
        volume = (sizes[1] - sizes[0]) * group[0]["producers"] * group[0]["warps"] * SLOT_BYTES
        longest = [_medians(group, n, "issue_max_cycles") for n in sizes]
        value = [volume / (b - a) * sm_clock_mhz * 1e-3 for a, b in zip(*longest, strict=True)]
        yield {**key, "gb_per_s": float(np.mean(value)), "standard_error": _error(value)}


def issue_times(rows: Sequence[dict[str, Any]], stores: int, column: str = "issue_mean_cycles") -> Iterator[dict[str, Any]]:
    """Issue time (or drain) of bursts of `stores` warp-stores for each footprint, and that of the first one, with translations cold."""
    for key, group in _grouped(rows):
        value = _medians(group, stores, column)
        cold = [r[column] for r in group if r["stores"] == stores and r["first"]]
        yield {**key, "cycles": float(np.mean(value)), "standard_error": _error(value), "first_cycles": float(np.median(cold))}


def _error(values: Sequence[float]) -> float | None:
    """Standard error over passes; null for one pass."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _grouped(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    names = ("destination", "producers", "run_slots", "footprint_bytes")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in names), []).append(row)
    for values, group in sorted(groups.items()):
        yield dict(zip(names, values, strict=True)), group


def _medians(group: Sequence[dict[str, Any]], stores: int, column: str) -> list[float]:
    """One median per pass, warm executions only."""
    chosen = [r for r in group if r["stores"] == stores and not r["first"]]
    return [float(np.median([r[column] for r in chosen if r["pass"] == p])) for p in sorted({r["pass"] for r in chosen})]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure as the command line says, write the file, and return a summary."""
    parser = argparse.ArgumentParser(prog="python -m xstage_bench.device.cuda.footprint", description=__doc__)
    parser.add_argument("--pair", default="0>1", help="source>destination (default 0>1)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--largest-mib", type=int, default=LARGEST_MIB, help="of each GPU's memory (default 8192; up to 65536)")
    parser.add_argument("--passes", type=int, default=PASSES)
    asked = parser.parse_args(arguments)
    ends = asked.pair.split(">")
    if len(ends) != 2 or not all(e.isdigit() for e in ends):
        raise UsageError(f"--pair {asked.pair} is no pair of GPUs", "for example --pair '0>1'")
    result = measure(int(ends[0]), int(ends[1]), [f for f in FOOTPRINTS_MIB if f <= asked.largest_mib], asked.passes)
    asked.out.write_text(json.dumps(result))
    clock = result["gpus"][result["source"]]["sm_clock_mhz"]
    return {"executions": len(result["rows"]), "rates": list(rates(result["rows"], clock))}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
