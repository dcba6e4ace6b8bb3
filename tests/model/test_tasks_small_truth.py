"""Pieces of the prediction of tasks, each against a truth small enough to write down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from published_node import X_STAGE, published_model

from xstage_bench.model.estimate import Estimate
from xstage_bench.model.tasks.costs import TaskCosts, reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.tasks import TaskSchedule

MODEL = published_model(X_STAGE, reference_costs())


def costs(known: dict[str, float]) -> TaskCosts:
    found = {name: Estimate(value=value, standard_error=None, low=None, high=None) for name, value in known.items()}
    return TaskCosts(gpu="none", compute="spin", sm_clock_mhz=None, instrument=found)


def one_sm(stores: list[int], **more: Any) -> TaskSchedule:
    """A task for each number of warp-stores of four warps, one after another, all to the SM's own GPU."""
    n = len(stores)
    none, size = np.full(n, -1), np.array(stores) * 2048
    return TaskSchedule(
        producers=1, producer=np.zeros(n, int), compute_cycles=np.full(n, 50_000), bytes=size, remote_bytes=size * 0, waits_for=none,
        signals=none, form="single", publish="relaxed", **more,
    )  # fmt: skip


def test_issuing_costs_what_was_measured_and_between_and_beyond_on_the_same_lines() -> None:
    found = predict_tasks(MODEL, one_sm([1, 4, 8, 16, 64]), costs=costs({"store_cycles.1": 300.0, "store_cycles.8": 650.0}))
    cycles = found.t0_ns * X_STAGE.sm_clock_mhz / 1e3
    assert cycles == pytest.approx([300, 450, 650, 1050, 3450], abs=0.5)


def test_a_single_measured_size_has_no_slope() -> None:
    found = predict_tasks(MODEL, one_sm([8, 16]), costs=costs({"store_cycles.8": 650.0}))
    assert found.t0_ns * X_STAGE.sm_clock_mhz / 1e3 == pytest.approx([650, 650], abs=0.5)
