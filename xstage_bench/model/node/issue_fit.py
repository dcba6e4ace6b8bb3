"""The issue law of a flavour: its constants fitted to bursts of one SM that nothing held back.

Those of st.v4 stand in `IssueLaw` as they were read off several nodes. Every other flavour leaves the same loop at another pace: its own
constants are fitted with a weak pull towards those, so that a constant which no burst shows keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.flavour import FLAVOURS
from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.issue import IssueLaw, free_cycles

FloatArray = NDArray[np.float64]
#: One SM has more than this outstanding before its own drain holds it back.
FREE_BYTES = 16384
#: Operations that wait for the engine of bulk copies (H200): of one warp, and of all warps of an SM.
QUEUE_PER_WARP, QUEUE_PER_SM = 4.0, 8.0
_PULL = 0.03  # weight of the pull towards the constants of st.v4, against log residuals
_ROBUST = 0.02
_MIN_POINTS = 6
_STORE = (
    "base",
    "port_base",
    "port_cycles",
    "round_base",
    "round_cycles",
    "tail_base",
    "tail_cycles",
    "tail_after_loop",
    "partition_base",
    "partition_tail",
    "uneven_cycles",
    "several_cycles",
)
_BULK = ("base", "several_cycles")


def start_law(flavour: str) -> tuple[IssueLaw, float]:
    """Return what a fit starts from: the law, and one warp's interval between its operations in cycles."""
    known = FLAVOURS[flavour]
    law = IssueLaw(store_bytes=float(known.warp_store_bytes), unroll=float(known.group))
    if known.bulk:
        law = replace(law, base=77.0, several_cycles=15.0, port_base=-1e6, port_cycles=0.0, round_base=0.0, round_cycles=0.0)
        return replace(law, queue_per_warp=QUEUE_PER_WARP, queue_per_sm=QUEUE_PER_SM), 99.0
    share = known.warp_store_bytes / 512
    return replace(law, port_cycles=max(4.0, 16 * share), round_cycles=max(3.0, 5 * share)), 19.0


def fit_issue(data: Measured, flavour: str) -> tuple[IssueLaw, float]:
    """Fit a flavour's issue law.

    Parameters
    ----------
    data : Measured
        Isolated bursts of one SM are used: of stores up to 16 KiB, of bulk copies as many as may be queued.
    flavour : str

    Returns
    -------
    law : IssueLaw
        That of st.v4 as it stands.
    store_cycles : float
        One warp's interval between its own operations.

    Raises
    ------
    DataError
        Too few bursts, or operations that wait for each other, so that no such law holds (a release before each store).
    """
    from scipy.optimize import least_squares

    law, pace = start_law(flavour)
    if flavour == "st.v4":
        return law, pace
    producers = np.array([s.producer_count for s in data.schedules])
    warps = np.array([s.warps for s in data.schedules], dtype=np.float64)
    size = np.array([s.bursts[0].bytes for s in data.schedules], dtype=np.float64)
    count = size / (warps * law.store_bytes)
    free = size <= (law.queue_bytes(warps) if FLAVOURS[flavour].bulk else FREE_BYTES)
    issue = data.issue_cycles[data.first[:-1]]
    use = data.isolated & (producers == 1) & free & (size > 0) & np.isfinite(issue) & (issue > 0)
    if use.sum() < _MIN_POINTS:
        raise DataError(f"{int(use.sum())} bursts of {flavour} by one SM alone", "measure the probe flavour_issue")
    names = _BULK if FLAVOURS[flavour].bulk else _STORE
    first = np.array([pace, *(getattr(law, n) for n in names)])
    scale = np.maximum(np.abs(first), 5.0)

    def law_at(x: FloatArray) -> tuple[IssueLaw, float]:
        values = first + x * scale
        changes: Mapping[str, float] = dict(zip(names, map(float, values[1:]), strict=True))
        return replace(law, **changes), float(values[0])

    def residual(x: FloatArray) -> FloatArray:
        found, cycles = law_at(x)
        predicted = free_cycles(found, cycles, warps[use], count[use], fresh=True)
        return np.concatenate([np.log(np.maximum(predicted, 1.0) / issue[use]), _PULL * x])

    solved = least_squares(residual, np.zeros(first.size), loss="soft_l1", f_scale=_ROBUST, diff_step=1e-3, x_scale=0.3)
    found, cycles = law_at(solved.x)
    off = np.abs(residual(solved.x)[: int(use.sum())])
    if float(np.median(off)) > 0.1 or cycles > 190:
        raise DataError(
            f"{flavour}: {cycles:.0f} cycles for each operation of one warp (median error {100 * float(np.median(off)):.0f} %)",
            "they wait for each other, so no issue law holds; use the Burst-Gap law",
        )
    return found, cycles
