"""A Trace says what one execution of a Schedule cost. It is the one output of every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.io.short_repr import short_repr
from xstage_bench.schedule.bursts import Schedule

#: ``ok`` enters fits. ``warmup``: the first executions after idle, kept and marked. ``throttled``: the SM clock fell below
#: the run's own level. ``timeout``: a device-side wait ended by its time-out. ``corrupt``: the destination did not hold what was stored.
Status = Literal["ok", "warmup", "throttled", "timeout", "corrupt"]
STATUSES: tuple[str, ...] = get_args(Status)


#: Stamps that not every device and flavour has.
OPTIONAL: tuple[str, ...] = ("issued_cycles", "reusable_cycles", "completed_cycles")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What one execution of a schedule cost, per burst and producer.

    Parameters
    ----------
    schedule : Schedule
    smids : ndarray of int, shape (K,)
        The producers, in the order of the last axis of all arrays below.
    issue_cycles : ndarray of float, shape (N, K)
        From the producer's first warp's start until the SM has *taken* the last store of its last warp: its registers are free, and what
        the warp does next can go on. By the SM's own clock64.
    gap_cycles : ndarray of float, shape (N, K)
        Measured from the end of the producer's previous burst to the start of this one; NaN for the first burst and for isolated bursts.
    start_ns, end_ns : ndarray of float, shape (N, K)
        First warp's start and last warp's end on the common %globaltimer (its tick is in the node's facts), after the schedule's
        time zero: the alignment deadline (of each burst, when isolated).
    drain_cycles : ndarray of float, shape (N, K)
        From the end of issue to the end of the schedule's completion, by default a system-scope fence by the storing warps; NaN where none
        was executed (free and timed schedules complete after their last burst only). For a completion ``@sm`` its cost alone, on that SM.
    sm_clock_mhz : float
        Measured around the execution: clock64 cycles over %globaltimer time.
    status : Status
    detail : str
        The reason when status is not ``ok``.
    timeline_cycles : ndarray of float, shape (K, W, stores), optional
        Only for exemplars: the SM clock at each warp-store of the first burst, after the producer's start. Stamping each
        store raises its cost (docs/method.md), so values come from executions without it.
    recorded : dict of str to ndarray of shape (N,), optional
        Only of a replayed run: the summary as it was recorded, which `summary` then returns. The arrays above hold what the
        run kept per producer, and NaN where it kept nothing.
    issued_cycles : ndarray of float, shape (N, K), optional
        As `issue_cycles`, but until the last store instruction has left its warp; the SM may not have taken it yet. At most `issue_cycles`.
        None where only one of the two was stamped.
    reusable_cycles, completed_cycles : ndarray of float, shape (N, K), optional
        Bulk copies only: from the end of issue until their source may be written again (wait_group.read), and until the issuing
        thread knows them done (wait_group). An ordinary store's source is a register, free when issue ends.
    """

    __repr__ = short_repr

    schedule: Schedule
    smids: NDArray[np.int64]
    issue_cycles: NDArray[np.float64]
    gap_cycles: NDArray[np.float64]
    start_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    drain_cycles: NDArray[np.float64]
    sm_clock_mhz: float
    status: Status = "ok"
    detail: str = ""
    timeline_cycles: NDArray[np.float64] | None = None
    recorded: dict[str, NDArray[Any]] | None = None
    issued_cycles: NDArray[np.float64] | None = None
    reusable_cycles: NDArray[np.float64] | None = None
    completed_cycles: NDArray[np.float64] | None = None

    def summary(self) -> dict[str, NDArray[Any]]:
        """Reduce over producers: the measured columns of a sample row (docs/files.md).

        Returns
        -------
        dict of str to ndarray, each of shape (N,)
            NaN where a quantity was not measured; the record writes it as null.
        """
        if self.recorded is not None:
            return self.recorded
        start = self.start_ns
        first = start.min(axis=1)
        return {
            "issue_mean_cycles": self.issue_cycles.mean(axis=1),
            "issue_min_cycles": self.issue_cycles.min(axis=1),
            "issue_max_cycles": self.issue_cycles.max(axis=1),
            "gap_mean_cycles": self.gap_cycles.mean(axis=1),
            "start_mean_ns": start.mean(axis=1),
            "start_skew_ns": start.max(axis=1) - first,
            "makespan_ns": self.end_ns.max(axis=1) - first,
            "drain_mean_cycles": self.drain_cycles.mean(axis=1),
            "drain_max_cycles": self.drain_cycles.max(axis=1),
            "issued_mean_cycles": self._mean(self.issued_cycles),
            "reusable_mean_cycles": self._mean(self.reusable_cycles),
            "completed_mean_cycles": self._mean(self.completed_cycles),
        }

    def _mean(self, cycles: NDArray[np.float64] | None) -> NDArray[np.float64]:
        return np.full(len(self.issue_cycles), np.nan) if cycles is None else cycles.mean(axis=1)
