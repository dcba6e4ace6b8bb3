"""``xstage check`` as a user calls it: exit codes, strict JSON, what is said."""

from __future__ import annotations

import json

import pytest

from xstage_bench.cli import run

GOOD = "schema_version = 1\n[node]\ngpus = { min = 2 }\n[pairs]\ndrain_gb_per_s = { min = 300 }\nt0_ns = { max = 2000 }\n"


def test_a_sound_run(xstage, small_run, strictly):
    done = xstage("check", small_run, "--json")
    document = strictly(done.out)
    assert done.code == 0, document
    assert document["simulated"] is True
    assert [(f["check"], f["status"]) for f in document["findings"] if f["status"] != "ok"] == [("pair 0>1 model", "warn")]
    assert "not judged" in str(document["findings"])  # it has no hold-out


def test_an_interrupted_run_warns_and_strict_makes_that_an_exit_4(xstage, run_copy):
    path = run_copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False}))
    done = xstage("check", run_copy)
    assert done.code == 0
    assert "complete: try: xstage run --resume" in done.out
    assert run(["check", str(run_copy), "--strict"]) == 4


def test_a_pair_that_failed_is_exit_4(run_copy, capsys):
    path = run_copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"failed_pairs": {"0>1": "lost stores"}}))
    assert run(["check", str(run_copy)]) == 4
    assert "lost stores" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [(GOOD, 0, "fail"), (GOOD.replace("[pairs]", '[pair."0>1"]'), 0, "pass"), (GOOD.replace("300", "400"), 4, "fail")],
    ids=["a planned pair without numbers", "one pair", "too much"],
)
def test_limits(small_run, strictly, tmp_path, capsysbinary, text, code, verdict):
    """The small run measured 0>1 alone of a node with two pairs: a rule for all pairs fails for the other."""
    path = tmp_path / "limits.toml"
    path.write_text(text)
    ended = run(["check", str(small_run), "--limits", str(path), "--json"])
    assert strictly(capsysbinary.readouterr().out.decode())["verdict"] == verdict
    assert ended == (4 if verdict == "fail" else code)


def test_a_limits_file_that_is_none(small_run, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("schema_version = 1\n[pairs]\nspeed = { min = 1 }\n")
    assert run(["check", str(small_run), "--limits", str(tmp_path / "bad.toml")]) == 1
    assert "knows no quantity 'speed'" in capsys.readouterr().err
    assert run(["check", str(small_run), "--limits", str(tmp_path / "none.toml")]) == 2
