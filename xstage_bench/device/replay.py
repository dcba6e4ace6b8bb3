"""The replay device serves a recorded run, so that everything after a measurement can be done again without its hardware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError, PairError, UsageError, XStageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.io.identity import Kernel
from xstage_bench.record.columns import MEASURED, PER_PRODUCER
from xstage_bench.record.reader import Run, load_run, schedules_of
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.device import Execution, Kind, Node
from xstage_bench.schedule.trace import Status, Trace

if TYPE_CHECKING:
    import pandas as pd


class RecordedExecution(NamedTuple):
    """One execution as the run recorded it: which probe asked for it, at which position of its pair."""

    probe: str
    order: int
    execution: Execution


def find_run(where: str) -> Run:
    """Find a recorded run.

    Parameters
    ----------
    where : str
        A path, else a name under ``results/``, else under ``results/reference/``.

    Raises
    ------
    UsageError
        Nothing of this name; the message lists what there is.
    DataError
        It is no sound run folder.
    """
    if where and Path(where).exists():
        return load_run(where)
    roots = _result_roots()
    for root in roots:
        if where and (root / where).is_dir():
            return load_run(root / where)
    raise UsageError(f"no recorded run '{where}'", _what_can_be_replayed())


def replayable() -> list[str]:
    """Return the names of the recorded runs that hold samples; a reference holds only what was derived from its."""
    return sorted({str(m.parent.relative_to(root)) for root in _result_roots()[:1] for m in root.rglob("samples")})


def _what_can_be_replayed() -> str:
    names = replayable()
    return f"give the path of a run folder{', or one of: ' + ', '.join(names) if names else ''}"


def _result_roots() -> list[Path]:
    try:
        results = asset_dir("results")
    except XStageError:
        return []
    return [results, results / "reference"]


class ReplayDevice:
    """Serves the rows of one recorded process; implements `Device`.

    A Trace's `summary` is bit for bit what was recorded. Its arrays hold the producers where the run kept them, else NaN: a
    number that was not recorded is not made up.

    Parameters
    ----------
    where : str
        As `find_run`.
    process : int
        Which of the recorded processes.

    Attributes
    ----------
    processes : int
        How many were recorded.

    Raises
    ------
    UsageError
        No such run, or no such process in it.
    """

    def __init__(self, where: str, process: int = 0) -> None:
        self._run = find_run(where)
        self._name = self._run.name if Path(where).exists() else where
        samples = self._run.samples()
        processes = sorted(samples["process"].unique().tolist())
        if not processes:
            raise UsageError(f"'{where}' holds no samples, so nothing can be replayed", _what_can_be_replayed())
        if process not in processes:
            raise UsageError(f"process {process} is not in the run '{self._name}'", f"it has processes {processes}")
        self._process = process
        self.processes = len(processes)
        self._samples = samples[samples["process"] == process].reset_index(drop=True)
        self._schedules = schedules_of(self._samples)
        self._measured = {name: self._samples[name].to_numpy(dtype=np.float64) for name in MEASURED}
        self._place = list(zip(self._samples["repetition"].tolist(), self._samples["order"].tolist(), strict=True))
        self._clock_mhz: list[float] = self._samples["sm_clock_mhz"].tolist()
        self._status: list[Any] = self._samples["status"].tolist()
        self._detail: list[Any] = self._samples["detail"].tolist()
        self._first_rows = np.flatnonzero(self._samples["burst"].to_numpy() == 0)
        self._index = self._by_execution()
        self._served: dict[tuple[str, str, int], int] = defaultdict(int)
        producers = self._run.producers()
        self._producers = _grouped(producers[producers["process"] == process], ["schedule", "repetition", "order"])
        timelines = self._run.traces()
        self._timelines = _grouped(timelines[timelines["process"] == process], ["schedule", "repetition"])

    @property
    def backend(self) -> str:
        """``replay:NAME``."""
        return f"replay:{self._name}"

    @property
    def simulated(self) -> bool:
        """True when the recorded run was simulated: its replay is too."""
        return self._run.manifest.simulated

    def kernels(self) -> list[Kernel]:
        """Return those that the recording was measured by."""
        return self._run.manifest.kernels

    def node(self) -> Node:
        """Return the recorded node."""
        return self._run.manifest.node

    def executions(self) -> list[RecordedExecution]:
        """Return what this process executed, in the order recorded, time lines last: asking for these replays the whole of it."""
        head = self._samples.iloc[self._first_rows]
        rows = zip(head["probe"], head["order"], head["schedule"], head["repetition"], head["kind"], strict=True)
        recorded = [
            RecordedExecution(str(probe), int(order), Execution(self._schedules[key], int(repetition), cast("Kind", kind)))
            for probe, order, key, repetition, kind in rows
        ]
        probes = {r.execution.schedule.key(): r for r in recorded}
        lines = [
            probes[key]._replace(execution=Execution(self._schedules[key], repetition, timeline=True))
            for key, repetition in self._timelines
            if key in probes
        ]
        return recorded + lines

    def has_producers(self, recorded: RecordedExecution) -> bool:
        """Say whether the run kept the times of this execution's producers."""
        return (recorded.execution.schedule.key(), recorded.execution.repetition, recorded.order) in self._producers

    def verify(self, source: int, destination: int) -> None:
        """Say again what the recorded run found about this pair."""
        reason = self._run.manifest.failed_pairs.get(f"{source}>{destination}")
        if reason is not None:
            raise PairError(reason)

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        """Yield the recorded Trace of each execution.

        An execution recorded several times is served in the recorded order, then again from its first. A warm-up that was not
        recorded is served by any execution of its schedule, marked as a warm-up.

        Raises
        ------
        UsageError
            The schedule, or this repetition of it, was not recorded.
        """
        for execution in executions:
            yield self._timeline(execution) if execution.timeline else self._trace(execution)

    def close(self) -> None:
        """Nothing is held open."""

    def _by_execution(self) -> dict[tuple[str, str, int], list[int]]:
        head = self._samples.iloc[self._first_rows]
        index: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for row, key, kind, repetition in zip(self._first_rows.tolist(), head["schedule"], head["kind"], head["repetition"], strict=True):
            index[key, kind, int(repetition)].append(row)
        return dict(index)

    def _trace(self, execution: Execution) -> Trace:
        schedule = execution.schedule
        key = self._known(schedule)
        wanted = (key, execution.kind, execution.repetition)
        rows = self._index.get(wanted)
        if rows is None and execution.kind == "warmup":
            rows = next(found for (k, _, _), found in self._index.items() if k == key)
            return replace(self._at(rows[0], schedule), status="warmup", detail="")
        if rows is None:
            have = sorted(repetition for k, kind, repetition in self._index if k == key and kind == execution.kind)
            raise UsageError(
                f"{self.backend}: {execution.kind} {execution.repetition} of schedule {key} was not recorded by process {self._process}",
                f"recorded are {have}" if have else f"it was recorded, but never as '{execution.kind}'",
            )
        turn = self._served[wanted] % len(rows)
        self._served[wanted] += 1
        return self._at(rows[turn], schedule)

    def _known(self, schedule: Schedule) -> str:
        key = schedule.key()
        if key not in self._schedules:
            what = f"{len(schedule.bursts)} bursts, {schedule.start}, K={schedule.producer_count}, W={schedule.warps}"
            where = f"GPU {schedule.source} to {schedule.destination}"
            raise UsageError(
                f"{self.backend} holds no recording of schedule {key} ({what}, {where})",
                "a replay serves only what was recorded: use its own schedules, or another --backend",
            )
        return key

    def _at(self, row: int, schedule: Schedule) -> Trace:
        rows = slice(row, row + len(schedule.bursts))
        shape = (len(schedule.bursts), schedule.producer_count)
        key = schedule.key()
        arrays = {name: np.full(shape, np.nan) for name in PER_PRODUCER}
        smids = self._smids(schedule)
        kept = self._producers.get((key, *self._place[row]))
        if kept is not None:
            if len(kept) != shape[0] * shape[1]:
                raise DataError(f"{self._run.folder}: producers of schedule {key} are incomplete", "take the run from a copy")
            arrays = {name: kept[name].to_numpy(dtype=np.float64).reshape(shape) for name in PER_PRODUCER}
            smids = kept["smid"].to_numpy(dtype=np.int64)[: shape[1]]
        detail = self._detail[row]
        return Trace(
            schedule=schedule,
            smids=smids,
            gap_cycles=np.repeat(self._measured["gap_mean_cycles"][rows, None], shape[1], axis=1),
            sm_clock_mhz=self._clock_mhz[row],
            status=cast("Status", self._status[row]),
            detail=detail if isinstance(detail, str) else "",
            recorded={name: values[rows] for name, values in self._measured.items()},
            **cast("dict[str, Any]", arrays),
        )

    def _timeline(self, execution: Execution) -> Trace:
        schedule = execution.schedule
        key = schedule.key()
        rows = self._timelines.get((key, execution.repetition))
        if rows is None:
            rows = next((found for (k, _), found in self._timelines.items() if k == key), None)
        if rows is None:
            raise UsageError(f"{self.backend} holds no time line of schedule {key}", "ask for one of those in traces.parquet")
        shape = (schedule.producer_count, schedule.warps, len(rows) // (schedule.producer_count * schedule.warps))
        if len(rows) != shape[0] * shape[1] * shape[2]:
            raise DataError(f"{self._run.folder}/traces.parquet: the time line of schedule {key} is incomplete", "take the run from a copy")
        nothing = np.full((len(schedule.bursts), schedule.producer_count), np.nan)
        return Trace(
            schedule=schedule,
            smids=rows["smid"].to_numpy(dtype=np.int64)[:: shape[1] * shape[2]],
            issue_cycles=nothing,
            gap_cycles=nothing,
            start_ns=nothing,
            end_ns=nothing,
            drain_cycles=nothing,
            sm_clock_mhz=float("nan"),
            timeline_cycles=rows["cycles"].to_numpy(dtype=np.float64).reshape(shape),
        )

    def _smids(self, schedule: Schedule) -> NDArray[np.int64]:
        gpu = next((g for g in self.node().gpus if g.index == schedule.source), None)
        if gpu is None:
            raise DataError(f"{self._run.folder}/manifest.json lists no GPU {schedule.source}", "take the run from a copy")
        return schedule.smids(gpu.smids)


def _grouped(frame: pd.DataFrame, by: list[str]) -> dict[Any, pd.DataFrame]:
    groups: Any = frame.groupby(by, sort=False)
    return dict(iter(groups))
