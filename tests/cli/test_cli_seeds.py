"""What judges is fresh: every run draws its own hold-out, and what resumes or replays a run keeps that run's."""

from __future__ import annotations

import json

import pytest

from xstage_bench.device.replay import find_run
from xstage_bench.record.reader import load_run

WORDS = ("--backend", "sim", "--quick", "--only", "holdout_tiny", "--only", "timer", "--pairs", "0:1")


@pytest.fixture(scope="module")
def recorded(xstage, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "run"
    assert xstage("run", *WORDS, "--out", folder).code == 0
    return folder


def schedules(folder):
    samples = load_run(folder).samples()
    return set(samples[samples["probe"] == "holdout_tiny"]["schedule"])


def test_two_plans_draw_two_seeds_and_a_typed_one_is_taken(xstage):
    found = [xstage("plan", *WORDS, *words, "--json").document() for words in ((), (), ("--seed", "5"))]
    assert len({d["seed"] for d in found}) == 3
    assert [d["fresh_seed"] for d in found] == [True, True, False]
    assert found[2]["seed"] == 5
    assert "fresh" in xstage("plan", *WORDS).out


def test_a_replay_takes_the_seed_of_the_manifest(xstage, recorded, tmp_path):
    manifest, again = find_run(str(recorded)).manifest, tmp_path / "again"
    assert manifest.options["fresh_seed"] is True
    assert xstage("run", "--backend", f"replay:{recorded}", "--out", again, "--json").document()["seed"] == manifest.seed
    assert load_run(again).manifest.seed == manifest.seed
    assert schedules(again) == schedules(recorded)


def test_the_same_seed_is_the_same_hold_out_and_another_is_not(xstage, recorded, tmp_path):
    seed = load_run(recorded).manifest.seed
    for typed, same in ((seed, True), ((seed + 1) % 2**32, False)):
        assert xstage("run", *WORDS, "--seed", typed, "--out", tmp_path / str(typed)).code == 0
        assert (schedules(tmp_path / str(typed)) == schedules(recorded)) is same


def test_a_resumed_run_keeps_its_seed_and_a_typed_other_one_is_refused(xstage, tmp_path):
    folder = tmp_path / "run"
    assert xstage("run", *WORDS, "--budget", "0.000001", "--out", folder).code == 0
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"complete": False}))
    before = schedules(folder)
    xstage("run", *WORDS, "--resume", "--seed", (manifest["seed"] + 1) % 2**32, "--out", folder).refused(2, "seed was")
    assert xstage("run", *WORDS, "--resume", "--out", folder).code == 0
    assert load_run(folder).manifest.seed == manifest["seed"]
    after = schedules(folder)
    assert before <= after
    assert len(after) == 30, "all processes have the one hold-out"
