"""Sustained R of the flavours beside whole copies of a large buffer, on the same pair in one run: "370 of 478 GB/s, is that good?"

The copies follow nvbandwidth's published method (docs/method.md): 512 MiB, 16 copies between two events while a kernel holds the stream
until all is enqueued, the median of three samples; by the copy engine, and by a kernel of one CTA of 512 threads per SM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from xstage_bench.errors import PairError
from xstage_bench.io.json_file import read_json
from xstage_bench.measure.rounds import Work, name_of
from xstage_bench.measure.survey import take
from xstage_bench.model.estimate import t_half_width
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Device, Execution, Node
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.trace import Trace

SCHEMA_VERSION = 1
COPIES_NAME = "copies.json"
METHODS = ("copy_engine", "copy_kernel")
BUFFER_BYTES = 512 << 20
LOOPS, SAMPLES, WARMUPS = 16, 3, 4
#: Stores that fill the link: what a kernel author would choose from.
CANDIDATES = ("st.v4", "bulk.1024", "bulk.2048", "bulk.4096", "bulk.8192", "tensor.8192", "tensor.16384")
SUSTAINED_BYTES = 8 << 20  # per SM, 1.1 GB by all of an H200: the fence at the end is a third of a percent
WARPS, EXECUTIONS = 4, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """One row of the document: a method of copying, or a flavour, on one pair.

    Parameters
    ----------
    pair, what, kind : str
        `kind` is ``stores`` for a flavour, else the method.
    n : int
        Samples of all processes.
    gb_per_s, half_width : float or None
        Mean over processes of the median, and half of its 95 % interval.
    share_of_line : float or None
        Of the link's raw rate per direction.
    reason : str or None
        Why there is no number.
    """

    pair: str
    what: str
    kind: str
    n: int
    gb_per_s: float | None
    half_width: float | None
    share_of_line: float | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesDocument:
    """What a report needs of ``copies.json``."""

    schema_version: int
    rows: list[CopyRate]


@runtime_checkable
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
    **kept: Any,
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
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.
    """
    rates: dict[tuple[str, str], list[list[float]]] = {}

    def work(device: Copier, process: int) -> Iterator[Work]:
        for pair in pairs if pairs is not None else device.node().pairs:
            yield Work((pair,), partial(measure_pair, device, *pair))

    def measure_pair(device: Copier, source: int, destination: int) -> Iterator[int]:
        pair = name_of((source, destination))
        for what in METHODS:
            rates.setdefault((pair, what), []).append(copy_rates(device, source, destination, what))
            yield SAMPLES
        for what in candidates:
            if what in device.node().flavours and what in FLAVOURS:
                rates.setdefault((pair, what), []).append(store_rates(device, source, destination, what))
                yield EXECUTIONS

    def body(node: Node) -> dict[str, Any]:
        method = {"buffer_bytes": BUFFER_BYTES, "loops": LOOPS, "samples": SAMPLES, "sustained_bytes": SUSTAINED_BYTES, "warps": WARPS}
        rows = [summarise(pair, what, each, node.line_rate(pair)) for (pair, what), each in rates.items()]
        return {"method": method, "rows": rows}

    return take("copies", open_copier, work, body, processes=processes, **kept)


def summarise(pair: str, what: str, each: Sequence[Sequence[float]], line_rate: float | None) -> CopyRate:
    """Reduce samples: median within a process, mean over processes, with the half width of its 95 % interval.

    Parameters
    ----------
    pair, what : str
    each : sequence of sequence of float
        GB/s of each sample, by process.
    line_rate : float or None
        GB/s.
    """
    kind = what if what in METHODS else "stores"
    medians = np.array([np.median(rates) for rates in each if len(rates)])
    if not medians.size:
        missing = {"gb_per_s": None, "half_width": None, "share_of_line": None}
        return CopyRate(pair=pair, what=what, kind=kind, n=0, reason="no valid samples", **missing)
    mean = float(medians.mean())
    reach = t_half_width(medians)
    return CopyRate(
        pair=pair,
        what=what,
        kind=kind,
        n=sum(len(rates) for rates in each),
        gb_per_s=round(mean, 2),
        half_width=None if reach is None else round(reach, 2),
        share_of_line=None if line_rate is None else round(mean / line_rate, 4),
        reason=None,
    )


def load_copies(folder: Path) -> list[CopyRate]:
    """Read ``copies.json`` of a run folder; empty when it has none.

    Raises
    ------
    DataError
        It is no such document, or one of a newer version.
    """
    path = folder / COPIES_NAME
    return read_json(path, CopiesDocument, newest=SCHEMA_VERSION).rows if path.exists() else []


def best_stores(rows: Sequence[CopyRate], pair: str) -> CopyRate | None:
    """Return the flavour that drains fastest; None when none was measured."""
    mine = [r for r in rows if r.pair == pair and r.kind == "stores" and r.gb_per_s is not None]
    return max(mine, key=lambda r: r.gb_per_s or 0.0, default=None)
