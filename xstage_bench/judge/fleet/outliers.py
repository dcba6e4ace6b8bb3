"""What stands out of a population of links: by node, by GPU, by link, each once and at the level where it belongs.

A number x of the link from GPU s to GPU d of node n is split by medians:

    log x = population + node[n] + egress[n, s] + ingress[n, d] + link

So a slow node is one finding and not 56, and a GPU whose egress is slow is one and not 7. At each level a deviation is judged against
the spread of its own level: how far 68 % of it lie from its median at most, which a tenth of bad links hardly moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Level = Literal["node", "egress", "ingress", "link"]
#: As in the figure of pairs: this many robust standard deviations, and this much in itself. 5 deviations of a normal population
#: are met by chance in one of 1.7 million.
DEVIATIONS, SMALLEST = 5.0, 0.05
#: Fewer of a level are no population.
FEWEST = 4
#: This share of a normal population lies within one standard deviation.
_ONE_SIGMA = 0.6827
_ZERO = 1e-12
#: With fewer than three GPUs an egress, an ingress and a link are the same thing.
_GPUS_FOR_PORTS = 3


@dataclass(frozen=True, slots=True)
class Outlier:
    """One deviation: the node by its number, GPUs within it; `change` is relative to what stood beside it, `score` in deviations."""

    level: Level
    node: int
    source: int | None
    destination: int | None
    change: float
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A population and what stands out of it.

    Parameters
    ----------
    median : float
        Of all links.
    sigma : dict of str to float
        Robust relative spread of each level; null levels are left out.
    node : ndarray of float, shape (nodes,)
        Relative change of each node against the population; NaN where it has no number.
    outliers : list of Outlier
        Most deviating first.
    """

    median: float
    sigma: dict[str, float]
    node: FloatArray
    outliers: list[Outlier]


def judge(node: IntArray, source: IntArray, destination: IntArray, values: FloatArray) -> Judged | None:
    """Split one metric of one population by level and find its outliers.

    Parameters
    ----------
    node, source, destination : ndarray of int, shape (links,)
        Nodes are numbered from 0.
    values : ndarray of float, shape (links,)
        Positive; NaN where missing.

    Returns
    -------
    Judged or None
        None when there are fewer than `FEWEST` numbers.
    """
    good = np.isfinite(values) & (values > 0)
    nodes = int(node.max(initial=-1)) + 1
    if good.sum() < FEWEST:
        return None
    n, s, d, rest = node[good], source[good], destination[good], np.log(values[good])
    middle = float(np.median(rest))
    rest = rest - middle
    by_node, rest = _sweep(rest, n, nodes)
    gpus = int(max(s.max(), d.max())) + 1
    found = _outliers("node", by_node, [(i, None, None) for i in range(nodes)])
    sigma: dict[str, float] = {"node": _sigma(by_node)}
    ports = _gpu_counts(n, s, d, nodes)[n] >= _GPUS_FOR_PORTS
    if ports.any():
        sides: tuple[tuple[Level, IntArray], ...] = (("egress", s), ("ingress", d))
        for level, end in sides:
            effect, swept = _sweep(np.where(ports, rest, np.nan), n * gpus + np.maximum(end, 0), nodes * gpus)
            rest = np.where(ports, swept, rest)
            both = [divmod(i, gpus) for i in range(nodes * gpus)]
            found += _outliers(level, effect, [(node_, gpu, None) if level == "egress" else (node_, None, gpu) for node_, gpu in both])
            sigma[level] = _sigma(effect)
    found += _outliers("link", rest, list(zip(n.tolist(), s.tolist(), d.tolist(), strict=True)))
    sigma["link"] = _sigma(rest)
    return Judged(float(np.exp(middle)), sigma, np.expm1(by_node), sorted(found, key=lambda o: -abs(o.score)))


def _sweep(values: FloatArray, group: IntArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """Median of each group, NaN where it has none, and the values without it."""
    effect = np.full(groups, np.nan)
    use = np.isfinite(values)
    order = np.lexsort((values[use], group[use]))
    ranked, of = values[use][order], group[use][order]
    present, first, count = np.unique(of, return_index=True, return_counts=True)
    effect[present] = (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) / 2
    return effect, values - effect[group]


def _sigma(values: FloatArray) -> float:
    """Standard deviation of the good part of a level.

    Not the median absolute deviation, and without the zeros: subtracting the median of a few values makes one of them zero, and sweeping
    twice makes a third of them zero, so that both would understate the spread by up to a third.
    """
    finite = values[np.isfinite(values)]
    away = np.abs(finite - np.median(finite)) if finite.size else finite
    moved = away[away > _ZERO]
    if 2 * moved.size > away.size:  # else the population itself is exact, and what moved is what to find
        away = moved
    return float(np.quantile(away, _ONE_SIGMA)) if away.size else 0.0


def _outliers(level: Level, values: FloatArray, names: Sequence[tuple[int, int | None, int | None]]) -> list[Outlier]:
    finite = np.isfinite(values)
    if finite.sum() < FEWEST:
        return []
    middle = float(np.median(values[finite]))
    away = values - middle
    sigma = max(_sigma(values), SMALLEST / DEVIATIONS)  # the most regular population does not make a change below SMALLEST an outlier
    at = np.flatnonzero(finite & (np.abs(away) > DEVIATIONS * sigma) & (np.abs(np.expm1(away)) > SMALLEST))
    return [Outlier(level, *names[int(i)], float(np.expm1(away[i])), float(away[i] / sigma)) for i in at]


def _gpu_counts(n: IntArray, s: IntArray, d: IntArray, nodes: int) -> IntArray:
    """How many GPUs each node has links between."""
    both = np.unique(np.stack([np.r_[n, n], np.r_[s, d]], axis=1), axis=0)
    return np.bincount(both[:, 0], minlength=nodes)
