"""A model from three published numbers: it is the paper's law, and what it says of the paper's own kernels is what is written down."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_node import X_STAGE, published_model

from xstage_bench.errors import DataError
from xstage_bench.model.document import Model, load_model, save
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.tasks.costs import reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.tasks import TaskSchedule


@pytest.fixture(scope="module")
def model() -> Model:
    return published_model(X_STAGE, reference_costs())


def bursts(size: int, count: int = 1, cycles: int = 0) -> TaskSchedule:
    """All 148 SMs store `size` bytes `count` times, with work before each."""
    k, n = X_STAGE.producers, X_STAGE.producers * count
    columns: dict[str, Any] = {"bytes": np.full(n, size), "remote_bytes": np.full(n, size), "compute_cycles": np.full(n, cycles)}
    none = np.full(n, -1)
    return TaskSchedule(producers=k, producer=np.repeat(np.arange(k), count), waits_for=none, signals=none, form="single", **columns)


@pytest.mark.parametrize("kib", [2, 8, 16, 30, 32, 34, 48, 64, 256])
def test_isolated_bursts_follow_the_published_law(model: Model, kib: int) -> None:
    size = kib << 10
    law_ns = max(X_STAGE.t0_ns * kib / 32, (size * X_STAGE.producers - X_STAGE.capacity_bytes) / X_STAGE.drain_gb_per_s)
    issue = predict_tasks(model, bursts(size)).issue_ns
    assert issue == pytest.approx(np.full(issue.size, law_ns), rel=1e-6)


def test_the_knee_is_the_published_one(model: Model) -> None:
    """33 KiB per producer: where T0 and (V - Q)/R cross."""
    entry = entry_of(model.pairs[0])
    capacity = model_of(entry).capacity_bytes(range(X_STAGE.producers))
    assert capacity == pytest.approx(X_STAGE.capacity_bytes)
    assert (capacity + X_STAGE.t0_ns * X_STAGE.drain_gb_per_s) / X_STAGE.producers / 1024 == pytest.approx(33, abs=0.5)


def test_periodic_bursts_take_what_the_link_needs(model: Model) -> None:
    """max(T0 + G, V/R): with little work between the bursts V/R each, with much of it no stall at all."""
    volume_ns = 32768 * X_STAGE.producers / X_STAGE.drain_gb_per_s
    crowded = predict_tasks(model, bursts(32768, 40, cycles=1000))
    last, tenth = crowded.store_end_ns[39], crowded.store_end_ns[9]
    assert (last - tenth) / 30 == pytest.approx(volume_ns, rel=0.02)
    calm = predict_tasks(model, bursts(16384, 10, cycles=40_000))
    assert not calm.stall_ns.any()


def test_the_document_says_what_it_stands_on(model: Model, tmp_path: Path) -> None:
    save(tmp_path / "model.json", model)
    assert load_model(tmp_path / "model.json") == model
    assert model.backend == "published"
    assert any("nothing was measured here" in note for note in model.notes)
    assert {name for name, e in model.pairs[0].node.items() if e.status != "ok"} == {
        "unit_capacity_bytes", "credit_cycles", "link_buffer_bytes", "service_spread"
    }  # fmt: skip
    assert predict_tasks(model, bursts(2048)).total_low_ns is None
    wild = entry_of(published_model(X_STAGE, reference_costs(), service_spread=7.0).pairs[0])
    with pytest.raises(DataError, match="service_spread"):
        model_of(wild)
