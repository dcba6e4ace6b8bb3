"""CSV task schedule files: one row per task; rows of one schedule share its id, and its header cells stand in its first row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from xstage_bench.errors import DataError, XStageError
from xstage_bench.io.csv_rows import (
    RowGroup,
    grouped_rows,
    is_hole,
    producers_cell,
    shown,
    truth_cell,
    truth_text,
    whole,
    whole_cell,
    written_producers,
)
from xstage_bench.schedule.tasks import NONE, TaskSchedule

#: Columns of a whole schedule: the same in all its rows, or empty after its first.
HEAD_COLUMNS = ("name", "source", "destination", "both_ways", "producers", "warps", "form", "publish", "flavour")
NUMBER_COLUMNS = ("producer", "compute_cycles", "bytes", "remote_bytes", "waits_for", "signals")
COLUMNS = ("schedule", *HEAD_COLUMNS, *NUMBER_COLUMNS, "phase")
REQUIRED = ("producers", "producer", "compute_cycles", "bytes")
_DEFAULTS = {
    "source": "0",
    "destination": "1",
    "both_ways": "false",
    "warps": "4",
    "form": "ping_pong",
    "publish": "release.gpu",
    "flavour": "st.v4",
}


def tasks_from_csv(text: str) -> list[TaskSchedule]:
    """Read task schedules from CSV text with a header.

    Parameters
    ----------
    text : str
        Without byte-order mark; any line ends. Empty cells: `waits_for` and `signals` none, `remote_bytes` all, `phase` "task".

    Returns
    -------
    list of TaskSchedule
        In order of the first row of each; one schedule when there is no column ``schedule``.

    Raises
    ------
    DataError
        A column is missing, unknown or there twice, a cell is no value of its column, rows of one schedule disagree, or a
        schedule cannot be; the message names line, column and value.
    """
    return [_schedule(group) for group in grouped_rows(text, "schedule", HEAD_COLUMNS, _DEFAULTS, (*NUMBER_COLUMNS, "phase"), REQUIRED)]


def _schedule(group: RowGroup) -> TaskSchedule:
    columns: dict[str, Any] = {name: [] for name in (*NUMBER_COLUMNS, "phase")}
    phases: dict[str, int] = {}
    for line, cells in zip(group.lines, group.rows, strict=True):
        for name, cell in zip(NUMBER_COLUMNS, cells, strict=False):
            columns[name].append(_number(cell, name, line, columns))
        phase = cells[-1].strip() or "task"
        columns["phase"].append(phases.setdefault(phase, len(phases)))
    try:
        head: dict[str, Any] = {name: group.head[name] for name in ("name", "form", "publish", "flavour")}
        head |= {name: whole_cell(group.head[name], name) for name in ("source", "destination", "warps")}
        head |= {"both_ways": truth_cell(group.head["both_ways"], "both_ways"), "producers": producers_cell(group.head["producers"])}
        return TaskSchedule(**columns, phases=tuple(phases), **head)
    except XStageError as error:
        task = re.match(r"task (\d+)", error.message)
        line = group.lines[int(task.group(1)) if task else 0]
        raise DataError(f"line {line}: {error.message}", error.hint) from error
    except OverflowError:
        raise DataError(f"line {group.lines[0]}: a number of this schedule does not fit 64 bits", "whole numbers below 2^63") from None


def _number(cell: str, name: str, line: int, columns: dict[str, Any]) -> int:
    value = whole(cell)
    if value is not None:
        return value
    if not is_hole(cell) or name in REQUIRED:
        raise DataError(f"line {line}: column '{name}' is {shown(cell)}, not a whole number", f"write {name} in digits")
    return int(columns["bytes"][-1]) if name == "remote_bytes" else NONE


def tasks_to_csv(schedules: Sequence[TaskSchedule]) -> bytes:
    """Return what `tasks_from_csv` reads back equal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, s in enumerate(schedules):
        # The number keeps two schedules apart that do the same and so have one key.
        which = f"{number}-{s.key()}"
        told = (s.name, s.source, s.destination, truth_text(s.both_ways), written_producers(s.producers), s.warps)
        head: tuple[object, ...] = (*told, s.form, s.publish, s.flavour)
        columns = zip(*(getattr(s, name).tolist() for name in (*NUMBER_COLUMNS, "phase")), strict=True)
        for *numbers, phase in columns:
            writer.writerow((which, *head, *numbers, s.phases[phase]))
            head = ("",) * len(HEAD_COLUMNS)
    return text.getvalue().encode()
