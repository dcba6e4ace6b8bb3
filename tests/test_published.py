"""A model from three published numbers: it is the paper's law, and what it says of the paper's own kernels is what is written down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import moe_papers_gpu
import numpy as np
import pytest
from published_node import X_STAGE, published_model

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import read_json
from xstage_bench.kernels.moe.suite import Case
from xstage_bench.kernels.moe.summary import PAPER
from xstage_bench.model.document import Model, load_model, save
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.tasks.costs import reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.tasks import TaskSchedule

ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "published" / "x-stage-moe.json"


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
    assert entry is not None
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
    assert wild is not None
    with pytest.raises(DataError, match="service_spread"):
        model_of(wild)


def test_the_recorded_table_is_what_the_tool_makes() -> None:
    document = read_json(FILE, dict[str, Any])
    assert (document["kind"], document["from"]) == ("predicted", "published")
    assert [v["name"] for v in document["variants"]] == list(moe_papers_gpu.VARIANTS)
    for variant in document["variants"]:
        rows = {(r["shape"], r["dtype"], r["routing"], r["tokens_per_rank"]): r for r in variant["rows"]}
        assert len(rows) == 84
        assert {key[0] for key in rows} == set(PAPER)
        again = published_model(X_STAGE, reference_costs(), variant["service_spread"], loads_wait=variant["loads_wait"])
        for shape, dtype, routing in (("dit-moe", "fp8", "skewed"), ("dsv4-flash", "bf16", "balanced")):
            flops = variant["tflops_per_sm"][dtype] * 1e12
            row = moe_papers_gpu.row_of(again, Case(shape, dtype, routing, 512), X_STAGE.producers, flops)
            recorded = rows[shape, dtype, routing, 512]
            assert row["us"] == pytest.approx(recorded["us"], rel=1e-6)
            assert row["without_stores_us"] == pytest.approx(recorded["without_stores_us"], rel=1e-6)


def test_the_docs_quote_the_recorded_table() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for variant in read_json(FILE, dict[str, Any])["variants"]:
        best = moe_papers_gpu.overall(variant["rows"])
        said = " | ".join(f"{best[k]:.2f}" for k in ("geomean", "largest", "smallest"))
        assert re.search(rf"^\| [^|]*{re.escape(variant['name'])}[^|]* \| all 84 \| {re.escape(said)} \|", text, re.MULTILINE), variant[
            "name"
        ]


def test_three_numbers_of_a_measured_node_predict_its_replayed_gains() -> None:
    """The control: what the order gains in skeletons that were replayed, from T0, R and Q of that node alone."""
    from xstage_bench.measure.replay_document import read_replay
    from xstage_bench.model.run_fit import find_model

    known = moe_papers_gpu.numbers_of(find_model(ROOT / "results" / "h200-x2" / "2026-11-29-profile"))
    assert known.drain_gb_per_s == pytest.approx(369.5, abs=0.1)
    ours = published_model(known, reference_costs("spin"))
    replayed = {
        r["schedule"]: r["total_us"]["value"]
        for r in read_replay(ROOT / "results/h200-x2/replay/skeleton-block-spin/replay.json.gz")["rows"]
    }
    off = []
    for shape, dtype, flops in (
        ("keye-vl-2", "bf16", 6.0e12),
        ("keye-vl-2", "fp8", 10.5e12),
        ("hy3", "fp8", 10.5e12),
        ("glm-5.2", "fp8", 10.5e12),
    ):
        row = moe_papers_gpu.row_of(ours, Case(shape, dtype, "balanced", 512), known.producers, flops, leads=(1.0,))
        head = f"{shape}-{dtype}-512"
        off.append(moe_papers_gpu.gain(row) - replayed[f"{head}-wave"] / replayed[f"{head}-lead1"])
    assert max(abs(x) for x in off) < 0.06
