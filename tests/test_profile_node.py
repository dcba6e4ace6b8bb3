"""``make profile-node``: one call for a whole node, on the simulated one of eight GPUs."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import profile_node
import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "profile_node.py"
EIGHT = "sim:h200-nvswitch-x8"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment, timeout=200)


def test_the_steps_of_a_node_fit_into_its_time(tmp_path: Path) -> None:
    for gpus, ranks in ((2, "2"), (3, "2"), (4, "4"), (8, "8"), (16, "8")):
        steps = profile_node.steps_of("auto", gpus, tmp_path, 540.0)
        assert sum(s.share for s in steps) <= 1.0
        assert [s.words[s.words.index("--sp") + 1] for s in steps if s.name == "ulysses"] == [ranks]
        assert [s.words[s.words.index("--ep") + 1] for s in steps if s.name == "moe"] == [ranks]
    # No simulator answers for the fused kernels.
    assert not {"ulysses", "moe"} & {s.name for s in profile_node.steps_of(EIGHT, 8, tmp_path, 540.0)}


def test_eight_simulated_gpus_at_once_are_measured_and_packed(tmp_path: Path) -> None:
    done = call("--backend", EIGHT, "--out", str(tmp_path / "node"), "--only", "topo", "--only", "scenes-16384")
    assert done.returncode == 0, done.stderr
    steps = json.loads((tmp_path / "node" / "steps.json").read_text())["steps"]
    assert [(s["name"], s["status"]) for s in steps] == [("topo", "ok"), ("scenes-16384", "ok")]
    scenes = json.loads((tmp_path / "node" / "scenes-16384.json").read_text())
    assert scenes["simulated"] is True
    assert {row["name"] for row in scenes["rows"]} >= {"fan-out of 0", "incast to 0", "all-to-all of 8", "ring of 8"}
    assert done.stdout.strip() == str(tmp_path / "node.tar.gz")
    with tarfile.open(tmp_path / "node.tar.gz") as packed:
        assert "node/scenes-16384.json" in packed.getnames()


def test_a_step_over_its_time_or_failing_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_node, "GRACE_S", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    long = profile_node.Step("long", ("profile", "--backend", EIGHT, "--out", str(tmp_path / "long")), 0.0)
    assert profile_node.execute(long, tmp_path, 1.0).status == "over its time"
    monkeypatch.setattr(profile_node, "GRACE_S", 60.0)
    assert profile_node.execute(profile_node.Step("wrong", ("fit", str(tmp_path / "none")), 0.1), tmp_path, 1.0).status == "failed"
    assert "no such" in (tmp_path / "wrong.err").read_text()


def test_what_is_refused(tmp_path: Path) -> None:
    assert "no step wrong" in call("--backend", EIGHT, "--out", str(tmp_path / "a"), "--only", "wrong").stderr
    assert not (tmp_path / "a").exists()
    assert "is there already" in call("--backend", EIGHT, "--out", str(tmp_path)).stderr
