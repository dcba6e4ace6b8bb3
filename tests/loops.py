"""The event loops that numba compiles, a minute's work that it keeps beside the sources: done once, not by every test process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from published_node import X_STAGE, published_model
from sharing import share

from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.tasks.costs import reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.tasks import TaskSchedule


def compile_loops(folder: Path) -> None:
    """Have both compiled, unless there is no numba; `folder` is for the locks."""
    if importlib.util.find_spec("numba") is None:
        return
    model = published_model(X_STAGE, reference_costs())
    entry = entry_of(model.pairs[0])
    assert entry is not None
    node, none = model_of(entry), np.full(1, -1)
    columns = {"compute_cycles": np.ones(1, int), "bytes": np.full(1, 2048), "remote_bytes": np.full(1, 2048)}
    task = TaskSchedule(producers=1, producer=np.zeros(1, int), waits_for=none, signals=none, form="single", **columns)

    def tasks() -> None:
        predict_tasks(model, task, compiled=True)

    def bursts() -> None:
        predict_node(node, [Schedule((Burst(2048),), 1, 4)], compiled=True)

    share(folder, {"tasks": tasks, "bursts": bursts})
