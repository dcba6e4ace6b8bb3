"""xstage-bench: what happens to a GPU's remote stores after they are issued.

The public Python API is ten names (docs/api.md); the types that they take and return are in `xstage_bench.types`, and everything else may
change. Importing this package loads nothing else: each name is imported when it is first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xstage_bench.version import __version__ as __version__

if TYPE_CHECKING:
    from xstage_bench.measure.stamps.schedule import load_stamps
    from xstage_bench.model.api import advise, load_model, predict, stage
    from xstage_bench.schedule.bursts import Burst, Schedule
    from xstage_bench.schedule.files import load_schedules, save_schedules
    from xstage_bench.schedule.tasks import TaskSchedule

__all__ = [
    "Schedule",
    "Burst",
    "TaskSchedule",
    "load_model",
    "load_schedules",
    "save_schedules",
    "load_stamps",
    "predict",
    "advise",
    "stage",
]
#: Where each public name lives.
_HOMES = {
    "Schedule": "schedule.bursts",
    "Burst": "schedule.bursts",
    "TaskSchedule": "schedule.tasks",
    "load_model": "model.api",
    "load_schedules": "schedule.files",
    "save_schedules": "schedule.files",
    "load_stamps": "measure.stamps.schedule",
    "predict": "model.api",
    "advise": "model.api",
    "stage": "model.api",
}
#: Names of version 0.1: where they live now, and what to write instead. They go with version 0.2.
_OLDER = {
    **{name: ("types", name, f"xstage_bench.types.{name}") for name in (
        "Job", "JobAdvice", "Model", "Pacer", "PredictedSchedule", "Stage", "TaskAdvice", "TaskPrediction", "TaskTrace", "Trace",
        "XStageError",
    )},
    "load_tasks": ("schedule.files", "load_schedules", "load_schedules"),
    "save_tasks": ("schedule.files", "save_schedules", "save_schedules"),
    "predict_all": ("model.api", "predict", "predict"),
    "include_dir": ("io.assets", "include_dir", "the folder that 'xstage export --include-dir' prints"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"xstage_bench.{_HOMES[name]}"), name)
    if name in _OLDER:
        from warnings import warn

        home, now, words = _OLDER[name]
        warn(f"xstage_bench.{name} goes with version 0.2; use {words}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"xstage_bench.{home}"), now)
    raise AttributeError(f"module 'xstage_bench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
