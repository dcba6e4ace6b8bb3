"""The functions of the public API (docs/api.md): what a scheduler, a notebook or a test of a kernel needs, in plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import overload

from xstage_bench.assets import asset_dir
from xstage_bench.model.document import Model
from xstage_bench.model.predict import PredictedSchedule
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.model.tasks.predict import TaskPrediction, predict_tasks
from xstage_bench.pipeline import find_model, predict_schedules
from xstage_bench.schedule import Schedule
from xstage_bench.stamps.layout import read_stamps
from xstage_bench.stamps.schedule import trace_of
from xstage_bench.task_schedule import TaskSchedule
from xstage_bench.trace import Trace


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
    from xstage_bench import schedule_file

    return schedule_file.load_schedules(Path(path))


def load_tasks(path: str | PathLike[str]) -> list[TaskSchedule]:
    """Read the task schedules of a JSON or CSV file (docs/task-schedules.md); errors name file, line and value."""
    from xstage_bench import task_file

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
