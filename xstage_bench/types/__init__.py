"""The types that the public API takes and returns, and its errors."""

from __future__ import annotations

from xstage_bench.errors import XStageError
from xstage_bench.model.advise.choose import TaskAdvice
from xstage_bench.model.advise.job import Job, JobAdvice
from xstage_bench.model.document import Model
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.pacer import Pacer
from xstage_bench.model.prediction import PredictedSchedule
from xstage_bench.model.stage import Stage
from xstage_bench.model.tasks.predict import TaskPrediction
from xstage_bench.schedule.tasks import TaskTrace
from xstage_bench.schedule.trace import Trace

__all__ = [
    "Estimate",
    "Job",
    "JobAdvice",
    "Model",
    "Pacer",
    "PredictedSchedule",
    "Stage",
    "TaskAdvice",
    "TaskPrediction",
    "TaskTrace",
    "Trace",
    "XStageError",
]
