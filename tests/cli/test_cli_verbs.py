"""Every verb does its work: a quick profile of the simulator, its files, and what can be made from it on a machine with nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys

import pytest
from loaded import PROFILE, environ, strict

from xstage_bench.model.document import digest, load_model
from xstage_bench.record.reader import load_run


def test_profile_makes_everything_and_says_that_it_is_simulated(profiled):
    done, folder = profiled
    names = {p.name for p in folder.iterdir()}
    assert {"manifest.json", "samples", "producers", "model.json", "validation.json", "figures", "report.html"} <= names
    assert not [p for p in folder.rglob("*") if ".tmp" in p.name]
    assert any((folder / "figures").glob("*.png"))
    document = done.document()
    assert (document["run"], document["complete"], document["failed_pairs"]) == (str(folder), True, {})
    assert {row["pair"] for row in document["headline"]} == {"0>1"}
    assert (
        250 < max(row["drain_gb_per_s"] or 0.0 for row in document["headline"]) < 478
    )  # the simulated link drains at most at its line rate
    manifest = strict((folder / "manifest.json").read_text())
    assert document["simulated"] is manifest["simulated"] is True
    assert {strict((folder / f"{name}.json").read_text())["backend"] for name in ("manifest", "model", "validation")} == {
        "sim:h200-nv18-x2"
    }
    assert "SIMULATED: backend sim:h200-nv18-x2" in done.err
    assert "SIMULATED" in (folder / "report.html").read_text().upper()
    assert manifest["argv"][:2] == ["xstage", "profile"]
    assert set(manifest["environment_before"]) == {"captured", "system", "versions", "variables", "nvml", "reason", "gpus"}
    assert "PATH" not in manifest["environment_before"]["variables"]


def test_a_missing_number_is_null_in_every_file(profiled):
    def walk(value):
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                walk(part)
        else:
            assert value not in ("N/A", "NaN", "nan", "inf", "Infinity")

    files = sorted(profiled[1].rglob("*.json"))
    assert len(files) >= 3
    for path in files:
        walk(strict(path.read_text()))


def test_report_is_one_self_contained_page(profiled, xstage):
    _, folder = profiled
    page = (folder / "report.html").read_text()
    assert "<svg" in page or "data:image" in page
    assert 'src="http' not in page
    assert "<link" not in page
    done = xstage("report", folder, "--out", "-")
    assert done.code == 0, done.err
    assert done.out == page  # the same run, model and validation draw the same bytes


def test_fit_is_reproducible_and_by_default_what_profile_fitted(profiled, xstage, tmp_path):
    _, folder = profiled
    first, second = (xstage("fit", folder, "--resamples", 20, "--out", "-") for _ in range(2))
    assert first.code == 0, first.err
    assert first.out == second.out
    assert first.document()["pairs"]
    assert xstage("fit", folder, "--out", tmp_path / "again.json").code == 0
    assert digest(load_model(tmp_path / "again.json")) == digest(load_model(folder / "model.json"))


def test_validate_reports_held_out_errors(profiled, xstage, tmp_path):
    _, folder = profiled
    done = xstage("validate", folder, "--json", "--out", tmp_path / "v.json")
    assert done.code == 0, done.err
    score = {m["model"]: m for m in done.document()["models"]}["burst_gap"]
    assert score["n_schedules"] > 0
    assert score["issue_time"]["median_error"] > 0  # a model of three parameters is never exact on held-out schedules
    assert (tmp_path / "v.json").read_text() == (folder / "validation.json").read_text()


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("json", b'{"producers": 132, "warps": 4, "bursts": [{"bytes": 2048}, {"bytes": 262144}]}'),
        ("csv", b"\xef\xbb\xbfproducers,warps,bytes\r\n132,4,2048\r\n132,4,262144\r\n"),
    ],
)
def test_predict_a_schedule_file(profiled, xstage, tmp_path, form, content):
    _, folder = profiled
    path = tmp_path / f"s.{form}"
    path.write_bytes(content)
    done = xstage("predict", folder, path, "--json")
    assert done.code == 0, done.err
    (schedule,) = done.document()["schedules"]
    small, large = (burst["issue_cycles"] for burst in schedule["bursts"])
    assert 0 < small < large
    assert "issue_cycles" in xstage("predict", folder / "model.json", path).out


def test_predict_says_what_it_extrapolates(profiled, xstage, tmp_path):
    """Within what was measured it says nothing of it; beyond, how many schedules, and each of their bursts."""
    _, folder = profiled
    path = tmp_path / "s.json"
    ((_, most),) = {tuple(p["calibrated_range"]["bytes"]) for p in json.loads((folder / "model.json").read_text())["pairs"]}
    inside, beyond = ({"producers": 132, "warps": 4, "bursts": [{"bytes": 65536}, {"bytes": size}]} for size in (32768, most + 2048))
    for schedules, said in (([inside], None), ([inside, beyond], "1 of 2 schedules outside")):
        path.write_text(json.dumps({"schema_version": 1, "schedules": schedules}))
        done = xstage("predict", folder, path, "--json")
        assert done.code == 0, done.err
        assert ("schedules outside" in done.err) == (said is not None)
        assert (said or "") in done.err
        assert [s["bursts"][-1]["in_calibrated_range"] for s in done.document()["schedules"]] == [s is inside for s in schedules]


def test_export_agrees_with_the_samples(profiled, xstage):
    _, folder = profiled
    document = xstage("export", folder).document()
    rows = list(csv.DictReader(io.StringIO(xstage("export", folder, "--format", "csv").out)))
    assert len(rows) == len(document["rows"]) > 100
    assert rows[5]["schedule"] == document["rows"][5]["schedule"]
    assert float(rows[5]["issue_mean_cycles"]) == document["rows"][5]["issue_mean_cycles"]
    producers = xstage("export", folder, "--table", "producers", "--format", "csv").out
    assert producers.startswith("schedule,")
    assert "smid" in producers.splitlines()[0]


def test_a_run_can_be_replayed(profiled, xstage, tmp_path):
    _, folder = profiled
    out = tmp_path / "again"
    done = xstage("run", *(w if w != "sim" else f"replay:{folder}" for w in PROFILE), "--out", out, "--json")
    assert done.code == 0, done.err
    assert done.document()["simulated"] is True
    assert "SIMULATED" in done.err
    model = xstage("fit", out, "--resamples", 20, "--out", "-").document()
    assert model["backend"].endswith("(simulated)")  # the backend's name alone would not say it


def test_plan_measures_nothing_and_agrees_with_the_run(profiled, xstage, tmp_path):
    plan = xstage("plan", *PROFILE, "--json", cwd=tmp_path).document()
    assert list(tmp_path.iterdir()) == []
    assert set(plan["probes"]) == {"isolated", "holdout", "timer", "runner"}
    counts = load_run(profiled[1]).manifest.counts
    assert (plan["schedules"], plan["executions"]) == (counts["schedules"], counts["executions"])
    took = sum(f.stat().st_size for f in (*profiled[1].glob("*/part-*"), *profiled[1].glob("traces*")))
    assert plan["folder_bytes"] == pytest.approx(took, rel=0.25)
    again = xstage("plan", "--backend", f"replay:{profiled[1]}", "--json").document()
    assert (again["schedules"], again["executions"]) == (counts["schedules"], counts["executions"])


@pytest.mark.parametrize("words", [("probes",), ("topo", "--backend", "sim"), ("plan", "--backend", "sim", "--quick"), ("doctor",)])
def test_text_and_json_of_the_verbs_that_only_look(xstage, words):
    text = xstage(*words).out
    assert text.strip()
    assert not text.startswith("{")
    assert xstage(*words, "--json").document()


def test_a_budget_ends_a_run_early_and_says_so(xstage, tmp_path):
    words = ("--backend", "sim", "--pairs", "0:1", "--only", "isolated")
    planned = xstage("plan", *words, "--json").document()["executions"]
    done = xstage("run", *words, "--budget", "0.01", "--out", tmp_path / "r", "--json")
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert any("budget" in note for note in manifest["notes"])
    assert manifest["counts"]["executions"] < planned / 2


def test_the_default_folder_is_new_and_dated(xstage, tmp_path):
    assert xstage("run", "--backend", "sim", "--quick", "--only", "timer", "--pairs", "0:1", cwd=tmp_path).code == 0
    (folder,) = (tmp_path / "xstage-runs").iterdir()
    assert (folder / "manifest.json").exists()


def test_analysis_needs_neither_gpu_software_nor_a_display(profiled, tmp_path):
    """CuPy, the CUDA bindings and NVML cannot be imported, and there is no display: fit, predict, report and help still work."""
    _, folder = profiled
    schedule, page = tmp_path / "s.csv", tmp_path / "r.html"
    schedule.write_text("producers,bytes,warps\n132,65536,4\n")
    blind = "import sys\nfor name in ('cupy', 'cuda', 'pynvml'): sys.modules[name] = None\n"
    script = f"{blind}from xstage_bench.cli import main\nmain(sys.argv[1:])"
    alone = {k: v for k, v in environ().items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")}
    fit, predict = ("fit", folder, "--resamples", "20", "--out", tmp_path / "m.json"), ("predict", tmp_path / "m.json", schedule)
    for words in (("--help",), fit, predict, ("report", folder, "--out", page), ("topo",)):
        done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, env=alone, timeout=240)
        assert done.returncode == 0, (words, done.stderr)
    assert page.stat().st_size > 10000


def test_progress_is_drawn_on_a_terminal_only(tmp_path):
    main, side = pty.openpty()
    command = [sys.executable, "-m", "xstage_bench", "run", "--backend", "sim", "--quick", "--only", "timer", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=side, env=environ(TERM="xterm"), timeout=120)
    os.close(side)
    seen = b""
    try:
        while part := os.read(main, 65536):
            seen += part
    except OSError:
        pass  # the other end is closed
    os.close(main)
    assert done.returncode == 0
    assert b"process" in seen
    assert b"\x1b[" in seen
    assert b"\x1b[" not in done.stdout
