"""`xstage profile` on a simulated instrument that stamps "issued" where the model means "taken": exit 4, and what it says."""

import dataclasses
import json

import pytest
from gate_world import World, record

from xstage_bench import profile
from xstage_bench.cli import run
from xstage_bench.device.sim import presets
from xstage_bench.model.document import load_model
from xstage_bench.record.reader import load_run
from xstage_bench.show.report import render_report

NAME = "h200-issued"
WORDS = ("--backend", f"sim:{NAME}", "--quick", "--pairs", "0:1", "--only", "isolated", "--only", "holdout", "--only", "holdout_tiny")


@pytest.fixture
def issued(monkeypatch):
    """A preset whose closing stamp does not wait for the last twelve warp-stores of a warp, as many as an H200 lets wait."""
    bad = dataclasses.replace(presets.PRESETS["h200-nv18-x2"], name=NAME, unawaited_bytes=12 * 512.0)
    monkeypatch.setitem(presets.PRESETS, NAME, bad)
    # What is drawn does not matter here, and takes longer than the rest.
    monkeypatch.setattr(profile, "write_report_files", lambda *_: {})


def test_profile_exits_4_and_names_what_missed(issued, tmp_path, capsysbinary):
    folder = tmp_path / "run"
    assert run(["profile", *WORDS, "--seed", "7", "--out", str(folder), "--json"]) == 4
    out, err = capsysbinary.readouterr()
    failed = [f for f in json.loads(out)["model_gate"] if f["status"] == "fail"]
    assert any("p95 error" in f["detail"] for f in failed), failed
    assert all(f["hint"] for f in failed)
    assert b"xstage: pair 0>1 model: node model, p95 error" in err
    assert load_model(folder / "model.json").find("0>1").holdout_status == "fail"
    assert run(["check", str(folder)]) == 4
    assert b"Some numbers of this run, or its model, must not be used." in capsysbinary.readouterr().out


def test_the_report_warns(tmp_path):
    """The words of the report come from the same findings as those of check."""
    folder = record(World(seed=2, issued=True, probes=("holdout",)), tmp_path / "run")
    loaded, model = load_run(folder), load_model(folder / "model.json")
    validation = profile.validate_run(loaded, model)
    page = render_report(loaded, model, validation, drawn=[])
    for words in ("missed its own hold-out: node model, p95 error", "May the model be used?", "One process against the others"):
        assert words in page
    assert "missed" not in render_report(loaded, model, None, drawn=[])
