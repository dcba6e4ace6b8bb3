"""Sustained R of the flavours beside whole copies of a large buffer, on the same pair in one run: "370 of 478 GB/s, is that good?"

The copies follow nvbandwidth's published method (docs/method.md): 512 MiB, 16 copies between two events while a kernel holds the stream
until all is enqueued, the median of three samples; by the copy engine, and by a kernel of one CTA of 512 threads per SM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from xstage_bench.device import Device, Execution
from xstage_bench.environment import snapshot
from xstage_bench.errors import PairError
from xstage_bench.flavour import FLAVOURS
from xstage_bench.schedule import Burst, Schedule
from xstage_bench.trace import Trace

SCHEMA_VERSION = 1
METHODS = ("copy_engine", "copy_kernel")
BUFFER_BYTES = 512 << 20
LOOPS, SAMPLES, WARMUPS = 16, 3, 4
#: Stores that fill the link: what a kernel author would choose from.
CANDIDATES = ("st.v4", "bulk.1024", "bulk.2048", "bulk.4096", "bulk.8192", "tensor.8192", "tensor.16384")
SUSTAINED_BYTES = 8 << 20  # per SM, 1.1 GB by all of an H200: the fence at the end is a third of a percent
WARPS, EXECUTIONS = 4, 9


class Copier(Device, Protocol):
    """A device that can copy as well."""

    def copy(self, source: int, destination: int, size: int, loops: int, samples: int, warmups: int, method: str) -> dict[str, Any]:
        """Copy a buffer; milliseconds of each sample."""
        ...


def copy_rates(device: Copier, source: int, destination: int, method: str) -> list[float]:
    """GB/s of each sample of one method; `PairError` when the copy is not what was copied."""
    found = device.copy(source, destination, BUFFER_BYTES, LOOPS, SAMPLES, WARMUPS, method)
    if found["wrong"]:
        raise PairError(
            f"pair {source}>{destination}: {found['wrong']} wrong 16-byte words after {method}", "do not use this link; run 'xstage doctor'"
        )
    return [found["bytes"] * LOOPS / ms * 1e-6 for ms in found["ms"]]


def store_rates(device: Device, source: int, destination: int, flavour: str) -> list[float]:
    """GB/s of one long burst of all SMs, from the first start to the last system fence, of each execution but the first.

    Not by the makespan of the issue: bulk copies end that with up to 7 % of a burst still in their sources.
    """
    sms = device.node().gpus[source].sm_count
    schedule = Schedule((Burst(SUSTAINED_BYTES),), sms, WARPS, source, destination, flavour=flavour)
    traces = list(device.measure([Execution(schedule, i) for i in range(EXECUTIONS + 1)]))[1:]
    bad = next((t for t in traces if t.status in ("corrupt", "timeout")), None)
    if bad is not None:
        raise PairError(bad.detail, "run 'xstage doctor'")
    return [SUSTAINED_BYTES * sms / _span_ns(t) for t in traces if t.status == "ok"]


def _span_ns(trace: Trace) -> float:
    return float((trace.end_ns + trace.drain_cycles / trace.sm_clock_mhz * 1e3).max() - trace.start_ns.min())


def measure_copies(
    open_copier: Callable[[int], Copier],
    pairs: Sequence[tuple[int, int]] | None,
    *,
    processes: int = 3,
    candidates: Iterable[str] = CANDIDATES,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure both methods and the flavours for every pair in fresh processes, and return the document.

    Parameters
    ----------
    open_copier : callable
        ``process number -> device``.
    pairs : sequence of (int, int), optional
        Default: all that the node has. One that fails is named in ``failed_pairs``.
    processes : int
    candidates : iterable of str
        Flavours; those that the node does not know are left out.
    say : callable, optional
    """
    rates: dict[tuple[str, str], list[list[float]]] = {}
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": "copies", "backend": "cuda"}
    document |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "environment_before": snapshot()}
    failed: dict[str, str] = {}
    for process in range(processes):
        device = open_copier(process)
        try:
            node = device.node()
            document["line_rate_gb_per_s"] = node.line_rate_gb_per_s
            document["gpus"] = [{"index": g.index, "name": g.name, "uuid": g.uuid} for g in node.gpus]
            for a, b in pairs if pairs is not None else node.pairs:
                pair = f"{a}>{b}"
                if pair in failed:
                    continue
                if say is not None:
                    say(f"process {process}, pair {pair}")
                try:
                    for what in METHODS:
                        rates.setdefault((pair, what), []).append(copy_rates(device, a, b, what))
                    for what in candidates:
                        if what in node.flavours and what in FLAVOURS:
                            rates.setdefault((pair, what), []).append(store_rates(device, a, b, what))
                except PairError as error:
                    failed[pair] = error.message
        finally:
            device.close()
    rows = [_row(pair, what, each, document["line_rate_gb_per_s"]) for (pair, what), each in rates.items()]
    method = {"buffer_bytes": BUFFER_BYTES, "loops": LOOPS, "samples": SAMPLES, "sustained_bytes": SUSTAINED_BYTES, "warps": WARPS}
    return {**document, "method": method, "environment_after": snapshot(), "failed_pairs": failed, "rows": rows}


def _row(pair: str, what: str, each: list[list[float]], line_rate: float | None) -> dict[str, Any]:
    """Median within a process, mean over processes, with the half width of its 95 % interval."""
    from scipy.stats import t as student

    medians = np.array([np.median(rates) for rates in each if rates])
    row: dict[str, Any] = {"pair": pair, "what": what, "kind": what if what in METHODS else "stores", "n": sum(len(r) for r in each)}
    if not medians.size:
        return row | {"gb_per_s": None, "half_width": None, "share_of_line": None, "reason": "no valid samples"}
    mean = float(medians.mean())
    reach = float(student.ppf(0.975, medians.size - 1) * medians.std(ddof=1) / medians.size**0.5) if medians.size > 1 else None
    return row | {
        "gb_per_s": round(mean, 2),
        "half_width": None if reach is None else round(reach, 2),
        "share_of_line": None if line_rate is None else round(mean / line_rate, 4),
        "reason": None,
    }


def best_stores(document: dict[str, Any], pair: str) -> dict[str, Any] | None:
    """Return the row of the flavour that drains fastest; null when none was measured."""
    rows = [r for r in document["rows"] if r["pair"] == pair and r["kind"] == "stores" and r["gb_per_s"] is not None]
    return max(rows, key=lambda r: float(r["gb_per_s"]), default=None)
