"""Loads from another GPU or from host memory: latency, rate, what is in flight, and what an SM's own outstanding stores do to them.

What the law is fitted on and what judges it are different executions: the judges are drawn at random, with the seed in the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.pulls import DEPTHS, DONE, PullShape, sums
from xstage_bench.errors import PairError
from xstage_bench.measure.rounds import Work, name_of
from xstage_bench.measure.survey import Described, take
from xstage_bench.model.estimate import Estimate, with_spread
from xstage_bench.model.pull import LOAD_BYTES, PullLaw
from xstage_bench.schedule.device import Node

Part = Literal["latency", "sm", "all", "curve", "behind", "judge"]
CHAIN = 64  # loads one after the other
WARPS, DEEPEST = 16, DEPTHS[-1]
LONG = (64, 256)  # loads of a warp; the rate is the slope between the two
JUDGES, REPETITIONS = 48, 5


@runtime_checkable
class Puller(Described, Protocol):
    """A device that loads from the memory of others."""

    def pull(self, source: int, shape: PullShape, count: int) -> list[NDArray[Any]]:
        """Execute a pull `count` times; the stamps of each, shape (K, W)."""
        ...

    def fill_pulled(self, source: int, owner: int, salt: int) -> None:
        """Write what is read."""
        ...


def shapes(owner: int, sm_count: int, seed: int, quick: bool) -> list[tuple[Part, PullShape]]:
    """Every pull of the survey of one pair, each with what it is for."""
    counts = sorted({min(1 << i, sm_count) for i in range(8)} | {sm_count})
    out: list[tuple[Part, PullShape]] = [("latency", PullShape(owner, 1, 1, 1, CHAIN))]
    out += [("sm", PullShape(owner, 1, WARPS, DEEPEST, n)) for n in LONG]
    out += [("all", PullShape(owner, sm_count, WARPS, DEEPEST, n)) for n in LONG]
    out += [("curve", PullShape(owner, k, 8, 8, n)) for k in (counts[::3] if quick else counts) for n in LONG]
    out += [("curve", PullShape(owner, 1, w, d, LONG[1])) for w in (1, 4, 16) for d in DEPTHS]
    out += [("behind", PullShape(owner, k, 4, 1, 1, n)) for k in (1, sm_count) for n in (0, 4, 8, 16, 32, 64, 128)]
    rng = np.random.default_rng([seed, 9])
    for _ in range(JUDGES // 4 if quick else JUDGES):
        producers, warps, depth = int(rng.integers(1, sm_count + 1)), int(rng.choice([1, 2, 4, 8, 16])), int(rng.choice(DEPTHS))
        out.append(("judge", PullShape(owner, producers, warps, depth, depth * int(rng.integers(1, 17)))))
    return out


def measure_pulls(
    open_puller: Callable[[int], Puller],
    pairs: Sequence[tuple[int, int]] | None,
    *,
    processes: int = 3,
    seed: int = 0,
    quick: bool = False,
    **kept: Any,
) -> dict[str, Any]:
    """Measure pairs; a pair names who loads and whose memory. What is loaded is held against what was written in every execution.

    Parameters
    ----------
    open_puller : callable
        ``process number -> device``.
    pairs : sequence of (int, int), optional
        Default: all that the node has.
    processes : int
        Fresh processes, a pass of all pulls in each.
    seed : int
        Of the order and of the pulls that judge.
    quick : bool
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.

    Returns
    -------
    dict
        ``rows``: one per pull and process. ``laws``: the fit of each pair and its error on the pulls that judge.
    """
    rows: list[dict[str, Any]] = []

    def work(device: Puller, process: int) -> Iterator[Work]:
        for pair in device.node().pairs if pairs is None else pairs:
            yield Work((pair,), partial(pull_all, device, process, *pair))

    def pull_all(device: Puller, process: int, source: int, owner: int) -> Iterator[int]:
        salt = int(np.random.default_rng([seed, process, 1]).integers(1 << 32))
        device.fill_pulled(source, owner, salt)
        gpu = device.node().gpus[source]
        todo = shapes(owner, gpu.sm_count, seed, quick)
        for at in np.random.default_rng([seed, process]).permutation(len(todo)):
            part, shape = todo[at]
            found = [reduce(stamps, shape, source, salt) for stamps in device.pull(source, shape, REPETITIONS + 1)][1:]
            medians = {name: float(np.median([f[name] for f in found])) for name in found[0]}
            medians["mean_ns"] = medians.pop("mean_cycles") / gpu.sm_clock_mhz * 1e3
            rows.append({"pair": name_of((source, owner)), "process": process, "part": part, **asdict(shape), **medians})
            yield REPETITIONS + 1

    def body(node: Node) -> dict[str, Any]:
        return {"rows": rows, "laws": [judged(rows, pair) for pair in dict.fromkeys(r["pair"] for r in rows)]}

    return take("pulls", open_puller, work, body, processes=processes, seed=seed, options={"quick": quick}, **kept)


def reduce(stamps: NDArray[Any], shape: PullShape, source: int, salt: int) -> dict[str, float]:
    """Reduce one execution's stamps, shape (K, W), to cycles of a producer (first start to last arrival) and the makespan in ns.

    Raises
    ------
    PairError
        A wait ended by its time-out, or a warp loaded something else than what was written.
    """
    where = f"pair {source}>{shape.owner}"
    if (stamps["state"] != DONE).any():
        raise PairError(f"{where}: a wait inside the kernel ended by its time-out", "run 'xstage doctor'")
    wrong = stamps["sum"] != sums(shape, salt)
    if wrong.any():
        raise PairError(f"{where}: {int(wrong.sum())} warps loaded something else than what was written", "do not use this link")
    first, last = stamps["start"].min(axis=1).astype(np.int64), stamps["end"].max(axis=1).astype(np.int64)
    return {
        "mean_cycles": float((last - first).mean()),
        "makespan_ns": float(stamps["end_ns"].max()) - float(stamps["start_ns"].min()),
    }


def fitted(rows: Sequence[dict[str, Any]], pair: str) -> PullLaw:
    """Fit the law of a pair: the latency from loads one after the other, the rates from the slope between two long pulls."""
    mine = [r for r in rows if r["pair"] == pair]
    processes = sorted({r["process"] for r in mine})

    def values(part: Part, process: int) -> list[dict[str, Any]]:
        return sorted((r for r in mine if r["part"] == part and r["process"] == process), key=lambda r: r["loads"])

    def rate(part: Part) -> Estimate:
        each = []
        for process in processes:
            short, long = values(part, process)
            more = (long["loads"] - short["loads"]) * long["producers"] * long["warps"] * LOAD_BYTES
            each.append(more / (long["makespan_ns"] - short["makespan_ns"]))
        return with_spread(float(np.mean(each)), each, "makespan")

    chains = [values("latency", process)[0]["mean_ns"] / CHAIN for process in processes]
    return PullLaw(with_spread(float(np.mean(chains)), chains, "mean"), rate("sm"), rate("all"))


def judged(rows: Sequence[dict[str, Any]], pair: str) -> dict[str, Any]:
    """Return the law of a pair as plain data, what is in flight at its rates, and its errors on the pulls that judge."""
    law = fitted(rows, pair)
    judges = [r for r in rows if r["pair"] == pair and r["part"] == "judge"]
    predicted = [law.time_ns(r["producers"], r["warps"], r["depth"], r["loads"]) for r in judges]
    errors = [abs(p - r["makespan_ns"]) / r["makespan_ns"] for p, r in zip(predicted, judges, strict=True) if p is not None]
    of_sm, of_all = law.in_flight_bytes()
    return {
        "pair": pair,
        **asdict(law),
        "in_flight_sm_bytes": of_sm,
        "in_flight_bytes": of_all,
        "judges": len(errors),
        "median_error": float(np.median(errors)) if errors else None,
        "p95_error": float(np.quantile(errors, 0.95)) if errors else None,
        "behind": behind([r for r in rows if r["pair"] == pair and r["part"] == "behind"]),
    }


def behind(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return how much longer one load takes behind the SM's own outstanding stores: medians over processes, by SMs and bytes stored."""
    alone = {
        k: float(np.median([r["mean_ns"] for r in rows if (r["producers"], r["stores"]) == (k, 0)])) for k in {r["producers"] for r in rows}
    }
    out = []
    for producers, stores in sorted({(r["producers"], r["stores"]) for r in rows if r["stores"]}):
        mine = [r for r in rows if (r["producers"], r["stores"]) == (producers, stores)]
        waited = float(np.median([r["mean_ns"] for r in mine])) - alone[producers]
        out.append({"producers": producers, "bytes": stores * mine[0]["warps"] * LOAD_BYTES, "waited_ns": waited})
    return out
