"""Schedule files: bursts or tasks, JSON or CSV. What they hold is seen from their content."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import cast

from xstage_bench.errors import UsageError
from xstage_bench.schedule.burst_files import load_bursts, save_bursts
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.task_files import is_task_file, load_tasks, save_tasks
from xstage_bench.schedule.tasks import TaskSchedule


def load_schedules(path: str | PathLike[str]) -> list[Schedule | TaskSchedule]:
    """Read the schedules of a JSON or CSV file.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    list of Schedule, or of TaskSchedule
        At least one, in the order of the file. A file is of tasks when its keys or columns are.

    Raises
    ------
    UsageError
        `path` does not exist or is a folder.
    DataError
        The content describes no schedules; the message names the file, the line or entry, the column and the value.
    """
    found = load_tasks(Path(path)) if is_task_file(Path(path)) else load_bursts(Path(path))
    return cast("list[Schedule | TaskSchedule]", found)


def save_schedules(path: str | PathLike[str], schedules: Sequence[Schedule] | Sequence[TaskSchedule]) -> None:
    """Write schedules as JSON, or as CSV where the name ends in ``.csv``; `load_schedules` reads the same back.

    Raises
    ------
    UsageError
        No schedule is given, bursts and tasks are mixed, or the folder of `path` does not exist.
    XStageError
        The system refuses to write there.
    """
    tasks = [s for s in schedules if isinstance(s, TaskSchedule)]
    bursts = [s for s in schedules if isinstance(s, Schedule)]
    if tasks and bursts:
        raise UsageError("schedules of bursts and of tasks do not go into one file", "write two files")
    if tasks:
        save_tasks(Path(path), tasks)
    else:
        save_bursts(Path(path), bursts)
