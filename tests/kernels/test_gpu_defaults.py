"""What rests on numbers of another GPU says so: task costs, late operands, and the tuned constants of both fused kernels."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from other_gpus import RECORDED, write_model

from xstage_bench.io.json_file import read_json
from xstage_bench.judge.check import criticise
from xstage_bench.judge.compare import Comparison, Side
from xstage_bench.kernels import session
from xstage_bench.kernels.attention import run as ulysses_run
from xstage_bench.kernels.attention.attention import TUNED as ATTENTION
from xstage_bench.kernels.attention.attention import builds_of
from xstage_bench.kernels.attention.forecast import add_forecasts
from xstage_bench.kernels.moe import run as moe_run
from xstage_bench.kernels.moe.forecast import STORING_WARPS, forecast_notes
from xstage_bench.kernels.moe.measure import link_rate
from xstage_bench.kernels.moe.tuned import TUNED as MOE
from xstage_bench.measure.survey import SurveyDocument
from xstage_bench.model.document import load_model
from xstage_bench.model.stage import stage_at
from xstage_bench.model.tasks.costs import AHEAD, reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.record.manifest import Manifest
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.workloads.moe import moe_tasks

MODEL = load_model(RECORDED)


@pytest.mark.parametrize(("gpu", "this"), [("NVIDIA H200", "this is another NVIDIA H200"), ("NVIDIA H20", "this is NVIDIA H20")])
def test_costs_of_another_node_are_named_with_their_gpu(gpu, this):
    model, tasks = replace(MODEL, gpu=gpu), moe_tasks("dit-moe-xl", tokens_per_rank=16, ep=4, producers=8)
    found = predict_tasks(model, tasks, twin=False)
    (note,) = found.notes
    assert "turn_cycles" in note
    assert f"was measured on NVIDIA H200, not on this node; {this}" in note
    assert found.document()["costs_from"] == "NVIDIA H200"
    known = reference_costs()
    late = replace(known, instrument=known.instrument | {AHEAD: replace(known.total_error, value=2000.0)})
    notes = predict_tasks(model, tasks, costs=late, twin=False).notes
    assert len(notes) == (1 if gpu == "NVIDIA H200" else 2)
    passes = "bytes that a late operand passes 9000 (6500 to 11000) B"
    assert f"late operands by defaults measured on NVIDIA H200, this is {gpu}: {passes}" in notes[-1]
    assert forecast_notes(model)[-1] == notes[-1]


def test_the_bound_divides_by_the_models_rate_and_says_so_where_it_cannot():
    assert link_rate(MODEL, "NVIDIA H20", 132) == (stage_at(MODEL, 132, STORING_WARPS).rate_gb_per_s, "R of the model")
    for gpu, sms, default, words in (
        ("NVIDIA H200", 132, 355, "measured"),
        ("NVIDIA B200", 148, 900, "default of NVIDIA B200, datasheet"),
        ("NVIDIA X1", 96, 355, "measured on NVIDIA H200, this is NVIDIA X1"),
    ):
        rate, source = link_rate(None, gpu, sms)
        assert (rate, words in source) == (default, True)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H20"])
def test_the_document_of_a_layer_names_what_was_tuned_elsewhere(tmp_path, monkeypatch, gpu):
    jobs = []
    seen = [{"index": i, "name": gpu, "uuid": f"GPU-{i}", "pci_address": None} for i in (0, 1)]
    monkeypatch.setattr(session, "snapshot", lambda: {"gpus": seen})
    monkeypatch.setattr(moe_run, "recorded", lambda work, job, document: jobs.append(job) or iter(()))
    said = []
    model = write_model(tmp_path / "model.json", gpu, 132)
    document = moe_run.run([], tmp_path / "moe.json", moe_run.SuiteOptions(model=model), say=said.append)
    assert jobs[0]["gpu"] == gpu
    head = read_json(tmp_path / "moe.json", SurveyDocument)
    assert (head.kind, head.complete, [g.name for g in head.node.gpus]) == ("moe", True, [gpu, gpu])
    tuned = read_json(tmp_path / "moe.json", dict)["tuned"]
    assert tuned["gpus"] == [gpu]
    assert len(tuned["constants"]) == len(MOE)
    assert all(c["source"] and c["gpu"] == "NVIDIA H200" for c in tuned["constants"])
    assert (tuned["note"] is None) == (gpu == "NVIDIA H200")
    assert any(f"this is {gpu}" in note for note in document["forecast_notes"])
    assert any("shorter ring of stages from 150" in line for line in said) == (gpu == "NVIDIA H20")


def test_a_resumed_layer_keeps_its_rows_and_has_the_head_of_the_call_that_finished_it(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "snapshot", lambda: {"gpus": []})
    row = {"key": "a"}
    monkeypatch.setattr(moe_run, "recorded", lambda work, job, document: iter([("row", row)] if "a" not in job["done"] else []))
    path = tmp_path / "moe.json"
    moe_run.run([], path, moe_run.SuiteOptions(), argv=["first"], say=lambda text: None)
    again = moe_run.run([], path, moe_run.SuiteOptions(), resume=True, argv=["second"], say=lambda text: None)
    assert (again["rows"], again["argv"], again["complete"]) == ([row], ["second"], True)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H100 PCIe"])
def test_the_document_of_attention_names_what_was_tuned_elsewhere(monkeypatch, gpu):
    monkeypatch.setattr(session, "snapshot", lambda: {"gpus": [], "nvml": None})
    facts = {"gpus": [{"index": 0, "name": gpu, "sms": 114}], "nccl": None, "cuda_sources": "x"}
    monkeypatch.setattr(ulysses_run, "recorded", lambda work, job, document: iter([("facts", facts)]))
    document = ulysses_run.run([], seconds_per_case=1, seed=0)
    assert (document["tuned"]["note"] is None) == (gpu == "NVIDIA H200")
    values = [rate for d in (128, 64) for rate in builds_of(d, "st.v4").values()]
    assert [c["value"] for c in document["tuned"]["constants"]] == values == [d.value for d in ATTENTION]
    add_forecasts(document, replace(MODEL, gpu=gpu))
    assert any(f"{gpu}" in note for note in document["forecast_notes"])


def run_of(gpu: str, sms: int = 132) -> SimpleNamespace:
    """A recorded run of one plain sweep, as far as its findings look at it."""
    gpus = tuple(Gpu(i, gpu, tuple(range(sms)), 1980.0) for i in range(2))
    manifest = Manifest(backend="cuda", simulated=False, node=Node(gpus, ((0, 1), (1, 0)), 32.0, line_rate_gb_per_s=478.1), complete=True)
    rows = {"source": 0, "destination": 1, "kind": "measure", "status": "ok", "probe": "isolated", "start": "isolated", "burst": 0}
    rows |= {"bytes": 32768, "producers": sms, "warps": 4, "gap_cycles": np.nan, "sm_clock_mhz": 1980.0, "issue_mean_cycles": 700.0}
    samples = pd.DataFrame([{**rows, "schedule": f"s{i % 4}", "process": i % 3, "order": i} for i in range(120)])
    return SimpleNamespace(manifest=manifest, samples=lambda: samples, changed=list)


@pytest.mark.parametrize(("gpu", "elsewhere"), [("NVIDIA H200", False), ("NVIDIA H200 (simulated)", False), ("NVIDIA B200", True)])
def test_findings_say_whose_limits_they_are_held_against(gpu, elsewhere):
    found = {f.check: f for f in criticise(run_of(gpu), None)}
    assert ("limits" in found) == elsewhere
    assert (f"measured on NVIDIA H200; this is {gpu}" in found["link sleep"].detail) == elsewhere
    assert "no silence above 50 ms" in found["link sleep"].detail
    if elsewhere:
        assert found["limits"].status == "ok"
        assert f"measured on NVIDIA H200; this is {gpu}: spread within a process 0.02" in found["limits"].detail


def test_a_comparison_says_whose_spread_it_takes_in():
    def notes(gpu: str, manifest: Manifest | None = None) -> list[str]:
        side = Side("x", replace(MODEL, gpu=gpu), manifest)
        return Comparison(side, side, 0.05, []).notes

    assert notes("NVIDIA H200") == []
    assert notes("NVIDIA H20") == [
        "the verdicts take in a number measured on NVIDIA H200; this is NVIDIA H20: spread between nodes 0.005 relative"
    ]
    (same,) = notes("NVIDIA H20", run_of("NVIDIA H20").manifest)
    assert "spread between runs 0.002" in same
