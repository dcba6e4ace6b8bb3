"""Studies: families of scenes that answer one question each (results/h200-x2/company, places). A study is a function on a Node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.patterns import PATTERNS, both_directions, fan_out_to, incast_from, pair, shift
from xstage_bench.schedule.scenes import Companion, CompanyKind, GapWork, Scene

WARPS = 4
WORK: tuple[GapWork, ...] = ("idle", "mma")
_TURN_BYTES = 4 * 512 * WARPS  # of one SM: bursts of scenes are multiples of it
_LONG_BYTES = 1 << 20  # of one SM: lasts long beside any skew


def patterns(node: Node) -> list[Scene]:
    """Every pattern once, sustained."""
    return [make(node, (Burst(_LONG_BYTES),), warps=WARPS) for make in PATTERNS.values() if len(node.gpus) > 1]


def directions(node: Node) -> list[Scene]:
    """Isolated bursts of growing size by all SMs: each direction alone, then both."""
    scenes = []
    for bursts in _growing():
        scenes += [pair(node, bursts), pair(node, bursts, source=1, destination=0), both_directions(node, bursts)]
    return scenes


def pairs_at_once(node: Node) -> list[Scene]:
    """Every ordered pair alone, then all of them in scenes of disjoint pairs: what measuring pairs at once costs."""
    n, bursts = len(node.gpus), (Burst(_LONG_BYTES),)
    alone = [pair(node, bursts, source=a, destination=b) for a in range(n) for b in range(n) if a != b]
    return alone + [shift(node, bursts, by=by) for by in range(1, n)]


def several_peers(node: Node) -> list[Scene]:
    """Growing isolated bursts by one GPU to 1, 2, ... others, and by 1, 2, ... others to one: is Q of the SM, the port or the pair?"""
    others = [g.index for g in node.gpus[1:]]
    scenes = []
    for count in range(1, len(others) + 1):
        for bursts in _growing():
            scenes += [fan_out_to(node, bursts, others[:count]), incast_from(node, bursts, others[:count])]
    return scenes


def pulls(node: Node) -> list[Scene]:
    """Pushes 0>1 of half the SMs, with pulls whose data leaves by the same port (by GPU 1), or enters by the pusher's (by GPU 0)."""
    own, others = _halves(node, 0)
    far = tuple(node.gpus[1].smids[::2])
    push = Schedule((Burst(2 * _LONG_BYTES),), own, WARPS, 0, 1)
    scenes = [Scene((push,), name="push alone")]
    kinds: tuple[tuple[CompanyKind, int], ...] = (("pull", 8), ("pull.bulk", 1))
    for kind, warps in kinds:
        for count in (4, 8, 16, 66):
            for gpu, smids, where in ((1, far, "same egress"), (0, others, "opposite")):
                few = smids[:: max(1, len(smids) // count)][:count]
                c = Companion(kind, gpu, 1 - gpu, few, warps)
                name = f"{kind} by {len(few)} SMs of {gpu}, {where}"
                scenes.append(Scene((), (c,), name=f"{name}, alone"))
                scenes.append(Scene((push,), (c,), company_ns=1_000_000, name=name))
    return scenes


def local(node: Node) -> list[Scene]:
    """Pushes 0>1 of half the SMs beside copies within the memory of the sender or the receiver, in HBM and in L2."""
    own, others = _halves(node, 0)
    push = Schedule((Burst(2 * _LONG_BYTES),), own, WARPS, 0, 1)
    scenes = [Scene((push,), name="push alone")]
    for where, gpu, smids in (("sender", 0, others), ("receiver", 1, node.gpus[1].smids)):
        for what, footprint in (("HBM", 1 << 30), ("L2", 16 << 20)):
            c = Companion("copy", gpu, gpu, smids, 16, footprint)
            scenes.append(Scene((), (c,), name=f"copy in {what} of the {where}, alone"))
            scenes.append(Scene((push,), (c,), company_ns=600_000, name=f"copy in {what} of the {where}"))
    return scenes


def gap_work(node: Node) -> list[Scene]:
    """Periodic bursts of all SMs with gaps spent waiting, and spent on tensor-core work."""
    scenes = []
    for turns in (2, 4):
        for gap in (1000, 4000, 8000, 16000, 24000, 40000):
            base = pair(node, tuple(Burst(turns * _TURN_BYTES, gap) for _ in range(48)))
            scenes += [replace(base, gap_work=work, name=f"{turns * 8} KiB, gap {gap}, {work}") for work in WORK]
    return scenes


def producers_per_sm(node: Node) -> list[Scene]:
    """The same bytes and warps by one producer per SM, or by two and four that have their own gaps."""
    k = node.gpus[0].sm_count
    scenes = []
    for gap in (2000, 20000, 40000):
        for split in (1, 2, 4):
            warps = 8 // split
            bursts = tuple(Burst(64 * 1024 // split, gap) for _ in range(24))
            schedules = tuple(Schedule(bursts, k, warps, 0, 1, "free") for _ in range(split))
            scenes.append(Scene(schedules, name=f"{split} producer(s) per SM, gap {gap}"))
    return scenes


def host(node: Node) -> list[Scene]:
    """Stores to pinned host memory: by one GPU, by all, and beside stores to a peer by the other half of the SMs."""
    bursts = (Burst(_LONG_BYTES // 4),)
    each = tuple(Schedule(bursts, g.sm_count, WARPS, g.index, HOST) for g in node.gpus)
    scenes = [Scene((each[0],), name="host, one GPU")]
    if len(node.gpus) > 1:
        own, others = _halves(node, 0)
        to_host, to_peer = (
            Schedule((Burst(_LONG_BYTES // 2),), own, WARPS, 0, HOST),
            Schedule((Burst(2 * _LONG_BYTES),), others, WARPS, 0, 1),
        )
        scenes += [
            Scene(each, name="host, all GPUs"),
            Scene((to_host,), name="host, half the SMs"),
            Scene((to_peer,), name="peer, half the SMs"),
            Scene((to_host, to_peer), name="host and peer at once"),
        ]
    return scenes


STUDIES: dict[str, Callable[[Node], list[Scene]]] = {
    "patterns": patterns,
    "directions": directions,
    "pairs_at_once": pairs_at_once,
    "several_peers": several_peers,
    "pulls": pulls,
    "local": local,
    "gap_work": gap_work,
    "producers_per_sm": producers_per_sm,
    "host": host,
}


def _growing() -> list[tuple[Burst]]:
    """One burst of each size, from far below what an SM can have outstanding to far above it."""
    return [(Burst(turns * _TURN_BYTES),) for turns in (1, 2, 4, 6, 8, 12, 16, 32, 64, 128)]


def _halves(node: Node, gpu: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One SM of each pair of neighbours, and the others."""
    smids = node.gpus[gpu].smids
    return tuple(smids[::2]), tuple(smids[1::2])
