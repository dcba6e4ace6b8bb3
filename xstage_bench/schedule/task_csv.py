"""CSV task schedule files: one row per task; rows of one schedule share its id, and its header cells stand in its first row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from xstage_bench.errors import DataError, XStageError
from xstage_bench.io.csv_rows import check_width, places_of_columns, producers_cell, rows_of, shown, whole, whole_cell, written_producers
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
_TRUTH = {"true": True, "false": False}


class _Group:
    """The rows of one schedule: its head cells, its tasks, and the line of each."""

    __slots__ = ("columns", "head", "lines", "phases")

    def __init__(self, head: list[str]) -> None:
        self.head = head
        self.columns: dict[str, list[int]] = {name: [] for name in (*NUMBER_COLUMNS, "phase")}
        self.phases: dict[str, int] = {}
        self.lines: list[int] = []


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
    rows = rows_of(text)
    _, header = next(rows, (1, []))
    at = places_of_columns(header, COLUMNS, REQUIRED)
    groups: dict[str, _Group] = {}
    for line, cells in rows:
        check_width(cells, len(header), line)
        which = cells[at["schedule"]].strip() if "schedule" in at else ""
        if "schedule" in at and not which:
            raise DataError(f"line {line}: column 'schedule' is empty", "name the schedule in each of its rows, or remove the column")
        head = [cells[at[name]].strip() if name in at else "" for name in HEAD_COLUMNS]
        group = groups.get(which)
        if group is None:
            group = groups[which] = _Group(head)
        elif head != group.head:
            _must_agree(group, head, line)
        _add_task(group, cells, at, line)
    return [_schedule(group) for group in groups.values()]


def _must_agree(group: _Group, head: list[str], line: int) -> None:
    for name, first, now in zip(HEAD_COLUMNS, group.head, head, strict=True):
        begun = first or _DEFAULTS.get(name, "")
        if now and now != begun:
            raise DataError(
                f"line {line}: column '{name}' is {shown(now)}, but {shown(begun)} in line {group.lines[0]}, where the schedule begins",
                f"a schedule has one '{name}': repeat it, leave it empty, or name another one in column 'schedule'",
            )


def _add_task(group: _Group, cells: list[str], at: dict[str, int], line: int) -> None:
    for name in NUMBER_COLUMNS:
        cell = cells[at[name]] if name in at else ""
        value = whole(cell)
        if value is None:
            if cell.strip() or name in REQUIRED:
                raise DataError(f"line {line}: column '{name}' is {shown(cell)}, not a whole number", f"write {name} in digits")
            value = group.columns["bytes"][-1] if name == "remote_bytes" else NONE
        group.columns[name].append(value)
    phase = (cells[at["phase"]].strip() if "phase" in at else "") or "task"
    group.columns["phase"].append(group.phases.setdefault(phase, len(group.phases)))
    group.lines.append(line)


def _schedule(group: _Group) -> TaskSchedule:
    cell = {name: text or _DEFAULTS.get(name, "") for name, text in zip(HEAD_COLUMNS, group.head, strict=True)}
    try:
        if cell["both_ways"] not in _TRUTH:
            raise DataError(f"column 'both_ways' is {shown(cell['both_ways'])}", "write true or false")
        head: dict[str, Any] = {name: cell[name] for name in ("name", "form", "publish", "flavour")}
        head |= {name: whole_cell(cell[name], name) for name in ("source", "destination", "warps")}
        head |= {"both_ways": _TRUTH[cell["both_ways"]], "producers": producers_cell(cell["producers"])}
        columns: dict[str, Any] = dict(group.columns)
        return TaskSchedule(**columns, phases=tuple(group.phases), **head)
    except XStageError as error:
        task = re.match(r"task (\d+)", error.message)
        line = group.lines[int(task.group(1)) if task else 0]
        raise DataError(f"line {line}: {error.message}", error.hint) from error
    except OverflowError:
        raise DataError(f"line {group.lines[0]}: a number of this schedule does not fit 64 bits", "whole numbers below 2^63") from None


def tasks_to_csv(schedules: Sequence[TaskSchedule]) -> bytes:
    """Return what `tasks_from_csv` reads back equal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, s in enumerate(schedules):
        # The number keeps two schedules apart that do the same and so have one key.
        which = f"{number}-{s.key()}"
        told = (s.name, s.source, s.destination, str(s.both_ways).lower(), written_producers(s.producers), s.warps)
        head: tuple[object, ...] = (*told, s.form, s.publish, s.flavour)
        columns = zip(*(getattr(s, name).tolist() for name in (*NUMBER_COLUMNS, "phase")), strict=True)
        for *numbers, phase in columns:
            writer.writerow((which, *head, *numbers, s.phases[phase]))
            head = ("",) * len(HEAD_COLUMNS)
    return text.getvalue().encode()
