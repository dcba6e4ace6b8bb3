"""xstage diagnose as a user calls it: six numbers, a trace, stamps with their time line, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import h200
import pytest

MODEL = h200.MODEL
SIX = ("--local-us", "843", "--remote-us", "1067", "--bytes", "67108864", "--tiles", "1024", "--warps", "8")
STAMPS = Path(__file__).parents[1] / "data" / "tiles.npz"


def test_six_numbers(xstage):
    done = xstage("diagnose", MODEL, *SIX)
    assert done.code == 0, done.err
    for words in (
        "the stores cost 224.0 us, 21.0 % of the time",
        "stalls: yes",
        "outstanding capacity",
        "not determined: late operands, publishing, SMs out of step",
        "SMs that should store",
    ):
        assert words in done.out, words
    document = xstage("diagnose", MODEL, *SIX, "--json").document()
    assert (document["stalls"], document["simulated"]) == ("yes", False)
    assert [p["cause"] for p in document["parts"]][:2] == ["capacity", "drain"]
    assert document["advice"]["advised_total_ns"] <= document["advice"]["total_ns"]
    twin = xstage("diagnose", MODEL, *SIX[:3], "844", *SIX[4:], "--json").document()
    assert (twin["stalls"], twin["advice"]) == ("no", None)


def test_a_model_without_a_node_model_diagnoses_and_says_why_it_does_not_advise(xstage, tmp_path):
    model = json.loads(MODEL.read_text())
    model["pairs"] = [{**pair, "node": {}, "node_basis": None} for pair in model["pairs"]]
    (tmp_path / "model.json").write_text(json.dumps(model))
    done = xstage("diagnose", tmp_path / "model.json", *SIX, "--json")
    assert done.code == 0, done.err
    assert "no advice: the model has no node model of pair 0>1" in done.err
    document = done.document()
    assert (document["stalls"], document["advice"]) == ("yes", None)
    assert "no least loss is predicted" in document["notes"][0]


def test_kernels_of_one_trace_or_of_two(xstage, tmp_path):
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"grid": [1024, 1, 1]}}
    runs = [{**event, "name": name, "ts": 9.0 * i, "dur": us + i} for i in range(4) for name, us in (("a_local", 840), ("a_remote", 1066))]
    for name, part in (("both", runs), ("here", runs[::2]), ("there", runs[1::2])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": part}))
    both = xstage("diagnose", MODEL, tmp_path / "both.json", "--bytes", "67108864", "--json").document()
    two = ("--local", tmp_path / "here.json", "--local-kernel", "a_local", "--bytes", "67108864")
    assert xstage("diagnose", MODEL, tmp_path / "there.json", *two, "--json").document() == both
    assert both["lost_ns"] == pytest.approx(226e3)
    alone = xstage("diagnose", MODEL, tmp_path / "there.json", "--bytes", "67108864")
    assert "stalls: not determined; V/R is 17% of the time" in alone.out
    same = xstage("diagnose", MODEL, tmp_path / "both.json", "--bytes", "67108864", "--local-kernel", "a_remote")
    same.refused(2, "a_remote is both kernels")


def test_stamps_and_their_time_line(xstage, tmp_path):
    done = xstage("diagnose", MODEL, STAMPS, "--local", STAMPS, "--trace", tmp_path / "t.json", "--json")
    assert done.code == 0, done.err
    document = done.document()
    assert (document["source"], document["lost_ns"]) == ("time line", 0.0)
    assert document["stalls"] == "no"
    processes = {e["pid"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert processes == {1, 2}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "without a time line these are needed: --remote-us, --bytes, --tiles"),
        ((*SIX, "--trace", "t.json"), 2, "two timings have no time line"),
        ((*SIX[:6], "--tiles", "99999999"), 2, "tiles cannot store"),
        ((STAMPS, "--remote-us", "5"), 2, "--remote-us is for two timings"),
        ((STAMPS, "--local", h200.MODEL), 1, "is no whole trace"),
        ((*SIX, "--pair", "5>6"), 2, "the model has no pair 5>6"),
    ],
)
def test_what_cannot_be_meant_is_refused(xstage, tmp_path, words, code, said):
    xstage("diagnose", MODEL, *words, cwd=tmp_path).refused(code, said)
