"""A Scene to the arrays that ``cuda/company.cu`` reads, one set per GPU, and what it writes to SceneTraces. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import START_RULES, Schedule
from xstage_bench.schedule.completion import DEFAULT
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.scenes import COMPANY_KINDS, Scene, SceneTrace, seats
from xstage_bench.schedule.trace import Status, Trace

_U4, _U8 = "<u4", "<u8"
STREAM = np.dtype(
    [("address", _U8), ("bytes", _U8)]
    + [(n, _U4) for n in ("kind", "warps", "producers", "rule", "first_burst", "bursts", "result", "tag", "slot_ns", "index")]
)
SEAT = np.dtype([(n, "<u2") for n in ("stream", "producer", "warp", "first")])
STEP = np.dtype([(n, _U4) for n in ("groups", "gap_cycles", "start_ns", "first_group", "first_slot")])
SCENE_STAMP = np.dtype([(n, _U4) for n in ("start", "end", "end_ns", "drained", "work")])
MAIL = np.dtype([("command", _U8), ("arrive", _U8, 16), ("answer", _U8, 16)])
SCENE_CONTROL = np.dtype([(n, _U4) for n in ("arrived", "released", "abort", "pad")] + [("start_ns", _U8)])
REPETITION = np.dtype(
    [(n, _U4) for n in ("state", "mismatches", "offset", "expected", "found", "pad")]
    + [(n, _U8) for n in ("clock", "timer_ns", "end_clock", "end_timer_ns")]
    + [("peer_offset_ns", _U8, 16), ("round_trip_ns", _U8, 16)]
)

WINDOW_BYTES = 256 * 1024  # of one producer, as in layout.py: longer bursts wrap around in it
TURN, TURN_BYTES = 4, 2048  # warp-stores per turn of the measured loop
MAX_STREAMS, MAX_BURSTS, MAX_ALL_BURSTS, MAX_RANKS, SLOTS, UNIT_BYTES = 16, 128, 512, 16, 64, 4096
STATE_DONE = 1
PULL_BULK = 1 + COMPANY_KINDS.index("pull.bulk")  # kinds of streams: 0 is a push
_SLOW_GB_PER_S = 10.0  # for watchdogs only: one GPU's stores read back over PCIe


@dataclass(frozen=True, slots=True, eq=False)
class GpuPart:
    """What one GPU executes of a scene. `places` names the memory (a GPU index, or -1 for the host) that each stream's address is in."""

    gpu: int
    streams: NDArray[Any]
    places: tuple[int, ...]
    steps: NDArray[Any]
    seats: NDArray[Any]
    stamps_per_round: int


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One launch on every GPU of a scene. `memory` says how many bytes are needed in which place."""

    scene: Scene
    parts: tuple[GpuPart, ...]
    memory: dict[int, int]
    rounds: int
    smids: tuple[NDArray[np.int64], ...]
    expected_s: float


def pack(scene: Scene, node: Node, rounds: int, first_tag: int) -> Packed:
    """Lay a scene out for its GPUs.

    Parameters
    ----------
    rounds : int
        Repetitions in one launch.
    first_tag : int
        Of the values stored; differs between calls.

    Raises
    ------
    UsageError
        The device cannot execute it; the message says why.
    """
    _check(scene)
    table = seats(scene, node)
    memory: dict[int, int] = {}
    streams = np.zeros(len(scene.schedules) + len(scene.company), STREAM)
    places = []
    for i, s in enumerate(scene.schedules):
        tag = (first_tag + i + 1) * 0x61C88647 & 0xFFFFFFFF
        where = _reserve(memory, s.destination, s.producer_count * WINDOW_BYTES)
        streams[i] = (where, WINDOW_BYTES, 0, s.warps, s.producer_count, START_RULES.index(s.start), 0, len(s.bursts), 0, tag, 0, i)
        places.append(s.destination)
    for i, c in enumerate(scene.company, len(scene.schedules)):
        slice_bytes = max(c.footprint_bytes // (len(c.smids) * c.warps) // (2 * UNIT_BYTES), 1) * 2 * UNIT_BYTES
        where = _reserve(memory, c.other, slice_bytes * len(c.smids) * c.warps)
        kind = COMPANY_KINDS.index(c.kind) + 1
        streams[i] = (where, slice_bytes, kind, c.warps, len(c.smids), 0, 0, 0, 0, 0, scene.company_ns // SLOTS, i)
        places.append(c.other)
    owners = [s.source for s in scene.schedules] + [c.gpu for c in scene.company]
    parts = tuple(_part(scene, g, streams, places, owners, table[g]) for g in scene.gpus())
    volume = sum(s.producer_count * b.bytes for s in scene.schedules for b in s.bursts)
    gaps = max((sum(b.gap_cycles for b in s.bursts) / 1e9 + s.bursts[-1].start_ns * 1e-9 for s in scene.schedules), default=0.0)
    seconds = rounds * (2 * volume / (_SLOW_GB_PER_S * 1e9) + gaps + scene.company_ns * 1e-9 + 1e-3)
    smids = tuple(s.smids(node.gpus[s.source].smids) for s in scene.schedules)
    return Packed(scene, parts, memory, rounds, smids, seconds)


def _reserve(memory: dict[int, int], place: int, size: int) -> int:
    at = memory.get(place, 0)
    memory[place] = at + -(-size // 4096) * 4096
    return at


def _part(scene: Scene, gpu: int, streams: NDArray[Any], places: list[int], owners: list[int], table: NDArray[np.int16]) -> GpuPart:
    mine = [i for i, owner in enumerate(owners) if owner == gpu]
    if len(mine) > MAX_STREAMS:
        raise UsageError(f"{len(mine)} schedules and companions on GPU {gpu}, at most {MAX_STREAMS}", "split the scene")
    own = streams[mine].copy()
    steps: list[NDArray[Any]] = []
    burst = stamp = 0
    for row, i in zip(own, mine, strict=True):
        row["index"] = mine.index(i)
        if i < len(scene.schedules):
            s = scene.schedules[i]
            row["first_burst"], row["result"] = burst, stamp
            steps.append(_steps(s))
            burst += len(s.bursts)
            stamp += len(s.bursts) * s.producer_count
    if burst > MAX_ALL_BURSTS:
        raise UsageError(f"{burst} bursts on GPU {gpu}, at most {MAX_ALL_BURSTS} in one scene", "use fewer bursts per schedule")
    seated = np.full(table.shape[:2], 0xFFFF, dtype=[(n, "<u2") for n in SEAT.names or ()])
    for new, old in enumerate(mine):
        at = table[..., 0] == old
        seated["stream"][at] = new
        for column, name in enumerate(("producer", "warp", "first"), 1):
            seated[name][at] = table[..., column][at]
    packed = np.concatenate(steps) if steps else np.zeros(1, STEP)
    return GpuPart(gpu, own, tuple(places[i] for i in mine), packed, seated.astype(SEAT), stamp)


def _steps(s: Schedule) -> NDArray[Any]:
    groups = s.stores_per_warp() // TURN
    out = np.zeros(len(s.bursts), STEP)
    out["groups"] = groups
    out["gap_cycles"] = [b.gap_cycles for b in s.bursts]
    out["start_ns"] = [b.start_ns for b in s.bursts]
    out["first_group"] = np.concatenate(([0], np.cumsum(groups)[:-1]))
    out["first_slot"] = out["first_group"] % (WINDOW_BYTES // s.warps // TURN_BYTES)
    return out


def _check(scene: Scene) -> None:
    if len(scene.gpus()) > MAX_RANKS:
        raise UsageError(f"a scene of {len(scene.gpus())} GPUs; the instrument aligns {MAX_RANKS}", "use fewer GPUs")
    for s in scene.schedules:
        if s.flavour != "st.v4" or s.layout != "contiguous":
            raise UsageError(f"flavour '{s.flavour}', layout '{s.layout}' in a scene", "scenes store st.v4, contiguous")
        if s.completion != DEFAULT:
            raise UsageError(f"completion '{s.completion}' in a scene", f"scenes end with '{DEFAULT}'")
        if len(s.bursts) > MAX_BURSTS:
            raise UsageError(f"{len(s.bursts)} bursts in a schedule of a scene, at most {MAX_BURSTS}", "use fewer bursts")
        odd = [b.bytes for b, n in zip(s.bursts, s.stores_per_warp(), strict=True) if n % TURN]
        if odd:
            unit = TURN * s.warps * s.warp_store_bytes
            raise UsageError(f"a scene's bursts come in multiples of {unit} bytes, not {odd[0]}", f"use {-(-odd[0] // unit) * unit}")
        if max(b.gap_cycles for b in s.bursts) > 1_000_000_000 or s.bursts[-1].start_ns > 1_000_000_000:
            raise UsageError("a gap or start time of over a second in a scene", "the device's stamps hold 2 s; shorten it")


def unpack(packed: Packed, results: dict[int, dict[str, NDArray[Any]]], tick_ns: float) -> list[SceneTrace]:
    """Turn what one launch wrote into SceneTraces, one per repetition; the first is marked ``warmup``.

    Parameters
    ----------
    results : dict of GPU index to dict
        ``stamps`` (rounds, stamps_per_round), ``progress`` (rounds, MAX_STREAMS, SLOTS), ``repetitions`` (rounds,).
    tick_ns : float
        Of %globaltimer.
    """
    return [_round(packed, results, i, tick_ns) for i in range(packed.rounds)]


def _round(packed: Packed, results: dict[int, dict[str, NDArray[Any]]], index: int, tick_ns: float) -> SceneTrace:
    scene, order = packed.scene, [p.gpu for p in packed.parts]
    head = results[order[0]]["repetitions"][index]
    trips, offsets = head["round_trip_ns"][: len(order)].astype(float), head["peer_offset_ns"][: len(order)].astype(np.int64).astype(float)
    bound = float(trips[1:].max() / 2 + tick_ns) if len(order) > 1 else 0.0
    traces: list[Trace | None] = [None] * len(scene.schedules)
    company = np.zeros((len(scene.company), SLOTS))
    work = np.zeros(len(scene.schedules))
    owners = [s.source for s in scene.schedules] + [c.gpu for c in scene.company]
    for part in packed.parts:
        got = results[part.gpu]
        verdict = got["repetitions"][index]
        mine = [i for i, owner in enumerate(owners) if owner == part.gpu]
        for row, i in zip(part.streams, mine, strict=True):
            if i < len(scene.schedules):
                s = scene.schedules[i]
                n, k = len(s.bursts), s.producer_count
                stamps = got["stamps"][index][int(row["result"]) : int(row["result"]) + n * k].reshape(n, k)
                traces[i] = _trace(s, packed.smids[i], stamps, verdict, _clock_mhz(got["repetitions"], index), index == 0)
                work[i] = float(stamps["work"].sum(axis=0).mean())
            else:
                filled = np.maximum.accumulate(got["progress"][index, int(row["index"])].astype(float))
                company[i - len(scene.schedules)] = filled * UNIT_BYTES
    return SceneTrace(scene, tuple(t for t in traces if t is not None), company, bound, offsets, work)


def _clock_mhz(repetitions: NDArray[Any], index: int) -> float:
    """SM clock from the start of this repetition to the end of the next one (of the one before to this one's, for the last).

    One SM stamps, which may idle in this scene: its own start and end can be too close together to divide by.
    """
    first, last = (index, index + 1) if index + 1 < len(repetitions) else (max(index - 1, 0), index)
    cycles = float(repetitions["end_clock"][last]) - float(repetitions["clock"][first])
    return cycles / max(float(repetitions["end_timer_ns"][last]) - float(repetitions["timer_ns"][first]), 1.0) * 1e3


def _trace(s: Schedule, smids: NDArray[np.int64], stamps: NDArray[Any], verdict: Any, clock: float, first: bool) -> Trace:
    start, end, end_ns, drained = (stamps[name].astype(float) for name in ("start", "end", "end_ns", "drained"))
    gap, drain = np.full(start.shape, np.nan), np.full(start.shape, np.nan)
    gap[1:] = start[1:] - end[:-1]
    drain[-1] = drained[-1] - end[-1]
    issue = end - start
    status: Status = "ok"
    detail = ""
    if verdict["state"] != STATE_DONE:
        status, detail = "timeout", "a wait inside the kernel ended by its time-out"
    elif verdict["mismatches"]:
        status = "corrupt"
        detail = (
            f"pair {s.source}>{s.destination}: {verdict['mismatches']} wrong 16-byte words, the first at offset {verdict['offset']}: "
            f"expected 0x{verdict['expected']:08x}, found 0x{verdict['found']:08x}"
        )
    elif first:
        status = "warmup"
    start_ns = np.rint(end_ns - issue / max(clock, 1.0) * 1e3)
    return Trace(s, smids, issue, gap, start_ns, end_ns, drain, clock, status, detail)
