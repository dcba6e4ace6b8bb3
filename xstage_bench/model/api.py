"""What the public API asks of a model, in plain calls: predictions, advice, and the three numbers of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TypedDict, overload

from xstage_bench.model.advise.choose import TaskAdvice, advise_tasks
from xstage_bench.model.advise.job import Job, JobAdvice, advise_job
from xstage_bench.model.document import Model
from xstage_bench.model.predict import predict_schedules
from xstage_bench.model.prediction import PredictedSchedule
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.model.tasks.predict import TaskPrediction, predict_tasks, predict_tasks_all
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.tasks import TaskSchedule


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


class _How(TypedDict):
    pair: str | None
    sm_clock_mhz: float | None
    compiled: bool | None


@overload
def predict(
    model: Model, schedule: Schedule, *, pair: str | None = None, sm_clock_mhz: float | None = None, compiled: bool | None = None
) -> PredictedSchedule: ...
@overload
def predict(
    model: Model, schedule: TaskSchedule, *, pair: str | None = None, sm_clock_mhz: float | None = None, compiled: bool | None = None
) -> TaskPrediction: ...
@overload
def predict(
    model: Model,
    schedule: Sequence[Schedule | TaskSchedule],
    *,
    pair: str | None = None,
    sm_clock_mhz: float | None = None,
    compiled: bool | None = None,
) -> list[PredictedSchedule | TaskPrediction]: ...
def predict(
    model: Model,
    schedule: Schedule | TaskSchedule | Sequence[Schedule | TaskSchedule],
    *,
    pair: str | None = None,
    sm_clock_mhz: float | None = None,
    compiled: bool | None = None,
) -> PredictedSchedule | TaskPrediction | list[PredictedSchedule | TaskPrediction]:
    """Predict what a schedule costs, burst by burst, or task by task.

    Parameters
    ----------
    model : Model
    schedule : Schedule or TaskSchedule, or a sequence of these
        Many at once are predicted much faster than one by one.
    pair : str, optional
        Use the model of this pair, for example ``"0>1"``; default: the schedule's own.
    sm_clock_mhz : float, optional
        SM clock of the prediction; default: the model's.
    compiled : bool, optional
        Whether the event loop is numba's, equal to rounding. Default: where so much is predicted at once that loading it pays. True for one
        schedule after the other, as in a search: 0.7 ms each instead of 5 to 110, after a second for loading or half a minute for
        compiling once.

    Returns
    -------
    PredictedSchedule or TaskPrediction, or a list of these in the order given

    Raises
    ------
    UsageError
        The model has no such pair, flavour or layout, the clock is not positive, or the schedule has more producers than the GPU has SMs.
    DataError
        Nothing was identified for that pair, or tasks are asked for of a pair without a node model.
    """
    how: _How = {"pair": pair, "sm_clock_mhz": sm_clock_mhz, "compiled": compiled}
    if isinstance(schedule, TaskSchedule):
        return predict_tasks(model, schedule, **how)
    if isinstance(schedule, Schedule):
        return predict_schedules(model, [schedule], **how)[0]
    bursts = iter(predict_schedules(model, [s for s in schedule if isinstance(s, Schedule)], **how))
    tasks = iter(predict_tasks_all(model, [s for s in schedule if isinstance(s, TaskSchedule)], **how))
    return [next(tasks) if isinstance(s, TaskSchedule) else next(bursts) for s in schedule]


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
