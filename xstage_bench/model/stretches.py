"""Stretches of a run in which something disturbed it: found by all schedules together, because a median of each does not see a minority.

Executions stand in random order, so a disturbance of every fifth stretch reaches every schedule, and by chance the majority of the
repetitions of some. One stretch holds many schedules; held against its own median each, they say together that it was disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.cells import ISOLATED

if TYPE_CHECKING:
    import pandas as pd

#: Executions of one stretch, and the isolated bursts that it needs to be judged.
LENGTH, _LEAST = 64, 8
#: A stretch is bad when its bursts lie this many times as far from their medians as those of the usual stretch, and at least this far.
_TIMES, _APART = 4.0, 0.01
#: Three quarters of its bursts lie nearer: half of them may be free and see nothing.
_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class BadStretches:
    """What was found.

    Parameters
    ----------
    rows : ndarray of bool
        Which rows lie in a bad stretch.
    bad, judged : int
        Stretches.
    apart : float
        How far bursts of bad stretches lie from their medians, relative, in the median of these stretches.
    first : str
        Where the first one is.
    """

    rows: np.ndarray
    bad: int = 0
    judged: int = 0
    apart: float = 0.0
    first: str = ""

    def sentence(self) -> str:
        """Say what was found, with how much and where."""
        where = f"first {self.first}" if self.bad > 1 else self.first
        return f"{self.bad} of {self.judged} stretches of {LENGTH} executions were disturbed by {100 * self.apart:.1f} % ({where})"


def bad_stretches(rows: pd.DataFrame) -> BadStretches:
    """Find the disturbed stretches of valid rows of a run; none where the order of execution is not known."""
    nothing = BadStretches(np.zeros(len(rows), dtype=bool))
    if "order" not in rows or not len(rows):
        return nothing
    where = [rows["source"], rows["destination"], rows["process"], rows["order"] // LENGTH]
    chosen = (rows["probe"].isin(ISOLATED) & (rows["start"] == "isolated") & (rows["burst"] == 0) & (rows["bytes"] > 0)).to_numpy()
    some = rows[chosen]
    # Processes have spreads of their own, which belong into the interval; within one a stretch must not differ.
    usual = some.groupby(["source", "destination", "process", "schedule"], observed=True)["issue_mean_cycles"].transform("median")
    apart = (some["issue_mean_cycles"] / usual - 1).abs()
    by_stretch = apart.groupby([w[chosen] for w in where], observed=True)
    far = by_stretch.quantile(_SHARE)[by_stretch.size() >= _LEAST]
    if len(far) < 2:
        return nothing
    bad = far[far > max(_TIMES * float(far.median()), _APART)]
    if bad.empty:
        return nothing
    source, destination, process, stretch = bad.index[0]
    first = f"pair {source}>{destination}, process {process}, from execution {stretch * LENGTH}"
    inside = np.asarray(rows.set_index(where).index.isin(bad.index))
    return BadStretches(inside, len(bad), len(far), float(bad.median()), first)
