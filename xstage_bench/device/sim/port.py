"""Warps taking turns at an SM's issue port: what a burst costs when nothing behind the port ever fills.

One warp pays a fixed entry cost, then one store every `store_cycles`; the loop is unrolled by four, and a remainder of one, two or three
stores leaves through a slower exit (the staircase 92, 136, 146, 144, 215, 224 cycles for 1, 2, 3, 4, 6, 8 stores). Warps start
`warp_stagger` cycles apart and share a port that takes one warp-store every `port_cycles`. Behind it, a short buffer of `buffer_stores`
warp-stores empties at `buffer_rate`: what comes on top waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Port:
    """Costs of the issue port, in cycles of the SM clock.

    Parameters
    ----------
    entry : float
        First clock read to first store.
    store_cycles : float
        One warp's own interval between stores.
    exits : tuple of 4 float
        Last store to the closing clock read when the number of stores is 0, 1, 2 or 3 modulo 4.
    port_cycles : float
        The port's interval between warp-stores of different warps.
    warp_stagger : float
        Delay of each warp's start after the one before it.
    buffer_stores, buffer_cycles : float
        Depth of the buffer behind the port in warp-stores, and the cycles in which one leaves it.
    empty_cycles, empty_per_warp : float
        Cost of an empty burst: two clock reads, and what each further warp adds.
    """

    entry: float = 60.0
    store_cycles: float = 20.0
    exits: tuple[float, float, float, float] = (24.0, 32.0, 56.0, 46.0)
    port_cycles: float = 5.27
    warp_stagger: float = 7.6
    buffer_stores: float = 10.8
    buffer_cycles: float = 15.63
    empty_cycles: float = 21.0
    empty_per_warp: float = 0.7


_BLOCKS = 64  # stores stepped through before the curve is continued by its last slope; it is periodic in four long before that


def issue_times(port: Port, warps: int, stores: int) -> NDArray[np.float64]:
    """Step over the store index and return when each warp-store passes the port.

    Parameters
    ----------
    warps, stores : int
        Warps of the SM, stores of each warp; `stores` at least 1.

    Returns
    -------
    ndarray of float, shape (warps, stores)
        Cycles after the burst's start. Within one store index the warps take turns in order, so the port serves the index-th
        stores one after the other: t_w = max(ready_w, t_{w-1} + port_cycles), a running maximum.
    """
    turn = np.arange(warps) * port.port_cycles
    ready = port.entry + np.arange(warps) * port.warp_stagger
    times = np.empty((warps, stores))
    free = 0.0  # when the port is next free
    for i in range(stores):
        t = np.maximum.accumulate(np.maximum(ready, free) - turn) + turn
        behind = port.entry + (np.arange(warps) + i * warps - port.buffer_stores) * port.buffer_cycles
        times[:, i] = np.maximum(t, behind)
        free = t[-1] + port.port_cycles
        ready = t + port.store_cycles
    return times


def issue_cycles(port: Port, warps: int, stores: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the free issue time T0 of bursts: first warp's start to last warp's closing clock read.

    Parameters
    ----------
    warps : int
    stores : ndarray of int
        Stores of each warp; 0 is an empty burst.

    Returns
    -------
    ndarray of float, the shape of `stores`
    """
    most = int(min(stores.max(initial=0), 4 * _BLOCKS + 8))
    empty = port.empty_cycles + (warps - 1) * port.empty_per_warp
    curve = np.full(most + 1, empty)
    if most:
        times = issue_times(port, warps, most)
        index = np.arange(1, most + 1)
        unblocked = np.array(port.exits)[index % 4]
        behind = port.entry + (index * warps - 1 - port.buffer_stores) * port.buffer_cycles
        # A store that had to wait for the buffer hides the slow exit: the closing read follows it directly.
        last = times[-1]
        curve[1:] = np.where(last > behind, last + unblocked, np.maximum(last + port.exits[0], _free(port, warps, index)))
    inside = np.minimum(stores, most - (most - stores) % 4 if most >= 8 else most)
    extra = stores - inside
    slope = (curve[most] - curve[most - 4]) / 4 if most >= 8 else 0.0
    return np.asarray(curve[inside] + extra * slope)


def _free(port: Port, warps: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    own = port.entry + (warps - 1) * port.warp_stagger + (index - 1) * port.store_cycles
    return np.asarray(own + np.array(port.exits)[index % 4])
