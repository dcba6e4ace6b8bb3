"""A Watch to the parameters that ``cuda/visibility.cu`` reads, and what its kernels wrote to a Sighting. Pure numpy.

The dtypes mirror the structs of ``cuda/visibility.cuh``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.variant import variant_of
from xstage_bench.errors import UsageError
from xstage_bench.schedule.watches import FORMATS, METHODS, MODES, RESERVED_SMS, Sighting, Watch

# fmt: off
_NUMBERS = (
    "repetitions", "mode", "method", "format", "producers", "warps", "stores", "stride", "streams", "idle_pings", "pings", "message_warps",
    "message_stores", "publish", "tag", "window_bytes", "misalign", "pad",
)
_POINTERS = (
    "timeout_ns", "total_ns", "data", "source_box", "destination_box", "producer_of", "delays", "issue_stamps", "progress", "curve",
    "ping_stamps", "found", "tensor_map",
)
# fmt: on
PLAN = np.dtype([(n, "<u4") for n in _NUMBERS] + [(n, "<u8") for n in _POINTERS])
DELAY = np.dtype([("ping_ns", "<u4"), ("lag_cycles", "<u4")])
ISSUE_STAMP = np.dtype([(n, "<u4") for n in ("start_before", "issue", "publish", "now_ns", "reusable", "completed")])
PING_STAMP = np.dtype([(n, "<u4") for n in ("at_ns", "issue", "publish", "round")])
FOUND = np.dtype([(n, "<u8") for n in ("wrong", "torn", "lines", "timeouts")])
#: The head of SourceBox, and where its `abort` and `prober` lie.
CLOCKS = np.dtype([("clock", "<u8", 2), ("timer_ns", "<u8", 2)])
ABORT_AT, PROBER_AT = 384, 516
BOX_BYTES = 8192  # SourceBox
DESTINATION_BOX_BYTES = 384 + 256 * 16 * 4 + 256 * 1024
PROGRESS = 128
GROUP = 4
TIMEOUT_NS = 500_000_000
TOTAL_NS = 10_000_000_000
_NEVER = 0xFFFFFFFF


def pack(watch: Watch, available: Sequence[int], tag: int) -> dict[str, Any]:
    """Return the arrays of one launch: the plan (addresses still zero), who produces, and the delays.

    Parameters
    ----------
    watch : Watch
    available : sequence of int
        The source's smids.
    tag : int
        Stored words of later launches differ.

    Raises
    ------
    UsageError
        More producers than the SMs that are left.
    """
    if len(available) <= RESERVED_SMS:
        raise UsageError(
            f"GPU {watch.schedule.source} has {len(available)} SMs; visibility needs more than {RESERVED_SMS}", "use another GPU"
        )
    smids = watch.schedule.smids(available[:-RESERVED_SMS])
    table = np.full(max(available) + 1, -1, dtype=np.int16)
    # -2 leaves an SM free for the responder (on the source in the LOCAL control) and the prober, unless that is to join a producer.
    free = RESERVED_SMS if not watch.beside else int(watch.schedule.is_local)
    table[list(available[len(available) - free :])] = -2
    table[smids] = np.arange(smids.size)
    delays = np.zeros(watch.repetitions, DELAY)
    delays["ping_ns"] = np.resize(watch.ping_delay_ns, watch.repetitions)
    delays["lag_cycles"] = np.resize(watch.lag_cycles, watch.repetitions)
    plan = np.zeros(1, PLAN)
    numbers = {
        "repetitions": watch.repetitions,
        "mode": MODES.index(watch.mode),
        "method": METHODS.index(watch.method),
        "format": list(FORMATS).index(watch.format),
        "producers": smids.size,
        "warps": watch.schedule.warps,
        "stores": watch.stores_per_warp,
        "stride": watch.stride,
        "streams": watch.streams if watch.mode == "curve" else 0,
        "idle_pings": watch.idle_pings,
        "pings": watch.pings,
        "message_warps": watch.message_warps,
        "message_stores": watch.message_stores,
        "publish": int(watch.publish),
        "tag": tag & 0xFFFFFFFF,
        "window_bytes": watch.window_bytes,
        "misalign": watch.misaligned_bytes,
        "timeout_ns": TIMEOUT_NS,
        "total_ns": TOTAL_NS,
    }
    for name, value in numbers.items():
        plan[name] = value
    out = {"plan": plan, "producer_of": table, "delays": delays, "smids": smids, "domains": watch.domains, "beside": watch.beside}
    return out | {"variant": None if watch.stamps_groups else variant_of(watch.schedule), "warps": watch.schedule.warps}


def result_shapes(watch: Watch) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each array that the kernels write, by its name in the plan."""
    r, k = watch.repetitions, watch.schedule.producer_count
    curve = (r, k, watch.schedule.warps, watch.markers) if watch.mode == "curve" else (0,)
    return {
        "issue_stamps": ((r, k), ISSUE_STAMP),
        "progress": ((r, k, PROGRESS), np.dtype("<u4")),
        "curve": (curve, np.dtype("<u4")),
        "ping_stamps": ((r, watch.idle_pings + watch.pings), PING_STAMP),
        "found": ((1,), FOUND),
        "source_box": ((BOX_BYTES,), np.dtype("u1")),
    }


def unpack(watch: Watch, smids: NDArray[np.int64], results: Mapping[str, NDArray[Any]]) -> Sighting:
    """Turn what the kernels wrote into a Sighting."""
    box = results["source_box"]
    clocks = box[: CLOCKS.itemsize].view(CLOCKS)[0]
    abort, prober = (int(box[at : at + 4].view("<u4")[0]) for at in (ABORT_AT, PROBER_AT))
    found = results["found"][0]
    elapsed = float(clocks["timer_ns"][1]) - float(clocks["timer_ns"][0])
    mhz = (float(clocks["clock"][1]) - float(clocks["clock"][0])) / elapsed * 1e3 if elapsed > 0 else float("nan")
    stamps = {n: results["issue_stamps"][n].astype(np.float64) for n in ISSUE_STAMP.names or ()}
    start_ns = stamps["now_ns"] - stamps["start_before"] / mhz * 1e3
    w, groups = watch.schedule.warps, watch.stores_per_warp // GROUP
    r, k = start_ns.shape
    issued = np.empty((0,))
    if watch.mode == "curve" and watch.stamps_groups:
        cycles = results["progress"][:, :, : w * groups].reshape(r, k, w, groups).astype(np.float64)
        issued = start_ns[:, :, None, None] + cycles / mhz * 1e3
    pings = {n: results["ping_stamps"][n].astype(np.float64) for n in PING_STAMP.names or ()}
    sent = pings["round"] > 0
    at = np.where(sent & (results["ping_stamps"]["at_ns"] != _NEVER), pings["at_ns"], np.nan)
    status: Literal["ok", "corrupt", "timeout"] = "ok"
    if found["wrong"] or (found["torn"] and watch.format in ("flag", "flag.each")):
        status = "corrupt"
    if abort or found["timeouts"]:
        status = "timeout"
    return Sighting(
        watch=watch,
        smids=smids,
        prober_smid=prober,
        sm_clock_mhz=mhz,
        start_ns=start_ns,
        end_ns=start_ns + stamps["issue"] / mhz * 1e3,
        issue_cycles=stamps["issue"],
        publish_cycles=stamps["publish"] if watch.publish else np.full((r, k), np.nan),
        issued_ns=issued,
        seen_ns=results["curve"].astype(np.float64),
        at_ns=at,
        ping_issue_cycles=np.where(sent, pings["issue"], np.nan),
        ping_publish_cycles=np.where(sent, pings["publish"], np.nan),
        round_trip_cycles=np.where(sent, pings["round"], np.nan),
        reusable_cycles=np.where(stamps["reusable"] > 0, stamps["reusable"], np.nan),
        completed_cycles=np.where(stamps["completed"] > 0, stamps["completed"], np.nan),
        wrong=int(found["wrong"]),
        torn=int(found["torn"]),
        lines=int(found["lines"]),
        status=status,
    )
