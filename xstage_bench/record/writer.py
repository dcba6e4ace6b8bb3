"""Writes a run folder while the run goes on: a kill at any moment loses a few seconds of rows, never the folder."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from xstage_bench.errors import UsageError, XStageError
from xstage_bench.io.atomic import write_error
from xstage_bench.record.columns import PRODUCERS, SAMPLES, TRACES, Column
from xstage_bench.record.manifest import MANIFEST_NAME, Manifest, load_manifest, resume_mismatch, resumed, save_manifest, utc_now
from xstage_bench.record.parts import (
    PRODUCERS_FOLDER,
    SAMPLES_FOLDER,
    TRACES_NAME,
    part_digest,
    part_name,
    part_numbers,
    to_table,
    write_table,
)
from xstage_bench.record.resume import committed, remove_temporary, remove_uncommitted, timelines
from xstage_bench.record.rows import Columns, Recorded, joined, producer_columns, sample_columns, timeline_columns
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.trace import STATUSES, Trace

FLUSH_ROWS = 200_000
FLUSH_SECONDS = 3.0
#: Traces are reduced once this many bursts times producers wait, which bounds the memory to some 40 MB.
REDUCE_ELEMENTS = 1_000_000


class RunWriter:
    """The one writer of a run folder; a context manager.

    Leaving the context writes what is buffered; only `finish` makes the run complete.

    Parameters
    ----------
    folder : Path
        Made when missing; its parent must exist or can be made.
    manifest : Manifest
        Written at once, with ``complete`` false.
    resume : bool
        Go on with an interrupted run in `folder`: its manifest stays, and `done` says what need not be measured again.

    Attributes
    ----------
    done : set of (str, int, int)
        Schedule key, process and repetition of the measurements on disk when the writer was made. Warm-ups and sentinels are left
        out: a process needs them whatever it measures.
    next_order : dict of int to int
        Per source GPU, the position after the last execution on disk.
    manifest : Manifest

    Raises
    ------
    UsageError
        `folder` is a file, holds anything already (without `resume`), is complete, is of another backend, seed or GPUs, or is
        being written by another process.
    XStageError
        The system refuses to write there.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, resume: bool = False) -> None:
        self.folder = Path(folder)
        self.done: set[tuple[str, int, int]] = set()
        self.next_order: dict[int, int] = {}
        self._pending: list[Recorded] = []
        self._elements = 0
        self._samples: list[Columns] = []
        self._producers: list[Columns] = []
        self._rows = 0
        self._oldest: float | None = None
        self._timelines: dict[tuple[str, int, int], Columns] = {}
        self._new_timelines = False
        self._counts: dict[str, int] = dict.fromkeys(("rows", "executions", *(f"status_{s}" for s in STATUSES)), 0)
        self._schedules: set[str] = set()
        self._digests: dict[str, str] = {}
        self._lock: int | None = None
        try:
            self._claim(resume)
            self.manifest = self._start(dataclasses.replace(manifest, complete=False, finished=None), resume)
            save_manifest(self.folder, self.manifest)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise write_error(self.folder, error) from error
            raise
        self._part = max([*part_numbers(self.folder / SAMPLES_FOLDER), -1]) + 1

    def write(
        self, probe: str, process: int, order: int, executions: Sequence[Execution], traces: Sequence[Trace], *, keep_producers: bool
    ) -> None:
        """Take executions with their traces; what has waited `FLUSH_SECONDS` or is `FLUSH_ROWS` long goes to disk.

        An execution that stamped every store goes to ``traces.parquet`` alone: its issue times are not those of the others.

        Parameters
        ----------
        probe : str
        process : int
        order : int
            Position of the first execution in the run of its pair.
        executions, traces : sequence, equally long
        keep_producers : bool
            Keep the start and end of each producer too.

        Raises
        ------
        XStageError
            The disk is full or refuses. What was flushed before stays valid, what is buffered is kept for another `flush`.
        """
        for position, (execution, trace) in enumerate(zip(executions, traces, strict=True)):
            recorded = Recorded(probe, process, order + position, execution, trace, keep_producers)
            if trace.timeline_cycles is not None:
                self._timelines[execution.schedule.key(), process, execution.repetition] = timeline_columns(recorded)
                self._new_timelines = True
            if execution.timeline:
                continue
            self._pending.append(recorded)
            self._rows += len(execution.schedule.bursts)
            self._elements += trace.issue_cycles.size
            if self._oldest is None:
                self._oldest = time.monotonic()
            if self._elements >= REDUCE_ELEMENTS:
                self._reduce()
            if self._rows >= FLUSH_ROWS:
                self.flush()
        if self._oldest is not None and time.monotonic() - self._oldest >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as one part.

        Time lines and producers go first: the rename of the samples part is what commits all three, and readers leave out a
        producers part without samples.
        """
        self._reduce()
        if self._new_timelines:
            self._write_part(TRACES_NAME, list(self._timelines.values()), TRACES)
            self._new_timelines = False
        if not self._samples:
            return
        name = part_name(self._part)
        if self._producers:
            self._write_part(f"{PRODUCERS_FOLDER}/{name}", self._producers, PRODUCERS)
        self._write_part(f"{SAMPLES_FOLDER}/{name}", self._samples, SAMPLES)
        for columns in self._samples:
            self._count(columns)
        self._samples, self._producers, self._rows, self._oldest = [], [], 0, None
        self._part += 1

    def finish(self, **changes: Any) -> Manifest:
        """Flush, mark the run complete and return its final manifest.

        Parameters
        ----------
        **changes
            Fields of `Manifest` known only now: ``environment_after``, ``wall_s``, ``failed_pairs``, ``notes``, ...
        """
        self.flush()
        counts = {"schedules": len(self._schedules), **self._counts}
        fixed: dict[str, Any] = {"complete": True, "finished": utc_now(), "counts": counts, "parts": self._digests}
        self.manifest = dataclasses.replace(self.manifest, **{**fixed, **changes})
        save_manifest(self.folder, self.manifest)
        self._release()
        return self.manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self.manifest.complete:
                self.flush()
        except XStageError:
            # An error on its way out says more than that the rest could not be written either.
            if error is None:
                raise
        finally:
            self._release()

    def _claim(self, resume: bool) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file, not a run folder", "name a folder that does not exist yet")
        if resume and not self.folder.is_dir():
            raise UsageError(f"{self.folder}: no such run folder, nothing to resume", "leave out --resume to start it")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{self.folder} is being written by another process", "wait for it, or name another folder") from error
        except OSError:
            pass  # some network file systems know no locks; a new folder is still made by one process only

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _start(self, manifest: Manifest, resume: bool) -> Manifest:
        samples, producers = self.folder / SAMPLES_FOLDER, self.folder / PRODUCERS_FOLDER
        if resume:
            remove_temporary(self.folder)
        content = sorted(p.name for p in self.folder.iterdir())
        if MANIFEST_NAME in content and resume:
            manifest = self._resumed(manifest)
        elif set(content) - {SAMPLES_FOLDER, PRODUCERS_FOLDER} or (content and not resume):
            raise UsageError(f"{self.folder} is not empty (it holds {content[0]}): a run never overwrites", "name a new folder with --out")
        samples.mkdir(exist_ok=True)
        producers.mkdir(exist_ok=True)
        return manifest

    def _resumed(self, manifest: Manifest) -> Manifest:
        old = load_manifest(self.folder)
        reason = "it is complete" if old.complete else resume_mismatch(old, manifest)
        if reason is not None:
            raise UsageError(f"{self.folder} cannot be resumed: {reason}", "start a new run with --out")
        remove_uncommitted(self.folder)
        for columns in committed(self.folder):
            self._count(columns)
            for source in np.unique(columns["source"]).tolist():
                after = int(columns["order"][columns["source"] == source].max()) + 1
                self.next_order[source] = max(self.next_order.get(source, 0), after)
            again = (columns["kind"] == "measure") & (columns["burst"] == 0)
            self.done.update(zip(*(columns[n][again].tolist() for n in ("schedule", "process", "repetition")), strict=True))
        self._timelines = timelines(self.folder)
        there = [f"{place}/{part_name(n)}" for place in (SAMPLES_FOLDER, PRODUCERS_FOLDER) for n in part_numbers(self.folder / place)]
        for name in (*there, *([TRACES_NAME] if self._timelines else [])):
            self._digests[name] = part_digest((self.folder / name).read_bytes())
        return resumed(old, at=utc_now())

    def _write_part(self, name: str, columns: list[Columns], schema: tuple[Column, ...]) -> None:
        self._digests[name] = write_table(self.folder / name, to_table(joined(columns), schema))

    def _count(self, columns: Columns) -> None:
        first = columns["burst"] == 0
        self._counts["rows"] += int(first.size)
        self._counts["executions"] += int(first.sum())
        for status, count in zip(*np.unique(columns["status"][first].astype(str), return_counts=True), strict=True):
            self._counts[f"status_{status}"] = self._counts.get(f"status_{status}", 0) + int(count)
        self._schedules.update(columns["schedule"][first].tolist())

    def _reduce(self) -> None:
        if not self._pending:
            return
        self._samples.append(sample_columns(self._pending))
        producers = producer_columns(self._pending)
        if producers is not None:
            self._producers.append(producers)
        self._pending, self._elements = [], 0
