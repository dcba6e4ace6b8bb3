"""What judges is fresh: every run draws its own hold-out, and what resumes or replays a run keeps that run's."""

from __future__ import annotations

import json

import pytest

from xstage_bench.cli import run
from xstage_bench.device.replay import find_run
from xstage_bench.record.reader import load_run

WORDS = ("--backend", "sim", "--quick", "--only", "holdout_tiny", "--only", "timer", "--pairs", "0:1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "run"
    assert run(["run", *WORDS, "--out", str(folder)]) == 0
    return folder


def document(capsysbinary):
    return json.loads(capsysbinary.readouterr().out)


def schedules(folder):
    samples = load_run(folder).samples()
    return set(samples[samples["probe"] == "holdout_tiny"]["schedule"])


def test_two_plans_draw_two_seeds_and_a_typed_one_is_taken(capsysbinary):
    found = []
    for words in ((), (), ("--seed", "5")):
        assert run(["plan", *WORDS, *words, "--json"]) == 0
        found.append(document(capsysbinary))
    assert len({d["seed"] for d in found}) == 3
    assert [d["fresh_seed"] for d in found] == [True, True, False]
    assert found[2]["seed"] == 5
    assert run(["plan", *WORDS]) == 0
    assert b"fresh" in capsysbinary.readouterr().out


def test_the_manifest_holds_the_seed_and_a_replay_takes_it(recorded, tmp_path, capsysbinary):
    manifest = find_run(str(recorded)).manifest
    assert manifest.options["fresh_seed"] is True
    again = tmp_path / "again"
    assert run(["run", "--backend", f"replay:{recorded}", "--out", str(again), "--json"]) == 0
    assert document(capsysbinary)["seed"] == manifest.seed
    assert load_run(again).manifest.seed == manifest.seed
    assert schedules(again) == schedules(recorded)


def test_the_same_seed_is_the_same_hold_out_and_another_is_not(recorded, tmp_path):
    seed = load_run(recorded).manifest.seed
    for typed, same in ((seed, True), ((seed + 1) % 2**32, False)):
        folder = tmp_path / str(typed)
        assert run(["run", *WORDS, "--seed", str(typed), "--out", str(folder)]) == 0
        assert (schedules(folder) == schedules(recorded)) is same


def test_a_resumed_run_keeps_its_seed_and_a_typed_other_one_is_refused(tmp_path, capsysbinary):
    folder = tmp_path / "run"
    assert run(["run", *WORDS, "--budget", "0.05", "--out", str(folder)]) == 0
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"complete": False}))
    before = schedules(folder)
    capsysbinary.readouterr()
    assert run(["run", *WORDS, "--resume", "--seed", str((manifest["seed"] + 1) % 2**32), "--out", str(folder)]) == 2
    assert b"seed was" in capsysbinary.readouterr().err
    assert run(["run", *WORDS, "--resume", "--out", str(folder)]) == 0
    assert load_run(folder).manifest.seed == manifest["seed"]
    after = schedules(folder)
    assert before < after
    assert len(after) == 30, "all processes have the one hold-out"
