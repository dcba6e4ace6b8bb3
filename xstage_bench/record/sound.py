"""Which rows of a run cannot be what a device measured: no instrument gives them, whatever the node. They stay in the files; no number is
made of them.

Only what cannot be is found here. What is merely unlikely (a rate above the line rate, a drift) is for ``xstage check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.record.columns import MEASURED
from xstage_bench.schedule.bursts import HOST
from xstage_bench.schedule.device import Node

#: The status that a row of status ``ok`` is read with when it cannot be; its detail says why.
IMPOSSIBLE = "impossible"
Bad = NDArray[np.bool_]
#: Clock of a sample over that of its GPU. Recordings have 0.97 to 1.17: a short burst is timed with a tick of 32 ns.
_CLOCK_RANGE = (0.02, 1.5)
#: Both ends of an interval are read off a clock with a tick, and are kept rounded.
_TICKS, _SHARE, _ROUNDED_CYCLES = 2.0, 0.02, 0.01
_POSITIVE = ("issue_mean_cycles", "issue_min_cycles", "issue_max_cycles", "sm_clock_mhz")
_MAY_BE_NEGATIVE = ("gap_mean_cycles", "start_mean_ns")  # warps that do not meet; a start before the deadline
_AT_LEAST_ONE = ("producers", "warps", "bursts")
_AT_LEAST_ZERO = ("bytes", "burst", "gap_cycles", "start_ns")
_ORDERED = (
    ("issue_min_cycles", "issue_mean_cycles"),
    ("issue_mean_cycles", "issue_max_cycles"),
    ("issued_mean_cycles", "issue_mean_cycles"),
    ("drain_mean_cycles", "drain_max_cycles"),
)


def impossible_samples(columns: Mapping[str, NDArray[Any]], node: Node) -> NDArray[np.object_]:
    """Say of each sample why it cannot be; empty where it can.

    Parameters
    ----------
    columns : mapping of str to ndarray
        Columns of the samples table, NaN where null; a rule whose columns are not there is not applied.
    node : Node
        Where they were measured.
    """
    reasons = np.full(len(columns["issue_mean_cycles"]), "", dtype=object)
    with np.errstate(invalid="ignore", over="ignore"):
        for why, bad in _sample_rules(columns, node):
            if bad.any():
                reasons[bad & (reasons == "")] = why
    return reasons


def impossible_producers(columns: Mapping[str, NDArray[Any]]) -> Bad:
    """Say of each row of the producers table whether it cannot be: not a number, negative, or ended before it started."""
    issue, start, end = (columns[name] for name in ("issue_cycles", "start_ns", "end_ns"))
    infinite = np.isinf(issue) | np.isinf(start) | np.isinf(end) | np.isinf(columns["drain_cycles"])
    bad: Bad = infinite | (issue < 0) | (end < start) | (columns["drain_cycles"] < 0)
    return bad


def impossible_stores(columns: Mapping[str, NDArray[Any]]) -> Bad:
    """Say of each row of the traces table whether it cannot be: infinite, or before its producer began."""
    bad: Bad = np.isinf(columns["cycles"])
    for column in columns.values():
        bad = bad | (column < 0)
    return bad


def _sample_rules(columns: Mapping[str, NDArray[Any]], node: Node) -> Iterator[tuple[str, Bad]]:
    yield "issue_mean_cycles is missing", np.isnan(columns["issue_mean_cycles"])
    for name in (*MEASURED, "sm_clock_mhz"):
        if name in columns:
            yield f"{name} is infinite", np.isinf(columns[name])
            if name in _POSITIVE:
                yield f"{name} is not positive", columns[name] <= 0
            elif name not in _MAY_BE_NEGATIVE:
                yield f"{name} is negative", columns[name] < 0
    for least, names in ((1, _AT_LEAST_ONE), (0, _AT_LEAST_ZERO)):
        for name in names:
            if name in columns:
                yield f"{name} is below {least}", columns[name] < least
    for small, large in _ORDERED:
        if small in columns and large in columns:
            yield f"{small} is above {large}", columns[small] > columns[large] + _ROUNDED_CYCLES
    if "makespan_ns" in columns and "issue_max_cycles" in columns:
        # From the first start to the last end is no shorter than what the slowest producer takes.
        longest = columns["issue_max_cycles"] * 1e3 / np.where(columns["sm_clock_mhz"] > 0, columns["sm_clock_mhz"], np.nan)
        yield "makespan_ns is below issue_max_cycles", longest > columns["makespan_ns"] * (1 + _SHARE) + _TICKS * node.timer_tick_ns
    rated = np.full(len(columns["source"]), np.nan)
    for gpu in node.gpus:
        rated[columns["source"] == gpu.index] = gpu.sm_clock_mhz
    yield "its GPU is not in the manifest", np.isnan(rated)
    clock = columns["sm_clock_mhz"] / rated
    yield "sm_clock_mhz is not in the range of its GPU", (clock < _CLOCK_RANGE[0]) | (clock > _CLOCK_RANGE[1])
    known = [*(gpu.index for gpu in node.gpus), HOST]
    yield "its destination is not in the manifest", ~np.isin(columns["destination"], known)
