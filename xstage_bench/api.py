"""The functions of the public API (docs/api.md): what a scheduler, a notebook or a test of a kernel needs, in plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from xstage_bench.assets import asset_dir
from xstage_bench.model.document import Model
from xstage_bench.model.predict import PredictedSchedule
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.pipeline import find_model, predict_schedules
from xstage_bench.schedule import Schedule
from xstage_bench.stamps.layout import read_stamps
from xstage_bench.stamps.schedule import trace_of
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
    from xstage_bench.schedule_file import load_schedules as load

    return load(Path(path))


def load_stamps(path: str | PathLike[str], source: int = 0, destination: int = 1, flavour: str = "st.v4") -> Trace:
    """Read the stamps of one launch of your own kernel (docs/own-kernel.md); its `schedule` says what it stored."""
    return trace_of(read_stamps(Path(path)), source, destination, flavour)


def predict(
    model: Model, schedule: Schedule | Sequence[Schedule], *, pair: str | None = None, sm_clock_mhz: float | None = None
) -> PredictedSchedule | list[PredictedSchedule]:
    """Predict what a schedule costs, burst by burst.

    Parameters
    ----------
    model : Model
    schedule : Schedule or sequence of Schedule
        A sequence gives a list, much faster than one by one.
    pair : str, optional
        Use the model of this pair, for example ``"0>1"``; default: the schedule's own.
    sm_clock_mhz : float, optional
        SM clock of the prediction; default: the model's.

    Raises
    ------
    UsageError
        The model has no such pair, flavour or layout, the clock is not positive, or the schedule has more producers than the GPU has SMs.
    DataError
        Nothing was identified for that pair.
    """
    if isinstance(schedule, Schedule):
        return predict_schedules(model, [schedule], pair=pair, sm_clock_mhz=sm_clock_mhz)[0]
    return predict_schedules(model, schedule, pair=pair, sm_clock_mhz=sm_clock_mhz)


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
