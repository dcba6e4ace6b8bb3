"""The survey behind results/h200-x2/visibility: what is watched for one ordered pair, and the document that is made of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from xstage_bench.arrival import arrival_row, arrival_watches
from xstage_bench.device import Gpu, Node, kernels_of
from xstage_bench.device.cuda.identity import Kernel, merged, plain
from xstage_bench.environment import snapshot
from xstage_bench.errors import PairError, UsageError
from xstage_bench.gpus import tuned_document
from xstage_bench.schedule import Burst, Schedule
from xstage_bench.visibility import DOMAINS, METHODS, RESERVED_SMS, WARMUP, Sighting, Watch
from xstage_bench.visibility_numbers import TUNED, behind_backlog, chosen, curve_of, own_sm_drained, spread

SCHEMA_VERSION = 1
PARTS = ("curve", "flag", "lag", "domain", "message", "torn", "arrival", "loud")
CURVES = ("at_ns", "issued_bytes", "visible_bytes")  # kept of the first process
PUBLISHING = (("flag", "release.sys"), ("flag", "release.gpu"), ("flag.each", "relaxed"), ("ll", "relaxed"), ("ll128", "relaxed"))
Named = tuple[str, Watch]


class Watcher(Protocol):
    """A device that can watch."""

    def node(self) -> Node:
        """Describe the node."""
        ...

    def watch(self, watch: Watch) -> Sighting:
        """Watch once."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


def watches(gpu: Gpu, source: int, destination: int, *, quick: bool = False) -> Iterator[Named]:
    """Yield everything that is watched for one pair, with the part of the document that it belongs to."""
    most = gpu.sm_count - RESERVED_SMS
    counts = [k for k in (1, 8, 32, 64) if k < most] + [most]
    reps = 8 if quick else 25
    local = source == destination

    def burst(k: int, size: int, warps: int = 4) -> Schedule:
        return Schedule((Burst(size),), k, warps, source, destination)

    for k in counts:
        stride = 16 if k <= 8 else 4  # one polling thread sees at most 4 marks in some 700 cycles
        for size in (8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10):
            yield "curve", Watch(burst(k, size, 1), "curve", repetitions=reps, stride=stride, pings=0, idle_pings=34)
    for size in (64 << 10, 256 << 10):
        yield "curve", Watch(burst(most, size), "curve", repetitions=reps, stride=4, pings=0, idle_pings=34)

    for method in METHODS:
        yield "flag", Watch(burst(1, 0), "ping", method, repetitions=reps, idle_pings=66, pings=0)
        for k in counts:
            yield "flag", Watch(burst(k, 1 << 20 if k < most else 1 << 19), "ping", method, repetitions=reps, pings=200, idle_pings=0)
    if local:
        return

    for method in ("release.gpu", "release.sys"):
        lags = tuple(range(0, 40_000, 2_000))
        for size in (16 << 10, 64 << 10):
            yield "lag", Watch(burst(most, size), "ping", method, repetitions=61, idle_pings=2, pings=1, publish=True, lag_cycles=lags)

    loud = burst(most, 1 << 19)
    for method in ("relaxed", "release.gpu", "release.sys", "red.release.gpu"):
        for domains in DOMAINS[: 1 if method == "relaxed" else None]:
            for beside in (False, True):
                where: dict[str, Any] = {"domains": domains, "beside": beside}
                yield "domain", Watch(loud, "ping", method, repetitions=reps, pings=200, idle_pings=0, **where)

    quiet = burst(1, 0)
    for payload in (480, 7680, 30720):
        for name, method in PUBLISHING:
            form: dict[str, Any] = {
                "method": method,
                "format": name,
                "payload_bytes": payload,
                "message_warps": min(16, -(-payload // 480)),
            }
            yield "message", Watch(quiet, "message", repetitions=reps, idle_pings=100, pings=0, **form)
            yield "message", Watch(loud, "message", repetitions=reps, idle_pings=0, pings=200, **form)
    for name, offset in (("ll", 0), ("ll128", 0), ("ll128", 64), ("ll512", 0)):
        form = {"method": "relaxed", "format": name, "payload_bytes": 30720, "misaligned_bytes": offset}
        yield "torn", Watch(quiet, "message", repetitions=8 if quick else 64, idle_pings=1000, pings=0, **form)
        yield "torn", Watch(burst(most, 2 << 20), "message", repetitions=8 if quick else 32, idle_pings=0, pings=400, **form)


def everything(node: Node, source: int, destination: int, *, quick: bool = False) -> Iterator[Named]:
    """Yield `watches`, and the bursts of every flavour and layout that this node knows, towards a peer."""
    yield from watches(node.gpus[source], source, destination, quick=quick)
    if source != destination:
        yield from arrival_watches(node.gpus[source], source, destination, node.flavours, repetitions=8 if quick else 25)


def row_of(part: str, sighting: Sighting) -> dict[str, Any]:
    """One row of the document."""
    w, s = sighting.watch, sighting.watch.schedule
    mhz = sighting.sm_clock_mhz
    row: dict[str, Any] = {
        "pair": f"{s.source}>{s.destination}",
        "producers": s.producer_count if s.bursts[0].bytes else 0,
        "warps": s.warps,
        "bytes": s.bursts[0].bytes,
        "repetitions": w.repetitions,
        "sm_clock_mhz": round(mhz, 1) if np.isfinite(mhz) else None,
        "status": sighting.status,
        "wrong_words": sighting.wrong,
    }
    if part in ("arrival", "loud"):
        row |= {"flavour": s.flavour, "layout": s.layout}
    if sighting.status == "timeout":
        return row
    if part == "arrival":
        return row | arrival_row(sighting)
    if part == "curve":
        c = curve_of(sighting)
        row["echo_ns"] = round(c.echo_ns, 1)
        row["issue_mean_ns"] = spread(list((sighting.end_ns - sighting.start_ns).mean(axis=1, keepdims=True))).as_dict()
        for name in ("plateau_bytes", "peak_bytes", "end_bytes", "drain_gb_per_s", "first_ns", "tail_ns"):
            row[name] = getattr(c, name).as_dict()
        for name in CURVES:
            row[name] = getattr(c, name).round().tolist()
        return row
    row["method"] = w.method
    if part == "lag":
        row["lag_cycles"] = sorted(set(w.lag_cycles))
        lags = np.resize(w.lag_cycles, w.repetitions)
        lags[:WARMUP] = -1
        groups = [[sighting.publish_cycles[i] for i in np.flatnonzero(lags == lag)] for lag in row["lag_cycles"]]
        row["publish_cycles"] = [spread(g).as_dict() for g in groups]
        return row
    if part == "domain":
        row |= {"domains": w.domains, "beside": w.beside, "prober_smid": sighting.prober_smid}
        row["own_sm_drained_cycles"] = spread(chosen(sighting.ping_issue_cycles, own_sm_drained(sighting))).as_dict()
    if part in ("message", "torn"):
        row |= {n: getattr(w, n) for n in ("format", "payload_bytes", "message_warps", "misaligned_bytes")}
        row |= {"wire_bytes": w.message_stores * s.warp_store_bytes, "torn_words": sighting.torn, "lines": sighting.lines}
    idle = bool(w.idle_pings) and not w.pings
    which = np.isfinite(sighting.round_trip_cycles) if idle else behind_backlog(sighting)
    which[:WARMUP] = False
    if idle and part == "flag":  # plain flags and the method alternate there
        which[:, 0::2] = False
        which[:, :2] = False
    for name, values in (
        ("issue_cycles", sighting.ping_issue_cycles),
        ("publish_cycles", sighting.ping_publish_cycles),
        ("round_trip_cycles", sighting.round_trip_cycles),
    ):
        row[name] = spread(chosen(values, which)).as_dict()
    return row


def survey(
    open_watcher: Callable[[int], Watcher],
    pairs: Sequence[tuple[int, int]] | None,
    *,
    quick: bool = False,
    processes: int = 3,
    only: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Watch everything for every pair in fresh processes, and return the document.

    Parameters
    ----------
    open_watcher : callable
        ``process number -> device``.
    pairs : sequence of (int, int), optional
        Default: all that the node has, and each source's LOCAL control.
    only : sequence of str
        Parts of the document, `PARTS`; all when empty.

    Raises
    ------
    UsageError
        A pair that this node does not have. One that fails while it is measured is named in ``failed_pairs``, and the others go on.
    """
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": "visibility", "backend": "cuda"}
    document |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "environment_before": snapshot()}
    rows: list[dict[str, Any]] = []
    counters: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    kernels: list[Kernel] = []
    for process in range(1 if quick else processes):
        device = open_watcher(process)
        try:
            node = device.node()
            wanted = list(pairs) if pairs is not None else [*node.pairs, *((g, g) for g in sorted({a for a, _ in node.pairs}))]
            _check(wanted, node)
            for source, destination in wanted:
                name = f"{source}>{destination}"
                if name in failed:
                    continue
                if progress is not None:
                    progress(f"process {process}, pair {name}")
                before, issued = link_tx_kib(source), 0
                try:
                    for part, watch in everything(node, source, destination, quick=quick):
                        if only and part not in only:
                            continue
                        sighting = device.watch(watch)
                        row = {"part": part, "process": process, **row_of(part, sighting)}
                        rows.append(row if process == 0 else {k: v for k, v in row.items() if k not in CURVES})
                        issued += watch.schedule.bursts[0].bytes * watch.schedule.producer_count * watch.repetitions
                        issued += sighting.lines * 128
                except PairError as error:
                    failed[name] = error.message
                    continue
                counters.append(_counted(process, source, destination, issued, before, link_tx_kib(source)))
            document["node"] = {
                "gpus": [{"index": g.index, "name": g.name, "uuid": g.uuid, "sm_clock_mhz": g.sm_clock_mhz} for g in node.gpus],
                "timer_tick_ns": node.timer_tick_ns,
                "line_rate_gb_per_s": node.line_rate_gb_per_s,
            }
            document["tuned"] = tuned_document((g.name for g in node.gpus), TUNED)
        finally:
            kernels = merged(kernels, kernels_of(device))
            device.close()
    document["kernels"] = plain(kernels)
    return {**document, "environment_after": snapshot(), "failed_pairs": failed, "link_counters": counters, "rows": rows}


def _check(pairs: Sequence[tuple[int, int]], node: Node) -> None:
    local = {(g.index, g.index) for g in node.gpus}
    for a, b in pairs:
        if (a, b) not in local and (a, b) not in node.pairs:
            raise UsageError(f"pair {a}>{b} cannot be watched: {(node.unusable or {}).get(f'{a}>{b}', 'no such pair')}", "xstage topo")


def _counted(process: int, source: int, destination: int, issued: int, before: int | None, after: int | None) -> dict[str, Any]:
    sent = None if before is None or after is None else (after - before) * 1024
    return {
        "process": process,
        "pair": f"{source}>{destination}",
        "issued_bytes": issued,
        "counted_bytes": sent,
        "counted_over_issued": None if sent is None else round(sent / issued, 5),
        "in_flight_bytes": None,
        "reason": "the counters are read by the host, in milliseconds; a backlog lasts microseconds",
    }


def link_tx_kib(gpu: int) -> int | None:
    """Payload that the GPU's links have sent, all together, as the driver's tool prints it (and numbers GPUs); null where it does not."""
    try:
        done = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d", "-i", str(gpu)], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return sum_tx_kib(done.stdout)


def sum_tx_kib(text: str) -> int | None:
    """Sum of the ``Data Tx`` lines; null when there is none."""
    found = re.findall(r"Data Tx:\s*(\d+) KiB", text)
    return sum(map(int, found)) if found else None
