"""From the probe `placement` to the map: who is slowed by whom.

Random subsets of SMs issue one saturating burst. An SM's issue time rises with every other active SM that shares its arbiter. Neighbours
(smids 2i and 2i+1) sit in one pair (a TPC) and always go together; a ridge regression of each pair's log issue time on the activity of all
others gives a matrix of couplings, average linkage a tree, and the widest gap between its merges the units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.node.placement import Placement, adjusted_rand_index

if TYPE_CHECKING:
    import pandas as pd

PROBE = "placement"
_RIDGE = 2.0
_MIN_SUBSETS = 20
_MAX_SHARE = 0.5  # a unit never holds more than this share of all pairs
_CLEAR = 2.0  # the gap between the merges, in standard deviations of the couplings between units


def infer_placement(samples: pd.DataFrame, producers: pd.DataFrame, source: int, smids: IntArray | None = None) -> Placement:
    """Infer the map of one GPU.

    Parameters
    ----------
    samples, producers : DataFrame
        As in docs/files.md. Used: schedules of the probe ``placement`` with a list of smids, source as given, remote destination.
    source : int
    smids : ndarray of int, optional
        All smids of the GPU; default is those seen.

    Returns
    -------
    Placement
        SMs never seen form units of their own.

    Raises
    ------
    DataError
        Too few subsets, or no structure in them.
    """
    issue, names = _table(samples, producers, source)
    if len(issue) < _MIN_SUBSETS:
        raise DataError(f"{len(issue)} subsets of the probe placement on GPU {source}", f"measure at least {_MIN_SUBSETS}: run it in full")
    labels, coupling, found = _labels(issue, names)
    if not found:
        raise DataError(f"GPU {source}: the probe placement shows no groups of SMs", "measure it again with more subsets")
    halves = [_labels(issue[i::2], names)[0] for i in (0, 1)]
    units: dict[int, list[int]] = {}
    for smid, label in zip(names.tolist(), labels[names // 2].tolist(), strict=True):
        units.setdefault(label, []).append(smid)
    parts = list(units.values())
    if smids is not None:
        parts += [[int(s)] for s in smids if s not in set(names.tolist())]
    seen = np.unique(names // 2)
    return Placement(
        tuple(sorted(tuple(sorted(p)) for p in parts)),
        stability=adjusted_rand_index(halves[0][seen], halves[1][seen]),
        coupling=coupling,
    )


def _table(samples: pd.DataFrame, producers: pd.DataFrame, source: int) -> tuple[FloatArray, IntArray]:
    """Median issue time of each subset (rows) and smid (columns), NaN where the SM did not produce; and the smids."""
    rows = samples[(samples["probe"] == PROBE) & (samples["source"] == source) & (samples["destination"] != source)]
    keys = rows[rows["producer_set"] != "even"]["schedule"].unique()
    chosen = producers[producers["schedule"].isin(keys)]
    if not len(chosen):
        raise DataError(f"no producers of the probe placement on GPU {source}", "measure it: xstage run --only placement")
    table = chosen.pivot_table(index="schedule", columns="smid", values="issue_cycles", aggfunc="median")
    return table.to_numpy(dtype=np.float64), table.columns.to_numpy(dtype=np.int64)


def couplings(issue: FloatArray, smids: IntArray) -> FloatArray:
    """Return by what fraction an active pair prolongs another, shape (pairs, pairs), symmetric, zero diagonal.

    Parameters
    ----------
    issue : ndarray, shape (subsets, SMs)
        NaN where the SM did not produce.
    smids : ndarray of int, shape (SMs,)
    """
    active = np.isfinite(issue)
    count = int(smids.max()) // 2 + 1
    pair = np.zeros((len(issue), count))
    np.maximum.at(pair.T, smids // 2, active.T.astype(float))
    neighbour = {int(s): i for i, s in enumerate(smids)}
    out = np.zeros((count, count))
    for p in range(count):
        designs, times = [], []
        for smid in (2 * p, 2 * p + 1):
            column = neighbour.get(smid)
            if column is None or not active[:, column].any():
                continue
            rows = active[:, column]
            other = neighbour.get(smid ^ 1)
            mate = active[rows, other].astype(float) if other is not None else np.zeros(int(rows.sum()))
            others = pair[rows].copy()
            others[:, p] = 0.0
            designs.append(np.column_stack([others, mate]))
            times.append(np.log(issue[rows, column]))
        if not designs:
            continue
        x, y = np.concatenate(designs), np.concatenate(times)
        x = x - x.mean(axis=0)
        gain = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ (y - y.mean()))
        out[p] = gain[:count]
    both = (out + out.T) / 2
    np.fill_diagonal(both, 0.0)
    return both


def _labels(issue: FloatArray, smids: IntArray) -> tuple[IntArray, float, bool]:
    """Return the unit of each pair (−1: not seen), the mean coupling within units less that between them, and whether units stand out."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    every = couplings(issue, smids)
    seen = np.unique(smids // 2)
    near = every[np.ix_(seen, seen)]
    labels = np.full(every.shape[0], -1, dtype=np.int64)
    labels[seen] = np.arange(seen.size)
    if seen.size < 3:
        return labels, 0.0, False
    far = near.max() - near
    np.fill_diagonal(far, 0.0)
    tree = linkage(squareform(far, checks=False), "average")
    cut = _cut(tree[:, 2], seen.size)
    labels[seen] = fcluster(tree, cut, "distance")
    same = labels[seen][:, None] == labels[seen][None, :]
    off = ~np.eye(seen.size, dtype=bool)
    if not (same & off).any() or same.all():
        return labels, 0.0, False
    within, between = near[same & off], near[~same]
    coupling = float(within.mean() - between.mean())
    return labels, coupling, bool(coupling > _CLEAR * between.std())


def _cut(heights: FloatArray, items: int) -> float:
    """Return the height in the middle of the widest gap between merges that leaves no unit for more than its share of all items."""
    first = max(1, items // 4)  # at least a quarter of the merges lie below: units are more than single pairs
    last = items - int(np.ceil(1 / _MAX_SHARE))
    gaps = np.diff(heights)[first - 1 : last]
    at = first - 1 + int(np.argmax(gaps))
    return float((heights[at] + heights[at + 1]) / 2)
