"""xstage advise as a user calls it: text, JSON, figure, task files, refusals."""

from __future__ import annotations

import h200

from xstage_bench.schedule.task_files import load_tasks, save_tasks
from xstage_bench.workloads.moe import moe_tasks

MODEL = h200.MODEL
JOB = ("--bytes", "28672", "--tile-ns", "4190", "--tiles", "8", "--quiet-tile-ns", "11180", "--quiet-tiles", "6")


def test_a_job_in_words_with_a_figure(xstage, tmp_path):
    done = xstage("advise", MODEL, *JOB, "--with-stores-ns", "9000", "--figure", tmp_path / "a.png", "--out", tmp_path / "t.json")
    assert done.code == 0, done.err
    for words in ("limited by the compute", "largest stall-free burst", "smallest gap", "minimum lead", "SMs that should store", "gain"):
        assert words in done.out, words
    assert "4810 ns a storing tile" in done.out
    assert (tmp_path / "a.png").stat().st_size > 10000
    (advised,) = load_tasks(tmp_path / "t.json")
    assert advised.task_count == 132 * 14


def test_a_job_as_json(xstage):
    done = xstage("advise", MODEL, *JOB, "--json")
    assert done.code == 0, done.err
    d = done.document()
    assert d["simulated"] is False
    assert d["limited_by"] == "compute"
    assert d["job"]["bytes"] == 28672
    assert d["tasks"]["advised_total_ns"] <= d["tasks"]["total_ns"]
    assert d["tasks"]["helps"] is True
    assert len(d["tasks"]["candidates"]) >= 7


def test_a_task_file_becomes_the_advised_one(xstage, tmp_path):
    schedule = moe_tasks("keye-vl-2", tokens_per_rank=256, ep=8)
    save_tasks(tmp_path / "s.json", [schedule])
    done = xstage("advise", MODEL, tmp_path / "s.json", "--json", "--out", tmp_path / "out.json", "--figure", tmp_path / "f.svg")
    assert done.code == 0, done.err
    (row,) = done.document()["schedules"]
    assert row["schedule"] == schedule.key()
    (advised,) = load_tasks(tmp_path / "out.json")
    assert row["advised_schedule"] == advised.key()
    assert advised.volume_bytes == schedule.volume_bytes
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    text = xstage("advise", MODEL, tmp_path / "s.json")
    assert f"{schedule.task_count} tasks of 132 SMs" in text.out


def test_a_file_and_a_job_exclude_each_other(xstage, tmp_path):
    save_tasks(tmp_path / "s.json", [moe_tasks("dit-moe-xl", tokens_per_rank=64, ep=8)])
    done = xstage("advise", MODEL, tmp_path / "s.json", *JOB)
    done.refused(2, "a schedule file says what is stored")
