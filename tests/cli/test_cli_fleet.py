"""``xstage fleet`` as a user calls it, over copies of a small simulated run."""

from __future__ import annotations

import json
import shutil


def test_a_fleet_of_copies(xstage, small_run, tmp_path, strictly):
    for name in ("a", "b", "c", "d", "e"):
        shutil.copytree(small_run, tmp_path / name)
    path = tmp_path / "e" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"failed_pairs": {"1>0": "lost"}}))
    done = xstage("fleet", tmp_path, "--json")
    document = strictly(done.out)
    assert done.code == 0, done.err
    assert document["runs"] == 5
    assert document["simulated"] is True
    assert document["outliers"] == []
    assert {n["drain_change"] for n in document["nodes"]} == {0.0}
    assert (tmp_path / "fleet.html").exists()
    assert strictly((tmp_path / "fleet.json").read_text())["links"]
    assert xstage("fleet", tmp_path, "--strict").code == 4, "a pair failed"
    again = xstage("fleet", tmp_path, "--out", tmp_path / "out")
    assert again.code == 0, "fleet.json is not taken for a run"
    shutil.rmtree(tmp_path / "a" / "samples")
    broken = xstage("fleet", tmp_path)
    assert broken.code == 1
    assert "xstage: a: it holds no samples" in broken.err


def test_no_fleet(xstage, tmp_path):
    assert xstage("fleet", tmp_path / "none").code == 2
    assert xstage("fleet", tmp_path).code == 2
