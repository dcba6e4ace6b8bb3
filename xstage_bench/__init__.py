"""xstage-bench: what happens to a GPU's remote stores after they are issued.

The public Python API, promised in docs/api.md; everything else may change. Importing this package loads nothing else: each name is imported
when it is first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from xstage_bench.api import (
        advise,
        include_dir,
        load_model,
        load_schedules,
        load_stamps,
        load_tasks,
        predict,
        predict_all,
        save_schedules,
        save_tasks,
        stage,
    )
    from xstage_bench.errors import XStageError
    from xstage_bench.model.advise.choose import TaskAdvice
    from xstage_bench.model.advise.job import Job, JobAdvice
    from xstage_bench.model.document import Model
    from xstage_bench.model.pacer import Pacer
    from xstage_bench.model.prediction import PredictedSchedule
    from xstage_bench.model.stage import Stage
    from xstage_bench.model.tasks.predict import TaskPrediction
    from xstage_bench.schedule.bursts import Burst, Schedule
    from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace
    from xstage_bench.schedule.trace import Trace

#: Where each public name lives.
_HOMES = {
    "Burst": "schedule",
    "Job": "model.advise.job",
    "JobAdvice": "model.advise.job",
    "Model": "model.document",
    "Pacer": "model.pacer",
    "PredictedSchedule": "model.prediction",
    "Schedule": "schedule",
    "Stage": "model.stage",
    "TaskAdvice": "model.advise.choose",
    "TaskPrediction": "model.tasks.predict",
    "TaskSchedule": "task_schedule",
    "TaskTrace": "task_schedule",
    "Trace": "trace",
    "XStageError": "errors",
    "advise": "api",
    "include_dir": "api",
    "load_model": "api",
    "load_schedules": "api",
    "load_stamps": "api",
    "load_tasks": "api",
    "predict": "api",
    "predict_all": "api",
    "save_schedules": "api",
    "save_tasks": "api",
    "stage": "api",
}
__all__ = [
    "Burst",
    "Job",
    "JobAdvice",
    "Model",
    "Pacer",
    "PredictedSchedule",
    "Schedule",
    "Stage",
    "TaskAdvice",
    "TaskPrediction",
    "TaskSchedule",
    "TaskTrace",
    "Trace",
    "XStageError",
    "advise",
    "include_dir",
    "load_model",
    "load_schedules",
    "load_stamps",
    "load_tasks",
    "predict",
    "predict_all",
    "save_schedules",
    "save_tasks",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'xstage_bench' has no attribute '{name}'")
    return getattr(import_module(f"xstage_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
