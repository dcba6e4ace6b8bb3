"""Units that behave nearly alike, taken together: fewer queues to follow.

Of the units with the same number of producers, those of near service weight become one class of `multiple` units with the geometric mean
of their weights. Members, capacities and shares of the link are sums, so a class of like units is exact; the error is the spread of
weights within a class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.node.parameters import NodeModel

#: Classes of weight for each number of producers per unit when units are merged (docs/node-model.md: what each number costs).
LEVELS = 3


def unit_table(model: NodeModel, members: IntArray, levels: int | None, queued: FloatArray | float = 0.0) -> tuple[IntArray, FloatArray]:
    """Return the classes of each set of producers.

    Parameters
    ----------
    model : NodeModel
    members : ndarray of int, shape (sets, units)
        Producers of each unit.
    levels : int or None
        Classes of weight for each number of producers; None keeps every unit by itself.
    queued : ndarray, shape (sets,), optional
        What each SM of a set may hold beside its capacity, bytes.

    Returns
    -------
    count : ndarray of int, shape (sets,)
        Classes of each set.
    table : ndarray, shape (sets, 4, most classes)
        Members, capacity and number of units of each class, together, and the logarithm of the weight of one. A set's classes ascend in
        members / weight, as `fluid.FluidColumns` wants; unused places are like one empty unit.
    """
    log_weight = np.log(model.weights())
    sets, units = members.shape
    # Units by members, then by weight: a class is a run of this order, its label ascending.
    order = np.lexsort((np.broadcast_to(log_weight, members.shape), members), axis=1)
    row = np.arange(sets)[:, None]
    n, w = members[row, order], log_weight[order]
    new = np.ones((sets, units), dtype=bool)
    if levels is not None:
        run = np.ones((sets, units), dtype=bool)
        run[:, 1:] = n[:, 1:] != n[:, :-1]
        place = np.arange(units)
        begin = np.maximum.accumulate(np.where(run, place, 0), axis=1)
        length = (n[:, :, None] == n[:, None, :]).sum(axis=2)
        level = (place - begin) * np.minimum(levels, length) // length
        new[:, 1:] = run[:, 1:] | (level[:, 1:] != level[:, :-1])
    label = np.cumsum(new, axis=1) - 1
    most = int(label.max(initial=0)) + 1
    slot = (row * most + label).ravel()
    size = sets * most

    def total(x: NDArray[np.generic]) -> FloatArray:
        found = np.bincount(slot, weights=np.asarray(x, dtype=np.float64).ravel(), minlength=size)
        return found.astype(np.float64).reshape(sets, most)

    multiple = np.maximum(total(np.ones_like(n)), 1.0)
    mean = total(w) / multiple
    together = total(n)
    capacity = total(model.unit_capacity(n) + n * np.broadcast_to(queued, sets)[:, None])
    used = together > 0
    by_share = np.argsort(np.where(used, together / (multiple * np.exp(mean)), np.inf), axis=1, kind="stable")
    table = np.stack([x[row, by_share] for x in (together, capacity, multiple, mean)], axis=1)
    count = used.sum(axis=1)
    return count, np.ascontiguousarray(table[:, :, : max(int(count.max(initial=0)), 1)])
