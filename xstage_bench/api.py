"""The functions of the public API (docs/api.md): what a scheduler, a notebook or a test of a kernel needs, in plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import overload

from xstage_bench.io.assets import asset_dir
from xstage_bench.measure.stamps.layout import read_stamps
from xstage_bench.measure.stamps.schedule import trace_of
from xstage_bench.model.advise.choose import TaskAdvice, advise_tasks
from xstage_bench.model.advise.job import Job, JobAdvice, advise_job
from xstage_bench.model.document import Model
from xstage_bench.model.predict import predict_schedules
from xstage_bench.model.prediction import PredictedSchedule
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.model.tasks.predict import TaskPrediction, predict_tasks
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.schedule.trace import Trace


def load_model(path: str | PathLike[str]) -> Model:
    """Read a model: a ``model.json``, or the run folder that holds one.

    Raises
    ------
    UsageError
        Nothing is there, or the run has not been fitted.
    DataError
        It is no model, or of a newer version.
    """
    return find_model(Path(path))


def load_schedules(path: str | PathLike[str]) -> list[Schedule]:
    """Read the schedules of a JSON or CSV file (docs/schedules.md); errors name file, line and value."""
    from xstage_bench.schedule import files as schedule_file

    return schedule_file.load_schedules(Path(path))


def load_tasks(path: str | PathLike[str]) -> list[TaskSchedule]:
    """Read the task schedules of a JSON or CSV file (docs/task-schedules.md); errors name file, line and value."""
    from xstage_bench.schedule import task_files as task_file

    return task_file.load_tasks(Path(path))


def load_stamps(path: str | PathLike[str], source: int = 0, destination: int = 1, flavour: str = "st.v4") -> Trace:
    """Read the stamps of one launch of your own kernel (docs/own-kernel.md); its `schedule` says what it stored."""
    return trace_of(read_stamps(Path(path)), source, destination, flavour)


@overload
def predict(model: Model, schedule: Schedule, *, pair: str | None = None, sm_clock_mhz: float | None = None) -> PredictedSchedule: ...
@overload
def predict(model: Model, schedule: TaskSchedule, *, pair: str | None = None, sm_clock_mhz: float | None = None) -> TaskPrediction: ...
def predict(
    model: Model, schedule: Schedule | TaskSchedule, *, pair: str | None = None, sm_clock_mhz: float | None = None
) -> PredictedSchedule | TaskPrediction:
    """Predict what a schedule costs, burst by burst, or task by task.

    Parameters
    ----------
    model : Model
    schedule : Schedule or TaskSchedule
    pair : str, optional
        Use the model of this pair, for example ``"0>1"``; default: the schedule's own.
    sm_clock_mhz : float, optional
        SM clock of the prediction; default: the model's.

    Raises
    ------
    UsageError
        The model has no such pair, flavour or layout, the clock is not positive, or the schedule has more producers than the GPU has SMs.
    DataError
        Nothing was identified for that pair, or tasks are asked for of a pair without a node model.
    """
    if isinstance(schedule, TaskSchedule):
        return predict_tasks(model, schedule, pair=pair, sm_clock_mhz=sm_clock_mhz)
    return predict_schedules(model, [schedule], pair=pair, sm_clock_mhz=sm_clock_mhz)[0]


def predict_all(
    model: Model, schedules: Sequence[Schedule], *, pair: str | None = None, sm_clock_mhz: float | None = None
) -> list[PredictedSchedule]:
    """Predict many schedules, much faster than one by one; see `predict`."""
    return predict_schedules(model, schedules, pair=pair, sm_clock_mhz=sm_clock_mhz)


@overload
def advise(
    model: Model, what: TaskSchedule, *, pair: str | None = None, sm_clock_mhz: float | None = None, splitting: bool = True
) -> TaskAdvice: ...
@overload
def advise(model: Model, what: Job, *, pair: str | None = None, sm_clock_mhz: float | None = None, splitting: bool = True) -> JobAdvice: ...
def advise(
    model: Model, what: TaskSchedule | Job, *, pair: str | None = None, sm_clock_mhz: float | None = None, splitting: bool = True
) -> TaskAdvice | JobAdvice:
    """Choose an order, a spacing and a size of stores that cost less, by prediction.

    Parameters
    ----------
    model : Model
    what : TaskSchedule or Job
        A kernel task by task, or in a few numbers.
    pair : str, optional
        Use the model of this pair; default: that of `what`.
    sm_clock_mhz : float, optional
        SM clock of the prediction; default: the model's.
    splitting : bool
        Whether storing tasks may be cut in two.

    Returns
    -------
    TaskAdvice or JobAdvice
        The present and the advised schedule, both predicted, and the gain; never one that is predicted slower.

    Raises
    ------
    UsageError, DataError
        As `predict` of tasks.
    """
    if isinstance(what, TaskSchedule):
        return advise_tasks(model, what, pair=pair, sm_clock_mhz=sm_clock_mhz, splitting=splitting)
    job = what if pair is None else replace(what, pair=pair)
    return advise_job(model, job, sm_clock_mhz=sm_clock_mhz, splitting=splitting)


def save_schedules(path: str | PathLike[str], schedules: Sequence[Schedule]) -> None:
    """Write schedules as JSON, or as CSV where the name ends in ``.csv``; `load_schedules` reads the same back."""
    from xstage_bench.schedule import files as schedule_file

    schedule_file.save_schedules(Path(path), schedules)


def save_tasks(path: str | PathLike[str], schedules: Sequence[TaskSchedule]) -> None:
    """Write task schedules as JSON, or as CSV where the name ends in ``.csv``; `load_tasks` reads the same back."""
    from xstage_bench.schedule import task_files as task_file

    task_file.save_tasks(Path(path), schedules)


def stage(model: Model, producers: int, warps: int, *, pair: str = "0>1", flavour: str = "st.v4", layout: str = "contiguous") -> Stage:
    """Return T0, R and Q of K producers with W warps each, and the closed forms that follow: what a scheduler asks.

    Raises
    ------
    UsageError
        The model has no such pair, flavour and layout, or K or W is not positive.
    DataError
        Nothing was identified for the pair.
    """
    return stage_at(model, producers, warps, pair=pair, flavour=flavour, layout=layout)


def include_dir() -> Path:
    """Return the folder of ``xstage_stage.cuh``, ``xstage_pacer.cuh`` and ``xstage_stamps.cuh``, for a compiler's ``-I``."""
    return asset_dir("cuda")
