"""The tree of arbiters: link, groups, subgroups, pairs of SMs. Each node shares its rate evenly among its active children.

Producers that have the same place in the tree and start together behave alike, so the model carries one *class* of them: group, subgroup,
and whether the SM's neighbour in its pair is a producer too. Arrays over classes have shape (groups, subgroups, 2, schedules); the third
axis is 0 for SMs alone in their pair, 1 for SMs that share it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def level_of(total: Array, demand: Array) -> Array:
    """Return the fair level f with sum(min(demand, f)) = min(total, sum(demand)), over the first axis.

    Parameters
    ----------
    total : ndarray, shape (...)
    demand : ndarray, shape (children, ...)
        What each child could take; 0 for an inactive one.

    Returns
    -------
    ndarray, shape (...)
        Each child gets min(demand, f).
    """
    order = np.sort(demand, axis=0)
    left = total
    n = demand.shape[0]
    level = np.zeros_like(total)
    for i in range(n):
        level = left / (n - i)
        left = left - np.minimum(order[i], level)
    # After the loop `level` is what the largest child may take; children below it were served in full.
    return np.maximum(level, np.where(left > 0, order[-1], 0.0))


def rates(active: NDArray[np.bool_], members: Array, link: Array, sm_rate: Array, group_rate: Array) -> Array:
    """Return the drain rate of one SM of each class, in bytes per cycle.

    Parameters
    ----------
    active : ndarray of bool, shape (groups, subgroups, 2, schedules)
        Which classes have bytes to drain.
    members : ndarray, same shape
        SMs of each class that are producers.
    link : ndarray, shape (schedules,)
        Rate of the whole link, bytes per cycle.
    sm_rate : ndarray, shape (schedules,)
        The most that one SM drains, bytes per cycle.
    group_rate : ndarray, shape (schedules,)
        The most that one group passes on, bytes per cycle.

    Returns
    -------
    ndarray of float, shape of `active`
        0 for inactive classes. The sum over SMs never exceeds `link`.
    """
    sms = np.where(active, members, 0.0)
    pairs = sms * np.array([1.0, 0.5])[:, None]
    wanted = sms.sum(axis=2) * sm_rate  # of each subgroup
    group_wanted = np.minimum(wanted.sum(axis=1), group_rate)
    group = np.minimum(group_wanted, level_of(link, group_wanted))
    by_sub = np.moveaxis(wanted, 1, 0)
    sub = np.minimum(by_sub, level_of(group, by_sub)) if wanted.shape[1] > 1 else group[None]
    sub = np.moveaxis(sub, 0, 1)
    # Pairs of one subgroup share evenly, but one SM alone in its pair takes at most sm_rate: then the others divide the rest.
    alone, both = pairs[:, :, 0], pairs[:, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = sub / (alone + both)
        rest = (sub - alone * sm_rate) / both
        capped = share > sm_rate
        per_alone = np.where(capped, sm_rate, share)
        per_both = np.where(capped, np.minimum(rest / 2, sm_rate), share / 2)
    out = np.stack([per_alone, per_both], axis=2)
    return np.where(sms > 0, out, 0.0)
