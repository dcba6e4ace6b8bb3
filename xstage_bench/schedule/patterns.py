"""Who stores to whom: patterns as functions on a Node, for any number of GPUs, each giving one Scene; the plain ones are files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.scene_files import dealt, expanded, known, renumbered
from xstage_bench.schedule.scenes import Scene


class _Known(Protocol):
    def __call__(
        self, node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int | None = None, destination: int | None = None
    ) -> Scene: ...


def _known(name: str) -> _Known:
    def scene(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, source: int | None = None, destination: int | None = None) -> Scene:
        return expanded(renumbered(known(name), source, destination, bursts, warps), node)

    return scene


#: The scenes that ship as files (``known_scenes``), with bursts, warps and ends of the caller's own.
PATTERNS: dict[str, _Known] = {name: _known(name) for name in ("pair", "both_directions", "fan_out", "incast", "all_to_all", "ring")}
pair, both_directions, fan_out, incast, all_to_all, ring = PATTERNS.values()


def shift(node: Node, bursts: tuple[Burst, ...], *, warps: int = 4, by: int = 1) -> Scene:
    """Every GPU stores to the one `by` places on: disjoint pairs, one coming in and one going out everywhere."""
    n = len(node.gpus)
    return Scene(tuple(_between(node, bursts, warps, g, (g + by) % n) for g in range(n)), name=f"shift by {by} of {n}")


def fan_out_to(node: Node, bursts: tuple[Burst, ...], destinations: Sequence[int], *, warps: int = 4, source: int = 0) -> Scene:
    """One GPU stores to some others, its SMs dealt out to them in turn."""
    return Scene(_dealt(node, bursts, warps, source, destinations), name=f"fan-out of {source} to {len(destinations)}")


def incast_from(node: Node, bursts: tuple[Burst, ...], sources: Sequence[int], *, warps: int = 4, destination: int = 0) -> Scene:
    """Some GPUs store to one, each with all of its SMs."""
    return Scene(tuple(_between(node, bursts, warps, s, destination) for s in sources), name=f"incast to {destination} of {len(sources)}")


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


def _between(node: Node, bursts: tuple[Burst, ...], warps: int, source: int, destination: int) -> Schedule:
    _check(node, source)
    _check(node, destination)
    return Schedule(bursts, node.gpus[source].sm_count, warps, source, destination, "free" if len(bursts) > 1 else "isolated")


def _dealt(node: Node, bursts: tuple[Burst, ...], warps: int, source: int, destinations: Sequence[int]) -> tuple[Schedule, ...]:
    _check(node, source)
    smids, n = node.gpus[source].smids, len(destinations)
    start = "free" if len(bursts) > 1 else "isolated"
    return tuple(
        Schedule(bursts, own, warps, source, d, start)  # type: ignore[arg-type]
        for d, own in zip(destinations, dealt(smids, n), strict=True)
    )


def _check(node: Node, gpu: int) -> None:
    if gpu >= len(node.gpus):
        raise UsageError(f"GPU {gpu} asked for, but there are {len(node.gpus)}", "GPU indices start at 0")
