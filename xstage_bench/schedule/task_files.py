"""Task schedule files: TaskSchedules as JSON (one list per column) or CSV (one row per task)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.csv_rows import header_of
from xstage_bench.schedule.task_csv import REQUIRED, tasks_from_csv, tasks_to_csv
from xstage_bench.schedule.tasks import NONE, Form, Publish, TaskSchedule
from xstage_bench.schedule.texts import entries_of, is_json, read_either, read_text

SCHEMA_VERSION = 1
_EXAMPLE = '{"schema_version": 1, "producers": 1, "tasks": {"producer": [0], "compute_cycles": [9000], "bytes": [32768]}}'
_HINT = f"JSON such as {_EXAMPLE}, or CSV with at least the columns producers,{','.join(REQUIRED)}"


class TaskColumns(msgspec.Struct, forbid_unknown_fields=True):
    """The tasks, one list per column and one entry per task. Left out: all bytes are remote, nothing waits or signals, one phase."""

    producer: list[int]
    compute_cycles: list[int]
    bytes: list[int]
    remote_bytes: list[int] | None = None
    waits_for: list[int] | None = None
    signals: list[int] | None = None
    phase: list[int] | None = None


class TaskEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One task schedule in a file; as `TaskSchedule`."""

    producers: int | list[int]
    tasks: TaskColumns
    phases: tuple[str, ...] = ("task",)
    warps: int = 4
    form: Form = "ping_pong"
    publish: Publish = "release.gpu"
    source: int = 0
    destination: int = 1
    both_ways: bool = False
    flavour: str = "st.v4"
    name: str = ""


class TaskFile(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON file with task schedules."""

    schema_version: int
    task_schedules: list[TaskEntry]


def load_tasks(path: Path | str) -> list[TaskSchedule]:
    """Read a task schedule file.

    Parameters
    ----------
    path : Path or str
        JSON when its content begins with a brace, else CSV.

    Returns
    -------
    list of TaskSchedule, at least one, in the order of the file

    Raises
    ------
    UsageError
        `path` does not exist or is a folder.
    DataError
        The content describes no task schedules; the message names the file, the entry or line, the task and the value.
    """
    return read_either(Path(path), _from_json, tasks_from_csv, "task schedule", _HINT)


def save_tasks(path: Path | str, schedules: Sequence[TaskSchedule]) -> None:
    """Write a file that `load_tasks` reads back equal: CSV when `path` ends in ``.csv``, else JSON.

    CSV names a task's phase: phases come back in the order of their first task, without those that no task is of.

    Raises
    ------
    UsageError
        No schedule is given, or the folder of `path` does not exist.
    XStageError
        The system refuses to write there.
    """
    path = Path(path)
    if not schedules:
        raise UsageError("there is no task schedule to write", "give at least one")
    write_bytes(path, tasks_to_csv(schedules) if path.suffix.lower() == ".csv" else _to_json(schedules))


def is_task_file(path: Path | str) -> bool:
    """Whether a schedule file is of tasks rather than bursts, by its keys or columns; errors as `load_tasks` when it cannot be read."""
    text = read_text(Path(path))
    if not is_json(text):
        return "compute_cycles" in header_of(text)
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        return False  # the reader of burst schedules says what is wrong
    head = head[0] if isinstance(head, list) and head else head
    return isinstance(head, dict) and ("tasks" in head or "task_schedules" in head)


def _from_json(path: Path, text: str) -> list[TaskSchedule]:
    hint = f"a task schedule has the fields {', '.join(TaskEntry.__struct_fields__)}"
    hint += f"; tasks has the lists {', '.join(TaskColumns.__struct_fields__)}"
    entries = entries_of(path, text, "task_schedules", TaskFile, TaskEntry, SCHEMA_VERSION, hint, _EXAMPLE)
    return [_schedule(entry, where) for where, entry in entries]


def _schedule(entry: TaskEntry, where: str) -> TaskSchedule:
    columns: dict[str, Any] = {name: getattr(entry.tasks, name) for name in TaskColumns.__struct_fields__}
    size = len(columns["producer"])
    columns["remote_bytes"] = columns["bytes"] if columns["remote_bytes"] is None else columns["remote_bytes"]
    for name, default in (("waits_for", NONE), ("signals", NONE), ("phase", 0)):
        if columns[name] is None:
            columns[name] = [default] * size
    try:
        return TaskSchedule(
            producers=tuple(entry.producers) if isinstance(entry.producers, list) else entry.producers,
            **columns,
            phases=entry.phases,
            warps=entry.warps,
            form=entry.form,
            publish=entry.publish,
            source=entry.source,
            destination=entry.destination,
            both_ways=entry.both_ways,
            flavour=entry.flavour,
            name=entry.name,
        )
    except XStageError as error:
        name = f" ('{entry.name}')" if entry.name else ""
        raise DataError(f"{where}{name}: {error.message}".removeprefix(": "), error.hint) from error
    except OverflowError:
        raise DataError(f"{where}: a number does not fit 64 bits".removeprefix(": "), "whole numbers below 2^63") from None


def _to_json(schedules: Sequence[TaskSchedule]) -> bytes:
    entries = [
        TaskEntry(
            producers=s.producers if isinstance(s.producers, int) else list(s.producers),
            tasks=TaskColumns(**{name: getattr(s, name).tolist() for name in TaskColumns.__struct_fields__}),
            phases=s.phases,
            warps=s.warps,
            form=s.form,
            publish=s.publish,
            source=s.source,
            destination=s.destination,
            both_ways=s.both_ways,
            flavour=s.flavour,
            name=s.name,
        )
        for s in schedules
    ]
    # Not indented: a line for each of some hundred thousand numbers would be most of the file.
    return msgspec.json.encode(TaskFile(SCHEMA_VERSION, entries)) + b"\n"
