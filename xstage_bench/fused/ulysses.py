"""Attention with the All-to-All fused into it, beside the same work done one after the other: cases in, one document out.

`measure` runs in a process of its own (`session`); `cases_of` and `run` are what the command line calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from xstage_bench.environment import link_error_deltas, package_versions, snapshot
from xstage_bench.errors import UsageError, WaivedError, XStageError
from xstage_bench.fused.attention import STORES, best_build
from xstage_bench.fused.problem import Placing, Problem
from xstage_bench.fused.session import results
from xstage_bench.fused.shapes import SHAPES, shape_named
from xstage_bench.fused.tile_order import ORDERS

SCHEMA_VERSION = 1
COPYING_SMS = (4, 8, 16)
#: What each tile's flag or the end of each CTA costs is shown for this order.
FLAGGED = "owner-interleaved"
#: Variants that measure the same thing are timed until they have taken this long together, within these numbers of rounds.
ROUNDS = (7, 25)


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, sequence length and degree of parallelism."""

    shape: str
    heads: int
    kv_heads: int
    head_dim: int
    seq: int
    sp: int

    def problem(self) -> Problem:
        """Return the problem; `UsageError` where heads cannot be dealt."""
        return Problem(self.heads, self.kv_heads, self.head_dim, self.seq, self.sp, self.shape)


def cases_of(shapes: Sequence[str], degrees: Sequence[int], seqs: Sequence[int] = ()) -> tuple[list[Case], list[str]]:
    """Return the cases of some shapes, all of them if none is named, and what was left out because its heads cannot be dealt.

    Raises
    ------
    UsageError
        No such shape, or nothing is left.
    """
    cases, left_out = [], []
    for name in shapes or SHAPES:
        shape = shape_named(name)
        for seq in seqs or shape.seqs:
            for sp in degrees:
                case = Case(name, shape.heads, shape.kv_heads, shape.head_dim, seq, sp)
                try:
                    case.problem()
                except UsageError as error:
                    left_out.append(f"{name} on {sp} ranks: {error.message}")
                else:
                    cases.append(case)
    if not cases:
        raise UsageError("; ".join(left_out), "another --sp or --shape")
    return cases, left_out


def run(
    cases: Sequence[Case], *, seconds_per_case: float, seed: int, orders: Sequence[str] = tuple(ORDERS), say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measure every case on the first GPUs of this machine and return the document of docs/ulysses.md.

    Rows that were measured before the process died are kept: the document then has a ``failed`` entry.
    """
    before = snapshot()
    job = {"cases": [asdict(case) for case in cases], "seconds": seconds_per_case, "seed": seed, "orders": list(orders)}
    facts: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    try:
        for kind, value in results(measure, job):
            if kind == "facts":
                facts = value
            elif kind == "row":
                rows.append(value)
            else:
                say(value)
    except WaivedError:
        raise
    except XStageError as error:
        if not facts:
            raise
        failed[f"case {len(rows)}"] = error.message
    after = snapshot()
    return {
        "schema_version": SCHEMA_VERSION,
        "backend": "cuda",
        "simulated": False,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "driver": (before.get("nvml") or {}).get("driver"),
        "versions": package_versions(),
        "seed": seed,
        **facts,
        "environment_before": before,
        "environment_after": after,
        "link_error_deltas": link_error_deltas(before, after),
        "failed": failed,
        "rows": rows,
    }


def measure(job: dict[str, Any], send: Callable[[str, Any], None]) -> None:
    """Measure the cases of a job; sends ``facts`` once, a ``row`` per case and ``note`` lines."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # lazy loading while another kernel spins dead-locks
    # Multicast can put the GPUs of a host out of service, and nothing here uses it.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    import numpy as np
    from cupy.cuda import runtime

    from xstage_bench.device.cuda.compile import sources_hash
    from xstage_bench.fused.gpu import Gpu
    from xstage_bench.fused.measure import Gate
    from xstage_bench.fused.nccl import Nccl

    count = runtime.getDeviceCount()
    if count < 2:
        raise WaivedError(f"{count} GPU here, and an All-to-All needs two", "run on a node with two GPUs of sm_90")
    cases = [Case(**c) for c in job["cases"]]
    real = {case.sp for case in cases if case.sp <= count}
    devices = tuple(range(max([2, *real])))
    gpus = {d: Gpu(d) for d in devices}
    for gpu in gpus.values():
        gpu.reach(set(devices))
    notes: list[str] = []
    nccl: dict[int, Nccl] = {}

    def communicators(ranks: int) -> Nccl | None:
        if ranks not in nccl:
            try:
                nccl[ranks] = Nccl(range(ranks))
            except WaivedError as error:
                send("note", f"without NCCL: {error.message}")
                return None
        return nccl[ranks]

    version = (communicators(2) or None) and nccl[2].version
    send("facts", {"gpus": [{"index": d, "name": g.name, "sms": g.sms} for d, g in gpus.items()], "nccl": version, "cuda_sources": sources_hash()})
    rng = np.random.default_rng(job["seed"])
    for case in cases:
        used = devices[: case.sp] if case.sp in real else devices[:2]
        placing = Placing(case.problem(), used)
        gate = Gate([gpus[d] for d in used])
        send("note", f"{case.shape}, {case.seq} rows, {case.heads} heads, SP{case.sp}" + (" emulated" if placing.emulated else ""))
        send("row", _measure_case(case, placing, gpus, gate, communicators(len(used)), rng, job, notes))


def _measure_case(
    case: Case, placing: Placing, gpus: dict[int, Any], gate: Any, nccl: Any, rng: Any, job: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    from xstage_bench.fused import variants
    from xstage_bench.fused.library import cudnn
    from xstage_bench.fused.measure import interleave, spread
    from xstage_bench.fused.rig import Rig

    sms = min(gpu.sms for gpu in gpus.values())
    builds = {store: best_build(case.head_dim, store, case.seq, case.heads // case.sp, sms) for store in STORES}
    rig = Rig(gpus, placing, job["seed"])
    missing: dict[str, str] = {}
    chosen = []

    def add(name: str, make: Callable[[], Any]) -> None:
        try:
            chosen.append(make())
        except WaivedError as error:
            missing[name] = error.message

    try:
        plain = builds["st.v4"]
        for store, build in builds.items():
            add("alone", lambda build=build, store=store: replace(variants.alone(rig, build), name="alone" if store == "st.v4" else f"alone {store}"))
        add("cudnn", lambda: cudnn(rig))
        for build in builds.values():
            for order in job["orders"]:
                add(order, lambda build=build, order=order: variants.fused(rig, build, order))
            for flags in ("end", "shard", "tile"):
                add(flags, lambda build=build, flags=flags: variants.fused(rig, build, FLAGGED, flags))
        add("push", lambda: variants.then_push(rig, plain))
        add("copy engine", lambda: variants.then_copy_engine(rig, plain))
        for n in COPYING_SMS:
            add(f"{n} copying SMs", lambda n=n: variants.beside_copying_sms(rig, plain, n))
        if nccl is not None:
            add("nccl", lambda: variants.then_nccl(rig, plain, nccl))
            gate.time_us(chosen[-1])  # NCCL connects on first use, which a capture does not stand
            add("nccl graph", lambda: variants.as_graph(rig, chosen[-1]))
        checked = {v.name: _outcome(rig.verify(v.queue)) for v in chosen if v.delivers}
        longest_us = sum(float(gate.time_us(v).max()) for v in chosen)
        rounds = int(min(max(job["seconds"] * 1e6 / longest_us, ROUNDS[0]), ROUNDS[1]))
        times = interleave(gate, chosen, rounds, rng)
    finally:
        rig.close()
    return {
        **asdict(case),
        "emulated": placing.emulated,
        "ranks_measured": len(placing.devices),
        "builds": {store: asdict(build) for store, build in builds.items()},
        "tflops_of_one_rank": case.problem().flops / 1e12,
        "remote_bytes_of_one_rank": case.problem().remote_bytes(0),
        "rounds": rounds,
        "times_us": {name: spread(samples) for name, samples in times.items()},
        "samples_us": {name: samples.max(axis=1).round(2).tolist() for name, samples in times.items()},
        "checked": checked,
        "missing": missing,
        "clocks": _clocks(),
    }


def _outcome(found: dict[str, Any]) -> dict[str, Any]:
    ranks = found["ranks"]
    return {
        "ok": all(v.ok for v in ranks) and not found["unwritten"] and not found["stray"],
        "relative_error": max(v.relative_error for v in ranks),
        "rows_checked": ranks[0].rows,
        "rows": ranks[0].of_rows,
        "unwritten": found["unwritten"],
        "stray": found["stray"],
    }


def _clocks() -> list[dict[str, Any]] | None:
    """SM clocks and the reasons for them, right after the last round."""
    gpus = (snapshot().get("nvml") or {}).get("gpus")
    keys = ("index", "sm_clock_mhz", "clock_events", "power_w", "temperature_c")
    return [{k: gpu[k] for k in keys if k in gpu} for gpu in gpus] if gpus else None
