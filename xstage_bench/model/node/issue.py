"""What a burst costs when nothing behind the SM ever fills: the instrument's loop, and warps that share an SM's issue port.

The loop is unrolled by four with a tail of single stores (docs/method.md), so a size that is no multiple of four costs more. The stores
of several warps leave the SM one every `port_cycles`. An SM has four sub-partitions: a warp count that does not fill them evenly leaves
one to finish alone. All of it is the instrument's, the SM's and the compiler's, so each run measures it (`issue_fit`), and T0 is a table.
The formula below with its constants is what documents say that were written before; it stands in where a run has measured no SM alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.node.issue_table import IssueTable, table_cycles

#: Sub-partitions of an SM.
SUB_PARTITIONS = 4
#: Said of predictions whose issue costs no run has measured.
BORROWED = "issue costs are constants of 2 x NVIDIA H200 and one compiler (2026-11-29): measure the probe 'issue'"
#: Warp counts that `IssueLaw.queue_operations` is given for; between them it is interpolated in the logarithm.
QUEUE_WARPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class IssueLaw:
    """Constants of the instrument and of the SM's port, in SM cycles; read off bursts that nothing held back (two H200 nodes, 2026-11-29).

    Parameters
    ----------
    base : float
        Both clock reads and the entry of the loop.
    port_base : float
        Of bursts that the port bounds: negative, because the queue behind it takes the first stores at once.
    port_cycles : float
        One warp-store of several warps (32 B per cycle).
    round_base, round_cycles : float
        Few stores of 2 to 4 warps: entry and cost per warp-store.
    tail_base, tail_cycles : float
        A burst shorter than one turn of the loop: entry, and each store of the tail.
    tail_after_loop : float
        What the first store of a tail after the loop is cheaper by.
    partition_base, partition_tail, partition_saving : float
        Each further warp on the busiest sub-partition, in bursts without a full turn: per warp, per store, and less per pair of warps.
    uneven_cycles : float
        Times the squared number of sub-partitions that are one warp short: the others end earlier.
    cold_tail, cold_stagger : float
        First burst after an aligned start: the tail is not in the instruction cache; warps leave the deadline's loop one by one.
    empty, empty_per_warp : float
        A burst without stores.
    turnaround, gap_overhead, stall_turnaround : float
        The least gap between two bursts, what an asked gap is longer by, and by how much of a stalled store's interval a stall prolongs it
        (the stamp queues behind the stores).
    start_lag_ns : float
        Mean start of the producers after the deadline.
    store_bytes : float
        Of one operation.
    unroll : float
        Operations per turn of the instrument's loop.
    several_cycles : float
        What more than one warp costs at the entry of the loop.
    tail_unheld : float
        Stores of each warp that a burst with a tail does not wait for: the stamp overtakes them, by how the compiler made that loop.
    queue_operations : tuple of float
        How many operations may wait for an SM's engine of bulk copies, beside the bytes that are under way, when `QUEUE_WARPS` warps issue.
        Empty: there is no such queue.
    engine_operations : tuple of float
        How many the engine takes before it holds up an SM whose bytes leave at once; each further one costs `engine_cycles`.
    engine_cycles : float
    table : IssueTable, optional
        T0 as this run measured it, in place of the formula. Without it the constants are those of two H200 and one compiler (`BORROWED`).
    """

    base: float = 42.0
    port_base: float = -130.0
    port_cycles: float = 16.0
    round_base: float = 81.0
    round_cycles: float = 5.0
    tail_base: float = 36.0
    tail_cycles: float = 45.0
    tail_after_loop: float = 3.0
    partition_base: float = 39.0
    partition_tail: float = 6.0
    partition_saving: float = 4.0
    uneven_cycles: float = 5.0
    cold_tail: float = 11.0
    cold_stagger: float = 4.0
    empty: float = 22.0
    empty_per_warp: float = 0.7
    turnaround: float = 540.0
    gap_overhead: float = 200.0
    stall_turnaround: float = 0.8
    start_lag_ns: float = 160.0
    store_bytes: float = 512.0
    unroll: float = 4.0
    several_cycles: float = 1.0
    tail_unheld: float = 0.0
    queue_operations: tuple[float, ...] = ()
    engine_operations: tuple[float, ...] = ()
    engine_cycles: float = 0.0
    table: IssueTable | None = None

    def unheld_bytes(self, warps: ArrayLike, stores: ArrayLike) -> FloatArray:
        """Last bytes of a producer's burst whose room it does not wait for; `stores` counts those of each warp."""
        with_tail = np.mod(stores, self.unroll) > 0
        return np.asarray(np.where(with_tail, self.tail_unheld * np.asarray(warps) * self.store_bytes, 0.0))

    def queue_bytes(self, warps: ArrayLike) -> FloatArray:
        """Bytes that may wait in an SM's queue of bulk copies when so many of its warps issue."""
        return self.store_bytes * by_warps(self.queue_operations, warps)


def by_warps(values: tuple[float, ...], warps: ArrayLike) -> FloatArray:
    """Return values that are known for `QUEUE_WARPS` at other warp counts; zero when there are none."""
    count = np.log2(np.asarray(warps, dtype=np.float64))
    return np.asarray(np.interp(count, np.log2(QUEUE_WARPS), values)) if values else np.zeros(count.shape)


def free_cycles(law: IssueLaw, store_cycles: float, warps: ArrayLike, stores: ArrayLike, fresh: ArrayLike) -> FloatArray:
    """T0 of bursts: first warp's start to last warp's end, SM cycles.

    Parameters
    ----------
    law : IssueLaw
    store_cycles : float
        One warp's interval between its own stores.
    warps, stores : array_like of int
        Warps per producer, and warp-stores of each warp; broadcast.
    fresh : array_like of bool
        First burst after an aligned start.

    Returns
    -------
    ndarray, broadcast shape

    Notes
    -----
    T0 = max(own, port): `own` is the pace of one warp's loop, `port` that of all warps through the SM's port.
    """
    w, n, first = np.broadcast_arrays(
        np.asarray(warps, dtype=np.float64), np.asarray(stores, dtype=np.float64), np.asarray(fresh, dtype=bool)
    )
    if law.table is not None:
        measured = table_cycles(law.table, w, n, first)
        nothing = measured if 0 in law.table.stores else law.empty + law.empty_per_warp * (w - 1)
        return np.asarray(np.where(n > 0, np.maximum(measured, _engine(law, w, n)), nothing))
    turns, tail = np.divmod(n, law.unroll)
    several = w > 1
    deepest = np.ceil(w / SUB_PARTITIONS)
    place = np.mod(w - 1, SUB_PARTITIONS)
    short = np.where(w > SUB_PARTITIONS, SUB_PARTITIONS * deepest - w, 0.0)
    one_each = deepest == 1
    brief = law.tail_base + law.tail_cycles * tail + place * (2.0 * tail + 2.0 * one_each)
    more = deepest - 1
    brief = brief + (law.partition_base + law.partition_tail * tail) * more - law.partition_saving * more * (more - 1)
    brief = brief + first * (law.cold_tail + law.cold_stagger * several)
    loop = law.base + store_cycles * law.unroll * turns + law.several_cycles * several
    loop = np.where(several, np.maximum(loop, law.round_base + law.round_cycles * law.unroll * turns * w), loop)
    loop = loop + np.where(tail > 0, law.tail_cycles * tail - law.tail_after_loop, 0.0)
    loop = loop + first * law.cold_stagger * np.where(w == 2, 2.0, several)
    own = np.where(turns == 0, brief, loop)
    held = (n - law.tail_unheld * (tail > 0)) * w
    port = law.port_base + law.port_cycles * held + law.uneven_cycles * short**2 + first * 0.3 * law.cold_stagger * w * (w > 2)
    cost = np.where(several, np.maximum(own, port), own)
    cost = np.maximum(cost, _engine(law, w, n))
    return np.asarray(np.where(n > 0, cost, law.empty + law.empty_per_warp * (w - 1)))


def _engine(law: IssueLaw, w: FloatArray, n: FloatArray) -> FloatArray:
    """Return what bulk copies wait for their engine; the first operation of each warp has a place of its own, for as many as there are."""
    if not law.engine_operations:
        return np.zeros(w.shape)
    return np.asarray(np.where(n > 1, (n * w - by_warps(law.engine_operations, w)) * law.engine_cycles, 0.0))
