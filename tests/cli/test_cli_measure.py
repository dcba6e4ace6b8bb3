"""``xstage measure`` and ``--peer host``: the real command line on the simulator."""

from __future__ import annotations

import json

FEW = ("--processes", "2", "--repetitions", "4")
PAIR = ("--backend", "sim", "--pattern", "pair", "--bytes", "65536", *FEW)


def test_an_incast_of_eight_gpus(xstage, tmp_path):
    out = tmp_path / "incast.json"
    words = ("--backend", "sim:h200-nvswitch-x8", "--pattern", "incast", "--destination", "3", "--out", out, "--json")
    done = xstage("measure", "scenes", *words, *FEW)
    assert done.code == 0, done.err
    assert "SIMULATED" in done.err
    document = done.document()
    assert document == json.loads(out.read_text())
    assert document["simulated"] is True
    (row,) = document["rows"]
    assert {s["destination"] for s in row["schedules"]} == {3}
    assert sorted(s["source"] for s in row["schedules"]) == [0, 1, 2, 4, 5, 6, 7]
    for s in row["schedules"]:
        assert s["gb_per_s"]["low"] < s["gb_per_s"]["value"] < s["gb_per_s"]["high"]
        assert s["gb_per_s"]["value"] < 60
    assert row["total_gb_per_s"]["value"] < 380


def test_every_pattern_is_the_default_and_the_table_says_simulated(xstage):
    done = xstage("measure", "scenes", "--backend", "sim", "--bytes", "65536", *FEW)
    assert done.code == 0
    assert done.out.startswith("backend sim:h200-nv18-x2, SIMULATED")
    for name in ("pair 0>1", "both directions", "fan-out", "incast", "all-to-all", "ring"):
        assert name in done.out


def test_host_memory_gets_a_profile(xstage, tmp_path):
    run = tmp_path / "run"
    words = ("--backend", "sim", "--peer", "host", "--pairs", "0:host", "--quick", "--only", "isolated", "--out", run)
    done = xstage("profile", *words, "--json")
    assert done.code == 0, done.err
    assert "HOST MEMORY" in done.err
    assert {row["pair"] for row in done.document()["headline"]} == {"0>-1"}
    assert json.loads((run / "manifest.json").read_text())["options"]["peer"] == "host"
    assert "GPU 0 → host memory" in (run / "report.html").read_text()
    again = xstage("run", "--backend", f"replay:{run}", "--out", tmp_path / "again")
    assert again.code == 0, again.err


def test_pairs_understand_host(xstage):
    plan = ("plan", "--backend", "sim", "--quick", "--pairs")
    assert xstage(*plan, "1:host", "--peer", "host", "--json").document()["pairs"] == ["1>-1"]
    xstage(*plan, "0:host").refused(2, "cannot be measured")
    assert xstage(*plan, "host:0").code == 2


def test_a_spelling_of_before_works_and_says_the_new_one(xstage):
    done = xstage("scene", *PAIR)
    assert done.code == 0
    assert done.err.startswith("'xstage scene' is now 'xstage measure scenes'")
    assert "pair 0>1" in done.out


def test_a_study_and_a_probe_are_measured_by_their_names(xstage, tmp_path):
    study = xstage("measure", "directions", "--backend", "sim", "--quick", "--repetitions", "2", "--json")
    assert study.code == 0, study.err
    assert len(study.document()["rows"]) > 10
    probe = xstage("measure", "timer", "--backend", "sim", "--quick", "--out", tmp_path / "run", "--json")
    assert probe.code == 0, probe.err
    assert (tmp_path / "run" / "manifest.json").exists()
    assert "--only" not in xstage("measure", "timer", "--help").out


def test_a_document_becomes_a_page(xstage, tmp_path):
    out = tmp_path / "pair.json"
    assert xstage("measure", "scenes", *PAIR, "--out", out).code == 0
    done = xstage("report", out, "--json")
    assert done.document()["files"]["report"] == str(tmp_path / "pair.html")
    assert "SIMULATED" in (tmp_path / "pair.html").read_text()
