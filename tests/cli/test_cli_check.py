"""``xstage check`` as a user calls it: exit codes, strict JSON, what is said."""

from __future__ import annotations

import json

import pytest

GOOD = "schema_version = 1\n[node]\ngpus = { min = 2 }\n[pairs]\ndrain_gb_per_s = { min = 300 }\nt0_ns = { max = 2000 }\n"


def test_a_sound_run(xstage, small_run):
    done = xstage("check", small_run, "--json")
    document = done.document()
    assert done.code == 0, document
    assert document["simulated"] is True
    assert [(f["check"], f["status"]) for f in document["findings"] if f["status"] != "ok"] == [("pair 0>1 model", "warn")]
    assert "not judged" in str(document["findings"])  # it has no hold-out


@pytest.mark.parametrize(
    ("change", "code", "strict", "said"),
    [
        ({"complete": False}, 0, 4, "complete: try: xstage run --resume"),
        ({"failed_pairs": {"0>1": "lost stores"}}, 4, 4, "lost stores"),
    ],
    ids=["interrupted", "a failed pair"],
)
def test_what_warns_and_what_fails(xstage, run_copy, change, code, strict, said):
    path = run_copy / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = xstage("check", run_copy)
    assert done.code == code
    assert said in done.out
    assert xstage("check", run_copy, "--strict").code == strict


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [(GOOD, 4, "fail"), (GOOD.replace("[pairs]", '[pair."0>1"]'), 0, "pass"), (GOOD.replace("300", "400"), 4, "fail")],
    ids=["a planned pair without numbers", "one pair", "too much"],
)
def test_limits(xstage, small_run, tmp_path, text, code, verdict):
    """The small run measured 0>1 alone of a node with two pairs: a rule for all pairs fails for the other."""
    path = tmp_path / "limits.toml"
    path.write_text(text)
    done = xstage("check", small_run, "--limits", path, "--json")
    assert (done.code, done.document()["verdict"]) == (code, verdict)


def test_a_limits_file_that_is_none(xstage, small_run, tmp_path):
    (tmp_path / "bad.toml").write_text("schema_version = 1\n[pairs]\nspeed = { min = 1 }\n")
    xstage("check", small_run, "--limits", tmp_path / "bad.toml").refused(1, "knows no quantity 'speed'")
    xstage("check", small_run, "--limits", tmp_path / "none.toml").refused(2, "none.toml")
