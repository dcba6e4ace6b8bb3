"""When a schedule has been measured often enough: its issue time is known as well as was asked, or it has had its share of repetitions.

A *cell* is one schedule of one probe. Its number in a repetition is the mean issue time over bursts and producers; another is the mean of
the slowest producers, from which R is fitted. Both must be sure. What differs between fresh processes is no repetition's fault and no
repetition cures it, so only the spread within processes counts here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.model.estimate import t_quantile
from xstage_bench.schedule.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

#: Repetitions of every cell in every process, however alike. Of two alone t is 12.7, so they must be very much alike.
FLOOR = 2
#: Repetitions at most, over those of a run without the rule, unless ``--repetitions`` says how many.
CEILING = 2
LEVEL = 0.95
_NUMBERS = ("issue_mean_cycles", "issue_max_cycles")


@dataclass(slots=True)
class _Cell:
    """Executions asked for, and both numbers of those that count, by process."""

    asked: Counter[int] = field(default_factory=Counter)
    by_process: dict[int, list[tuple[float, float]]] = field(default_factory=dict)


@dataclass(slots=True)
class Certainty:
    """How sure each cell of one pair is, while it is measured.

    Parameters
    ----------
    target : float
        Relative half width of the 95 % interval of a cell's mean over repetitions, of all processes together.
    processes : int
    """

    target: float
    processes: int
    _cells: dict[tuple[str, str], _Cell] = field(default_factory=dict)

    def take(self, cell: tuple[str, str], process: int, trace: Trace) -> None:
        """Count one execution; what is marked (throttled, say) is counted as asked for, and says nothing of the number."""
        issue = trace.summary()
        mean, slowest = (float(np.mean(issue[name])) for name in _NUMBERS)
        self._count(cell, process, trace.status, mean, slowest)

    def recall(self, samples: pd.DataFrame) -> None:
        """Count what an interrupted run has of this pair: its sample rows."""
        rows = samples[samples["kind"] == "measure"]
        by = rows.groupby(["probe", "schedule", "process", "repetition", "status"], observed=True, sort=False)[[*_NUMBERS]].mean()
        for (probe, key, process, _, status), mean, slowest in by.itertuples():
            self._count((str(probe), str(key)), int(process), str(status), mean, slowest)

    def _count(self, cell: tuple[str, str], process: int, status: str, mean: float, slowest: float) -> None:
        known = self._cells.setdefault(cell, _Cell())
        known.asked[process] += 1
        if status == "ok" and np.isfinite(mean + slowest):
            known.by_process.setdefault(process, []).append((mean, slowest))

    def half_width(self, cell: tuple[str, str], process: int) -> float | None:
        """Return the relative half width that this cell will have when every process is measured as often as `process` was so far.

        Spreads are pooled over the processes so far, and the t quantile is that of their number. None where nothing was repeated.
        """
        found = self._cells.get(cell, _Cell()).by_process
        mine = len(found.get(process, ()))
        groups = [np.array(values) for values in found.values()]
        free = sum(len(g) - 1 for g in groups)
        if free < 1:
            return None
        squares = sum(((g - g.mean(axis=0)) ** 2).sum(axis=0) for g in groups)
        total = sum(len(g) for g in groups) + mine * (self.processes - 1 - max(found))
        middle = np.concatenate(groups).mean(axis=0)
        if not (middle > 0).all():
            return 0.0  # nothing was stored: the timer's bursts
        return float((t_quantile(free, LEVEL) * np.sqrt(squares / free / total) / middle).max())

    def is_open(self, cell: tuple[str, str], process: int) -> bool:
        """Whether another repetition is wanted."""
        width = self.half_width(cell, process)
        few = len(self._cells.get(cell, _Cell()).by_process.get(process, ())) < FLOOR
        return few or width is None or width > self.target

    def facts(self, cells: Iterable[tuple[tuple[str, str], int]]) -> dict[str, Any]:
        """Say which rule ended each cell, for the manifest.

        Parameters
        ----------
        cells : iterable of (cell, ceiling)
            Everything planned, and its repetitions at most, in each process.

        Returns
        -------
        dict
            `sure` counts the cells that reached the target. The others are listed by probe and schedule with their half width, null where
            it is not known: `ceiling` had all their repetitions, `budget` were ended by the budget or by a failure of the pair.
        """
        out: dict[str, Any] = {"sure": 0, "ceiling": {}, "budget": {}}
        for cell, ceiling in cells:
            known = self._cells.get(cell, _Cell())
            width = self.half_width(cell, max(known.by_process, default=0))
            if width is not None and width <= self.target and len(known.by_process) == self.processes:
                out["sure"] += 1
            else:
                rule = "ceiling" if known.asked[self.processes - 1] >= ceiling else "budget"
                out[rule].setdefault(cell[0], {})[cell[1]] = None if width is None else round(width, 4)
        return out
