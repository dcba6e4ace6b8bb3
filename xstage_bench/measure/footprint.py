"""How far the destination of a burst may spread before address translation costs: the same stores, dealt over 1 MiB to 8 GiB.

`rates` and `issue_times` reduce the rows of a document to R and T0 of each footprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.footprint import SLOT_BYTES, Shape
from xstage_bench.errors import PairError
from xstage_bench.measure.rounds import Work, name_of
from xstage_bench.measure.survey import Described, take
from xstage_bench.schedule.device import Node

FOOTPRINTS_MIB = tuple(1 << i for i in range(17))
LARGEST_MIB = 8192
RUN_SLOTS = (1, 128, 4096)  # 512 B, 64 KiB and 2 MiB (the page of cudaMalloc) before a warp moves elsewhere
STORES = {"all": (4, 8, 16, 32, 64, 256, 512), "few": (8, 32, 64, 512, 1024)}
FEW, WARPS = 8, 4
REPETITIONS = 5


@runtime_checkable
class Dealer(Described, Protocol):
    """A device that deals a burst over a large destination."""

    def deal(self, source: int, shape: Shape, largest_bytes: int, count: int) -> list[NDArray[Any]]:
        """Execute one burst `count` times; the stamps of each, shape (K, W)."""
        ...

    def verify_deal(self, source: int, shape: Shape, largest_bytes: int) -> None:
        """Let the destination check every byte after one such burst; `PairError` when one is wrong."""
        ...


def shapes(destinations: Sequence[int], sm_count: int, footprints_mib: Sequence[int] = FOOTPRINTS_MIB) -> list[Shape]:
    """Every burst of the sweep. Runs too long for each warp to have a chunk of its own are left out."""
    return [
        Shape(destination, mib << 20, run, producers, WARPS, stores)
        for destination in destinations
        for producers, sizes in ((sm_count, STORES["all"]), (min(FEW, sm_count), STORES["few"]))
        for mib in footprints_mib
        for run in RUN_SLOTS
        if run == 1 or (mib << 20) // (run * SLOT_BYTES) >= producers * WARPS
        for stores in sizes
    ]


def measure_footprint(
    open_dealer: Callable[[int], Dealer],
    pairs: Sequence[tuple[int, int]] | None,
    *,
    largest_mib: int = LARGEST_MIB,
    processes: int = 3,
    seed: int = 0,
    **kept: Any,
) -> dict[str, Any]:
    """Measure pairs, and the LOCAL control of each source; the longest burst of each kind is verified by the destination first.

    Parameters
    ----------
    open_dealer : callable
        ``process number -> device``.
    pairs : sequence of (int, int), optional
        Default: all that the node has.
    largest_mib : int
        Of each GPU's memory.
    processes : int
        Fresh processes, a pass of all bursts in each.
    seed : int
        Of the order.
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.

    Returns
    -------
    dict
        ``rows``: one per execution, the first of each shape and pass marked ``first`` (its translations are cold).
    """
    rows: list[dict[str, Any]] = []
    footprints = [f for f in FOOTPRINTS_MIB if f <= largest_mib]
    largest_bytes = max(footprints) << 20

    def work(device: Dealer, process: int) -> Iterator[Work]:
        wanted = device.node().pairs if pairs is None else pairs
        for source, destination in dict.fromkeys(end for a, b in wanted for end in ((a, b), (a, a))):
            yield Work(((source, destination),), partial(deal_all, device, process, source, destination))

    def deal_all(device: Dealer, process: int, source: int, destination: int) -> Iterator[int]:
        todo = shapes((destination,), device.node().gpus[source].sm_count, footprints)
        if process == 0:
            longest = {(s.footprint_bytes, s.run_slots, s.producers): s for s in todo}  # sizes ascend
            for shape in longest.values():
                device.verify_deal(source, shape, largest_bytes)
                yield 0
        for at in np.random.default_rng([seed, process]).permutation(len(todo)):
            shape = todo[at]
            for repetition, stamps in enumerate(device.deal(source, shape, largest_bytes, REPETITIONS + 1)):
                where = {"pair": name_of((source, destination)), "source": source, **asdict(shape)}
                rows.append({**where, "pass": process, "first": repetition == 0, **reduce(stamps, shape, source)})
            yield REPETITIONS + 1

    def body(node: Node) -> dict[str, Any]:
        return {"rows": rows}

    return take("footprint", open_dealer, work, body, processes=processes, seed=seed, options={"largest_mib": largest_mib}, **kept)


def reduce(stamps: NDArray[Any], shape: Shape, source: int) -> dict[str, float]:
    """Reduce one execution's stamps, shape (K, W), to the numbers of a row: per producer first start to last end, as everywhere."""
    if (stamps["state"] != 1).any():
        raise PairError(f"pair {source}>{shape.destination}: a wait inside the kernel ended by its time-out", "run 'xstage doctor'")
    first, last = stamps["start"].min(axis=1).astype(np.int64), stamps["end"].max(axis=1).astype(np.int64)
    issue = last - first
    return {
        "issue_mean_cycles": float(issue.mean()),
        "issue_max_cycles": float(issue.max()),
        "drain_mean_cycles": float((stamps["drained"].max(axis=1) - last).mean()),
        "makespan_ns": float(stamps["end_ns"].max()) - float(stamps["start_ns"].min()),
    }


def rates(rows: Sequence[dict[str, Any]], sm_clock_mhz: float) -> Iterator[dict[str, Any]]:
    """R of each footprint: the slope of the slowest producer between the two longest bursts, in GB/s, over passes."""
    for key, group in _grouped(rows):
        sizes = sorted({r["stores"] for r in group})[-2:]
        volume = (sizes[1] - sizes[0]) * group[0]["producers"] * group[0]["warps"] * SLOT_BYTES
        longest = [_medians(group, n, "issue_max_cycles") for n in sizes]
        value = [volume / (b - a) * sm_clock_mhz * 1e-3 for a, b in zip(*longest, strict=True)]
        yield {**key, "gb_per_s": float(np.mean(value)), "standard_error": _error(value)}


def issue_times(rows: Sequence[dict[str, Any]], stores: int, column: str = "issue_mean_cycles") -> Iterator[dict[str, Any]]:
    """Issue time (or drain) of bursts of `stores` warp-stores for each footprint, and that of the first one, with translations cold."""
    for key, group in _grouped(rows):
        value = _medians(group, stores, column)
        cold = [r[column] for r in group if r["stores"] == stores and r["first"]]
        yield {**key, "cycles": float(np.mean(value)), "standard_error": _error(value), "first_cycles": float(np.median(cold))}


def _error(values: Sequence[float]) -> float | None:
    """Standard error over passes; null for one pass."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _grouped(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    names = ("destination", "producers", "run_slots", "footprint_bytes")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in names), []).append(row)
    for values, group in sorted(groups.items()):
        yield dict(zip(names, values, strict=True)), group


def _medians(group: Sequence[dict[str, Any]], stores: int, column: str) -> list[float]:
    """One median per pass, warm executions only."""
    chosen = [r for r in group if r["stores"] == stores and not r["first"]]
    return [float(np.median([r[column] for r in chosen if r["pass"] == p])) for p in sorted({r["pass"] for r in chosen})]
