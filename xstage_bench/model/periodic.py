"""Periodic bursts in their steady state: what the periodic law is about, for the fit and for its check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_EXECUTION = ["schedule", "source", "destination", "process", "repetition"]
_REDUCED = ["asked_gap_cycles", "issue_cycles", "gap_cycles", "period_ns"]
_SAME = ["flavour", "layout", "producers", "warps", "bytes"]


def steady(rows: pd.DataFrame) -> pd.DataFrame:
    """Reduce each execution of a periodic schedule to its steady state: the middle half of the bursts, never burst 0.

    The first bursts fill the stage, and burst 0 is the first after idle; in the last ones some producers have already finished,
    which leaves the others a larger share.

    Parameters
    ----------
    rows : DataFrame
        Valid rows of the probe ``periodic``; start rule ``free``, equal bursts and gaps.

    Returns
    -------
    DataFrame
        One row per execution: what identifies it, `asked_gap_cycles`, and the means over the steady bursts `issue_cycles`,
        `gap_cycles` (measured) and `period_ns`.
    """
    rows = rows[(rows["probe"] == "periodic") & (rows["start"] == "free") & (rows["bursts"] >= 2) & (rows["bytes"] > 0)]
    if not len(rows):
        return rows.reindex(columns=[*_EXECUTION, *_SAME, *_REDUCED])
    bursts = rows["bursts"].to_numpy(dtype=np.int64)
    first = np.maximum(1, bursts // 4)
    last = np.maximum(first, 3 * bursts // 4)
    index = rows["burst"].to_numpy(dtype=np.int64)
    middle = rows[(index >= first) & (index <= last)]
    by = middle.groupby(_EXECUTION, sort=True)
    out = by[_SAME].first()
    out["asked_gap_cycles"] = by["gap_cycles"].first().astype(np.float64).fillna(0).astype(np.int64)
    out["issue_cycles"] = by["issue_mean_cycles"].mean()
    out["gap_cycles"] = by["gap_mean_cycles"].mean().astype(np.float64).fillna(out["asked_gap_cycles"])
    span = by["start_mean_ns"].last() - by["start_mean_ns"].first()
    out["period_ns"] = span / (by["burst"].last() - by["burst"].first()).replace(0, np.nan)
    flat: pd.DataFrame = out.reset_index()
    return flat
