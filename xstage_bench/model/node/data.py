"""Sample rows as targets of a fit or a judgement: one number per schedule, burst and process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.schedule.bursts import Schedule

if TYPE_CHECKING:
    import pandas as pd

#: Of one SM alone, for T0 and the gaps only: nothing about the link is in them.
ALONE_PROBES = ("issue",)
ISSUE_PROBES = (*ALONE_PROBES, "flavour_issue")
CALIBRATION_PROBES = ("isolated", "periodic", "timed", "flavours", "flavour_trains", *ISSUE_PROBES)
#: Random schedules that no parameter is fitted to: how far predictions of such are off.
IRREGULAR_PROBE = "irregular"
COLUMNS = ("issue_mean_cycles", "issue_max_cycles", "start_mean_ns", "sm_clock_mhz")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSchedules:
    """Schedules and what they cost. Arrays have one entry per burst, schedule after schedule, as in `NodePrediction`.

    Parameters
    ----------
    keys : tuple of str
    schedules : tuple of Schedule
    probes : tuple of str
    first : ndarray of int, shape (schedules + 1,)
    issue_cycles, issue_max_cycles, start_ns : ndarray
        Medians over all valid executions; NaN where there is none.
    by_process : ndarray, shape (processes, bursts)
        Median issue time within each process, NaN where a process has none.
    sm_clock_mhz : float
    """

    keys: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    probes: tuple[str, ...]
    first: IntArray
    issue_cycles: FloatArray
    issue_max_cycles: FloatArray
    start_ns: FloatArray
    by_process: FloatArray
    sm_clock_mhz: float

    @property
    def owner(self) -> IntArray:
        """Index of the schedule of each burst."""
        return np.repeat(np.arange(len(self.schedules)), np.diff(self.first))

    @property
    def burst(self) -> IntArray:
        """Index of each burst in its schedule."""
        return np.arange(self.first[-1]) - self.first[self.owner]

    @property
    def isolated(self) -> BoolArray:
        """Which schedules are isolated, shape (schedules,)."""
        return np.array([s.start == "isolated" for s in self.schedules], dtype=bool)

    @property
    def total_ns(self) -> FloatArray:
        """Time line of each schedule, as `NodePrediction.total_ns`."""
        issue = self.issue_cycles * 1e3 / self.sm_clock_mhz
        last = self.first[1:] - 1
        return np.where(self.isolated, np.add.reduceat(issue, self.first[:-1]), self.start_ns[last] + issue[last])

    def take(self, chosen: Sequence[int] | IntArray) -> MeasuredSchedules:
        """Return these schedules only."""
        index = np.asarray(chosen, dtype=np.int64)
        bursts = np.concatenate([np.arange(self.first[i], self.first[i + 1]) for i in index]) if index.size else np.zeros(0, dtype=np.int64)
        return replace(
            self,
            keys=tuple(self.keys[i] for i in index),
            schedules=tuple(self.schedules[i] for i in index),
            probes=tuple(self.probes[i] for i in index),
            first=np.concatenate([[0], np.cumsum(np.diff(self.first)[index])]).astype(np.int64),
            issue_cycles=self.issue_cycles[bursts],
            issue_max_cycles=self.issue_max_cycles[bursts],
            start_ns=self.start_ns[bursts],
            by_process=self.by_process[:, bursts],
        )


def measured(
    samples: pd.DataFrame,
    source: int,
    destination: int,
    probes: Sequence[str] | None,
    flavour: str = "st.v4",
    layout: str = "contiguous",
) -> MeasuredSchedules:
    """Reduce the valid rows of one pair to medians.

    Parameters
    ----------
    samples : DataFrame
        As in docs/files.md.
    source, destination : int
    probes : sequence of str or None
        Only these; None is all.
    flavour, layout : str
    """
    from xstage_bench.record.reader import schedules_of

    rows = samples[(samples["source"] == source) & (samples["destination"] == destination) & (samples["flavour"] == flavour)]
    rows = rows[(rows["kind"] == "measure") & (rows["status"] == "ok") & (rows["layout"] == layout)]
    if probes is not None:
        rows = rows[rows["probe"].isin(list(probes))]
    found = schedules_of(rows) if len(rows) else {}
    keys = tuple(found)
    schedules = tuple(found.values())
    first = np.concatenate([[0], np.cumsum([len(s.bursts) for s in schedules])]).astype(np.int64)
    place = {key: int(i) for key, i in zip(keys, first[:-1], strict=True)}
    slot = rows["schedule"].map(place).to_numpy(dtype=np.int64) + rows["burst"].to_numpy(dtype=np.int64)
    once = rows.drop_duplicates("schedule", keep="last")
    probe_of = dict(zip(once["schedule"], once["probe"], strict=True))
    values = {name: _medians(rows[name].to_numpy(dtype=np.float64), slot, int(first[-1])) for name in COLUMNS}
    process = rows["process"].to_numpy(dtype=np.int64)
    issue = rows["issue_mean_cycles"].to_numpy(dtype=np.float64)
    each = [_medians(issue[process == p], slot[process == p], int(first[-1])) for p in np.unique(process)]
    clock = values["sm_clock_mhz"]
    return MeasuredSchedules(
        keys=keys,
        schedules=schedules,
        probes=tuple(str(probe_of[k]) for k in keys),
        first=first,
        issue_cycles=values["issue_mean_cycles"],
        issue_max_cycles=values["issue_max_cycles"],
        start_ns=values["start_mean_ns"],
        by_process=np.array(each).reshape(len(each), int(first[-1])),
        sm_clock_mhz=float(np.nanmedian(clock)) if clock.size else float("nan"),
    )


def _medians(values: FloatArray, slot: IntArray, count: int) -> FloatArray:
    """Median of the finite values of each slot, NaN where there are none."""
    keep = np.isfinite(values)
    order = np.lexsort((values[keep], slot[keep]))
    ranked, where = values[keep][order], slot[keep][order]
    number = np.bincount(where, minlength=count)
    begin = np.cumsum(number) - number
    out = np.full(count, np.nan)
    some = number > 0
    low, high = begin[some] + (number[some] - 1) // 2, begin[some] + number[some] // 2
    out[some] = (ranked[low] + ranked[high]) / 2
    return out
