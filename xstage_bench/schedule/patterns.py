"""Who stores to whom: patterns as functions on a Node, for any number of GPUs, each giving one Scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.scenes import Scene


def pair(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int = 0, destination: int = 1) -> Scene:
    """One GPU stores to one other with all of its SMs."""
    return Scene((_between(node, bursts, warps, source, destination),), name=f"pair {source}>{destination}")


def both_directions(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int = 0, destination: int = 1) -> Scene:
    """Two GPUs store to each other."""
    ends = ((source, destination), (destination, source))
    return Scene(tuple(_between(node, bursts, warps, a, b) for a, b in ends), name=f"both directions {source}<>{destination}")


def fan_out(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int = 0, destination: int | None = None) -> Scene:
    """One GPU stores to all others, its SMs dealt out to them in turn."""
    return Scene(_dealt(node, bursts, warps, source, _others(node, source)), name=f"fan-out of {source}")


def incast(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int | None = None, destination: int = 0) -> Scene:
    """All others store to one GPU, each with all of its SMs."""
    sources = _others(node, destination)
    return Scene(tuple(_between(node, bursts, warps, s, destination) for s in sources), name=f"incast to {destination}")


def all_to_all(
    node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int | None = None, destination: int | None = None
) -> Scene:
    """Every GPU stores to all others."""
    rows = [_dealt(node, bursts, warps, g.index, _others(node, g.index)) for g in node.gpus]
    return Scene(tuple(s for row in rows for s in row), name=f"all-to-all of {len(node.gpus)}")


def shift(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, by: int = 1) -> Scene:
    """Every GPU stores to the one `by` places on: disjoint pairs, one coming in and one going out everywhere."""
    n = len(node.gpus)
    return Scene(tuple(_between(node, bursts, warps, g, (g + by) % n) for g in range(n)), name=f"shift by {by} of {n}")


def ring(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int | None = None, destination: int | None = None) -> Scene:
    """Every GPU stores to the next one."""
    return replace(shift(node, bursts, warps=warps), name=f"ring of {len(node.gpus)}")


def fan_out_to(node: Node, bursts: tuple[Burst, ...], destinations: Sequence[int], *, warps: int = 4, source: int = 0) -> Scene:
    """One GPU stores to some others, its SMs dealt out to them in turn."""
    return Scene(_dealt(node, bursts, warps, source, destinations), name=f"fan-out of {source} to {len(destinations)}")


def incast_from(node: Node, bursts: tuple[Burst, ...], sources: Sequence[int], *, warps: int = 4, destination: int = 0) -> Scene:
    """Some GPUs store to one, each with all of its SMs."""
    return Scene(tuple(_between(node, bursts, warps, s, destination) for s in sources), name=f"incast to {destination} of {len(sources)}")


PATTERNS: dict[str, Callable[..., Scene]] = {
    "pair": pair,
    "both_directions": both_directions,
    "fan_out": fan_out,
    "incast": incast,
    "all_to_all": all_to_all,
    "ring": ring,
}


def usable(scene: Scene, node: Node) -> tuple[Scene, dict[str, str]]:
    """Leave out the schedules whose pair cannot be reached on this node.

    Returns
    -------
    scene : Scene
    waived : dict
        "source>destination" to the reason.

    Raises
    ------
    UsageError
        Nothing is left.
    """
    waived = {
        f"{a}>{b}": (node.unusable or {}).get(f"{a}>{b}", "no such pair on this node")
        for a, b in ((s.source, s.destination) for s in scene.schedules if not s.is_local)
        if (a, b) not in node.pairs and b != HOST
    }
    left = tuple(s for s in scene.schedules if f"{s.source}>{s.destination}" not in waived)
    if not left and not scene.company:
        first = next(iter(waived))
        raise UsageError(f"no pair of this pattern can be measured: {first}: {waived[first]}", "xstage topo shows the usable pairs")
    return replace(scene, schedules=left), waived


def _others(node: Node, gpu: int) -> list[int]:
    others = [g.index for g in node.gpus if g.index != gpu]
    if not others:
        raise UsageError("this pattern needs two GPUs and the node has one", "use the pair pattern with the host destination")
    return others


def _between(node: Node, bursts: tuple[Burst, ...], warps: int, source: int, destination: int) -> Schedule:
    _check(node, source)
    _check(node, destination)
    return Schedule(bursts, node.gpus[source].sm_count, warps, source, destination, "free" if len(bursts) > 1 else "isolated")


def _dealt(node: Node, bursts: tuple[Burst, ...], warps: int, source: int, destinations: Sequence[int]) -> tuple[Schedule, ...]:
    _check(node, source)
    smids, n = node.gpus[source].smids, len(destinations)
    start = "free" if len(bursts) > 1 else "isolated"
    # Neighbouring smids share part of their path, so pairs of them are dealt out, not single SMs.
    return tuple(
        Schedule(bursts, tuple(m for i, m in enumerate(smids) if i // 2 % n == j), warps, source, d, start)  # type: ignore[arg-type]
        for j, d in enumerate(destinations)
    )


def _check(node: Node, gpu: int) -> None:
    if gpu >= len(node.gpus):
        raise UsageError(f"GPU {gpu} asked for, but there are {len(node.gpus)}", "GPU indices start at 0")
