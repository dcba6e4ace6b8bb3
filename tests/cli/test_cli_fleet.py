"""``xstage fleet`` as a user calls it, over copies of a small simulated run."""

from __future__ import annotations

import json
import shutil


def test_a_fleet_of_copies(xstage, small_run, tmp_path):
    for name in ("a", "b", "c", "e"):
        shutil.copytree(small_run, tmp_path / name)
    path = tmp_path / "e" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"failed_pairs": {"1>0": "lost"}}))
    done = xstage("fleet", tmp_path, "--json", "--strict")
    document = done.document()
    assert done.code == 4, "a pair failed"
    assert (document["runs"], document["simulated"], document["outliers"]) == (4, True, [])
    assert {n["drain_change"] for n in document["nodes"]} == {0.0}
    assert (tmp_path / "fleet.html").exists()
    assert json.loads((tmp_path / "fleet.json").read_text())["links"]
    few = [shutil.copytree(tmp_path / name, tmp_path / "few" / name) for name in "ab"]
    codes = [xstage("fleet", few[0].parent, *words).code for words in ((), ("--strict",))]
    assert codes == [0, 4], "two nodes were not judged"
    shutil.rmtree(tmp_path / "few")
    shutil.rmtree(tmp_path / "a" / "samples")
    broken = xstage("fleet", tmp_path, "--out", tmp_path / "out")
    assert broken.code == 1
    assert "xstage: a: it holds no samples" in broken.err
