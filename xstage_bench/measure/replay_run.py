"""A replay as the command line asks for it: schedule files in, a folder with ``replay.json`` and ``summary.json`` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.device.backend import BackendChoice
from xstage_bench.errors import UsageError
from xstage_bench.io.json_file import write_json
from xstage_bench.measure.replay_document import DOCUMENT, Predict, with_predictions, write_summary
from xstage_bench.measure.rounds import Progress
from xstage_bench.measure.tasks import measure_tasks
from xstage_bench.model.document import Model
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.burst_tasks import tasks_of_bursts
from xstage_bench.schedule.device import Compute
from xstage_bench.schedule.task_files import is_task_file, load_tasks, save_tasks
from xstage_bench.schedule.tasks import TaskSchedule

#: What was executed, beside ``replay.json``.
SCHEDULES = "schedules.json"


def load_any(paths: Sequence[Path]) -> list[TaskSchedule]:
    """Read files of task schedules, or of bursts, each of which becomes a task whose work fills the gap before it.

    Raises
    ------
    UsageError, DataError
        As `load_tasks`, `load_bursts` and `tasks_of_bursts`.
    """
    found: list[TaskSchedule] = []
    for path in paths:
        if is_task_file(path):
            found += load_tasks(path)
        else:
            bursts = load_bursts(path)
            found += [tasks_of_bursts(s, path.stem if len(bursts) == 1 else f"{path.stem}[{i}]") for i, s in enumerate(bursts)]
    return found


def record_replay(
    choice: BackendChoice,
    schedules: Sequence[TaskSchedule],
    folder: Path,
    argv: Sequence[str],
    *,
    compute: Compute,
    repetitions: int,
    processes: int,
    seed: int,
    model: Model | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Execute schedules and write the folder; parameters as `task_run.measure_tasks`.

    Parameters
    ----------
    model : Model, optional
        Its predictions stand beside what was measured.

    Returns
    -------
    dict
        What ``replay.json`` holds.

    Raises
    ------
    UsageError
        The folder exists already: what was measured is never overwritten.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists, and a run is never overwritten", "name another folder with --out")

    def kept(document: dict[str, Any]) -> dict[str, Any]:
        document = msgspec.to_builtins(document)
        if model is not None:
            document = with_predictions(document, schedules, predictor(model, document))
        folder.mkdir(parents=True)
        write_json(folder / DOCUMENT, document)
        save_tasks(folder / SCHEDULES, schedules)
        write_summary(folder)
        return document

    options: dict[str, Any] = {"compute": compute, "repetitions": repetitions, "processes": processes, "seed": seed, "argv": argv}
    instrument = not choice.simulated  # a simulator's costs are its own inputs
    return kept(measure_tasks(choice, schedules, instrument=instrument, progress=progress, keep=kept, **options))


def predictor(model: Model, document: dict[str, Any]) -> Predict:
    """Return what predicts the schedules of a replay: the model, with the costs of the instrument that the replay measured, if any."""
    from xstage_bench.model.tasks.costs import costs_of_replay
    from xstage_bench.model.tasks.predict import predict_tasks_all

    costs = costs_of_replay(document) if document["instrument"] else None

    def predict(schedule: TaskSchedule, sm_clock_mhz: float) -> tuple[float, float]:
        (found,) = predict_tasks_all(model, [schedule], sm_clock_mhz=sm_clock_mhz, costs=costs)
        return found.total_ns, found.without_stores_ns

    return predict
