"""Attention with the All-to-All fused into it, beside the same work done one after the other: cases in, one document out.

`measure` runs in a process of its own (`session`); `cases_of` and `run` are what the command line calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from xstage_bench.device.cuda.gpu import gpu_count, load_eagerly
from xstage_bench.errors import UsageError, WaivedError, XStageError
from xstage_bench.kernels.attention.attention import ALONE, FLAGS, STORES, TUNED, Flags, Store, alone_of, best_build
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.shapes import heads_named, known_heads
from xstage_bench.kernels.attention.tile_facts import tile_facts
from xstage_bench.kernels.attention.tile_order import ORDERS
from xstage_bench.kernels.session import finish, head, recorded
from xstage_bench.kernels.spread import spread
from xstage_bench.machine.environment import snapshot
from xstage_bench.machine.gpus import tuned_document

AGAIN = f"{ALONE} again"
#: What flags cost is shown for this order.
FLAGGED = "owner-interleaved"
MAX_ROUNDS = 25


@dataclass(frozen=True, slots=True)
class Effort:
    """What is timed of a case, by how long its attention takes: of hundreds of milliseconds nobody sees a tile order."""

    below_s: float
    rounds: int
    stores: tuple[Store, ...] = STORES[:1]
    orders: tuple[str, ...] = (FLAGGED,)
    flags: tuple[Flags, ...] = ()
    copying_sms: tuple[int, ...] = ()
    copy_engine: bool = False
    graph: bool = False


EFFORTS = (
    Effort(2e-3, 7, STORES, tuple(ORDERS), FLAGS[1:], (4, 8), copy_engine=True, graph=True),
    Effort(25e-3, 6, STORES, flags=("shard",), copying_sms=(4,), copy_engine=True, graph=True),
    Effort(float("inf"), 3, flags=("shard",)),
)
#: Of rounds there and back. What draws less power than the attention lets the clocks rise for what comes next, so nothing else is timed.
PAIR = Effort(float("inf"), 12)
#: For `Effort` only, never shown: about what attention reaches.
_FLOP_PER_S = 600e12


def cases_of(shapes: Sequence[str], degrees: Sequence[int], seqs: Sequence[int] = ()) -> tuple[list[Problem], list[str]]:
    """Return the problems of some shapes, all of them if none is named, and what was left out because its heads cannot be dealt.

    `UsageError`: no such shape, or nothing is left.
    """
    cases: dict[Problem, None] = {}
    left_out = []
    for one in [one for name in shapes or known_heads() for one in heads_named(name)]:
        for seq in seqs or (one.seq,):
            for sp in degrees:
                try:
                    cases[Problem(one.heads, one.kv_heads, one.head_dim, seq, sp, one.name)] = None
                except UsageError as error:
                    left_out.append(f"{one.name} on {sp} ranks: {error.message}")
    if not cases:
        raise UsageError("; ".join(left_out), "another --sp or --shape")
    return list(cases), left_out


def run(
    cases: Sequence[Problem], *, seconds_per_case: float, seed: int, pairs: bool = False, argv: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None, keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure every case on the first GPUs of this machine and return the document of results/h200-x2/ulysses.

    Of each case, the fewest rounds of an `Effort` are taken however long they last. `pairs`: only attention alone and fused are timed, in
    rounds there and back: for long rows, whose clocks wander. `say` is told what is under way, and `keep` is given the document so far
    after each case: a kill then loses one case. Rows that were measured before the process died are kept; ``failed`` says what is missing.
    """
    now = head("attention", argv=argv, seed=seed, options={"pairs": pairs})
    document: dict[str, Any] = {**now(False), "pairs": pairs, "failed": {}, "rows": []}
    job = {"cases": list(cases), "seconds": seconds_per_case, "seed": seed, "pairs": pairs}
    try:
        for kind, value in recorded(measure, job, document):
            if kind == "facts":
                document |= value
                document["tuned"] = tuned_document([gpu["name"] for gpu in value["gpus"]], TUNED)
                if document["tuned"]["note"] is not None:
                    say(f"note: {document['tuned']['note']}")
            elif kind == "row":
                document["rows"].append(value)
                keep(document)
            elif kind == "failed":
                document["failed"][value[0]] = value[1]
            else:
                say(value)
    except XStageError as error:
        if isinstance(error, WaivedError) or "nccl" not in document:
            raise
        document["failed"]["the rest"] = error.message
    return finish(document, now)


def measure(job: dict[str, Any], send: Callable[[str, Any], None]) -> None:
    """Measure the cases of a job; sends ``facts`` once, a ``row`` or ``failed`` per case and ``note`` lines."""
    load_eagerly()
    # Multicast can put the GPUs of a host out of service, and nothing here uses it.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    import numpy as np

    from xstage_bench.kernels.attention.gpu import AttentionGpu
    from xstage_bench.kernels.attention.measure import Gate
    from xstage_bench.kernels.nccl import Nccl

    count = gpu_count()
    if count < 2:
        raise WaivedError(f"{count} GPU here, and an All-to-All needs two", "run on a node with two GPUs of sm_90")
    real = {case.ranks for case in job["cases"] if case.ranks <= count}
    devices = tuple(range(max([2, *real])))
    gpus = {device: AttentionGpu(device) for device in devices}
    for gpu in gpus.values():
        gpu.reach(devices)
    nccl: dict[int, Nccl] = {}

    def communicators(ranks: int) -> Nccl | None:
        if job["pairs"]:
            return None
        if ranks not in nccl:
            try:
                nccl[ranks] = Nccl(range(ranks))
            except WaivedError as error:
                send("note", f"without NCCL: {error.message}")
                return None
        return nccl[ranks]

    two = communicators(2)
    seen = [{"index": gpu.index, "name": gpu.name, "sms": gpu.sms} for gpu in gpus.values()]
    send("facts", {"gpus": seen, "nccl": two and two.version})
    rng = np.random.default_rng(job["seed"])
    for case in job["cases"]:
        used = devices[: case.ranks] if case.ranks in real else devices[:2]
        placing = Placing(case, used)
        gate = Gate([gpus[d] for d in used])
        send("note", f"{case.name}, {case.seq} rows, {case.heads} heads, SP{case.ranks}" + (" emulated" if placing.emulated else ""))
        try:
            send("row", measure_case(placing, gpus, gate, communicators(len(used)), rng, job))
        except XStageError as error:  # of this case alone; what CUDA reports spoils the process and ends it
            send("failed", (f"{case.name}, {case.seq} rows, SP{case.ranks}", error.message))


def measure_case(placing: Placing, gpus: dict[int, Any], gate: Any, nccl: Any, rng: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Check and time one case, and return its row; without `nccl` (a communicator) its variants are missing."""
    from xstage_bench.kernels.attention.measure import interleave, slowest
    from xstage_bench.kernels.attention.rig import Rig
    from xstage_bench.kernels.attention.variants import stamped

    problem = placing.problem
    sms = min(gpu.sms for gpu in gpus.values())
    effort = PAIR if job["pairs"] else next(e for e in EFFORTS if problem.flops / _FLOP_PER_S < e.below_s)
    builds = {store: best_build(problem.head_dim, store, problem.seq, problem.local_heads, sms) for store in effort.stores}
    rig = Rig(gpus, placing, job["seed"])
    try:
        chosen, missing = _variants(rig, builds, nccl, effort)
        checked = {v.name: _outcome(rig.verify(v.queue)) for v in chosen if v.delivers}
        times = slowest(interleave(gate, chosen, rng, seconds=job["seconds"], rounds=(effort.rounds, MAX_ROUNDS), back=job["pairs"]))
        clocks = _clocks()
        stamps = {store: (stamped(rig, build, None), stamped(rig, build, FLAGGED)) for store, build in builds.items()}
    finally:
        rig.close()
    return {
        **problem.case, "emulated": placing.emulated, "ranks_measured": len(placing.devices), "sms": sms,
        "builds": {store: asdict(build) for store, build in builds.items()}, "tflop_of_one_rank": problem.flops / 1e12,
        "remote_bytes_of_one_rank": problem.remote_bytes(0), "rounds": times[ALONE].size,
        "times_us": {name: spread(us) for name, us in times.items()},
        "samples_us": {name: us.round(1).tolist() for name, us in times.items()},
        "tiles": {store: tile_facts(alone, sent, sms) for store, (alone, sent) in stamps.items()}, "checked": checked, "missing": missing,
        "clocks": clocks,
    }  # fmt: skip


def _variants(rig: Any, builds: dict[Any, Any], nccl: Any, effort: Effort) -> tuple[list[Any], dict[str, str]]:
    """Return what is timed against each other, and the reasons for what is not."""
    from xstage_bench.kernels.attention import variants
    from xstage_bench.kernels.attention.library import cudnn

    plain = builds[STORES[0]]
    if effort is PAIR:
        return [variants.alone(rig, plain), variants.fused(rig, plain, FLAGGED)], {}
    chosen: list[Any] = [
        *(replace(variants.alone(rig, build), name=alone_of(store)) for store, build in builds.items()),
        replace(variants.alone(rig, plain), name=AGAIN),
        *(variants.fused(rig, build, order) for build in builds.values() for order in effort.orders),
        *(variants.fused(rig, build, FLAGGED, flags) for build in builds.values() for flags in effort.flags),
        variants.then_push(rig, plain),
        *(variants.beside_copying_sms(rig, plain, n) for n in effort.copying_sms),
    ]
    if effort.copy_engine:
        chosen.append(variants.then_copy_engine(rig, plain))
    missing: dict[str, str] = {}
    try:
        chosen.append(cudnn(rig))
    except WaivedError as error:
        missing["cudnn"] = error.message
    if nccl is None:
        missing["nccl"] = "NCCL is not there"
    else:
        chosen.append(variants.then_nccl(rig, plain, nccl))
        rig.verify(chosen[-1].queue)  # NCCL connects on first use: neither a capture nor a gate that is still shut stands that
        if effort.graph:
            chosen.append(variants.as_graph(rig, chosen[-1]))
    return chosen, missing


def _outcome(found: dict[str, Any]) -> dict[str, Any]:
    ranks = found["ranks"]
    return {
        "ok": all(v.ok for v in ranks) and not found["unwritten"] and not found["stray"] and not found["late"],
        "relative_error": max(v.relative_error for v in ranks), "rows_checked": ranks[0].rows, "rows": ranks[0].of_rows,
        "unwritten": found["unwritten"], "stray": found["stray"],
    }  # fmt: skip


def _clocks() -> list[dict[str, Any]] | None:
    """SM clocks and the reasons for them, right after the last round."""
    keys = ("index", "sm_clock_mhz", "clock_event_reasons", "power_w", "temperature_c")
    return [{k: gpu.get(k) for k in keys} for gpu in snapshot()["gpus"]] or None
