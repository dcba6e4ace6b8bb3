"""Ctrl-C and SIGTERM keep what was measured and have their own exit codes; a resumed run is finished; a closed pipe is quiet."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time

import pytest
from loaded import PROFILE, environ

from xstage_bench.record.reader import load_run

RUN = ("run", "--backend", "sim", "--quick", "--only", "isolated", "--only", "timer", "--seed", "5")


def start(environ, *words):
    command = [sys.executable, "-m", "xstage_bench", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_measured(xstage, tmp_path, number, code):
    folder = tmp_path / "run"
    process = start(environ(), *RUN, "--out", folder)
    deadline = time.monotonic() + 60
    while not (folder / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.4)  # into the measurement, which takes seconds
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    assert "Traceback" not in err
    assert "what was measured is kept" in err
    assert f"--resume --out {folder}" in err
    partial = load_run(folder)
    assert not partial.manifest.complete
    kept = len(partial.samples())
    done = xstage(*RUN, "--resume", "--out", folder)
    assert done.code == 0, done.err
    whole = load_run(folder)
    assert whole.manifest.complete
    samples = whole.samples()
    assert len(samples) > kept
    measured = samples[(samples["kind"] == "measure")]
    assert not measured.duplicated(["schedule", "process", "repetition", "burst"]).any()
    assert any("resumed" in note for note in whole.manifest.notes)


def test_a_profile_interrupted_while_it_fits_resumes_as_it_says(small_run, xstage, python_c, tmp_path):
    """All that was measured is there, so what is left is to derive from it: the command that is printed does that."""
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder, ignore=shutil.ignore_patterns("model.json"))
    words = ("profile", *PROFILE, "--out", folder, "--resume")
    stop = (
        "import sys\nimport xstage_bench.profile as profile\nfrom xstage_bench.cli import main\n"
        "def fit_run(run): raise KeyboardInterrupt\nprofile.fit_run = fit_run\nmain(sys.argv[1:])"
    )
    stopped = python_c(stop, *words)
    assert stopped.returncode == 130, stopped.stderr
    assert f"try: the same command with --resume --out {folder}" in stopped.stderr
    assert not (folder / "model.json").exists()
    done = xstage(*words)
    assert done.code == 0, done.err
    assert (folder / "report.html").exists()


def test_a_signal_while_nothing_is_measured_leaves_nothing(tmp_path):
    """Before the run folder exists there is nothing to keep and nothing to say."""
    script = (
        "import os, signal, sys\nimport xstage_bench.device.backend as backend\n"
        "backend.resolve_backend = lambda *spec, **more: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from xstage_bench.cli import main\nmain(['run', '--out', sys.argv[1]])"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=60)
    assert done.returncode == 143
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("export", "RUN"), ("fit", "RUN", "--resamples", "20", "--out", "-"), ("probes", "--json")])
def test_a_reader_that_goes_away_is_no_error(small_run, words):
    process = start(environ(), *(small_run if w == "RUN" else w for w in words))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert [line for line in process.stderr.read().splitlines() if not line.startswith("fitting ")] == []  # where the machine is slow
    assert process.wait(timeout=60) == 0
    process.stderr.close()
