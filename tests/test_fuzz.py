"""Readers under fire: arbitrary and damaged bytes into every one of them, by hypothesis and, where it is installed, by atheris."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fuzz_readers
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).parent / "fuzz_readers.py"
ATHERIS_RUNS = 400
WORDS = [b"NaN", b"1e999", b"-1", b"null", b'"', b"[", b"9" * 25]


@pytest.mark.parametrize("name", list(fuzz_readers.TARGETS))
def test_a_sound_file_is_taken(name: str) -> None:
    sound = fuzz_readers.TARGETS[name][1]()
    assert fuzz_readers.feed(name, sound) or name in ("model.json", "schedule.csv"), "else the damage below shows nothing"


@pytest.mark.parametrize("name", list(fuzz_readers.TARGETS))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_only_our_own_errors(name: str, data: Any) -> None:
    """Half of the examples are any bytes, half a sound file with some bytes replaced, removed or put in."""
    sound = fuzz_readers.TARGETS[name][1]()
    if data.draw(st.booleans()):
        fuzz_readers.feed(name, data.draw(st.binary(max_size=400)))
        return
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        width = data.draw(st.integers(0, 8))
        damaged[at : at + width] = data.draw(st.one_of(st.binary(max_size=8), st.sampled_from(WORDS)))
    fuzz_readers.feed(name, bytes(damaged))


def test_atheris(tmp_path: Path) -> None:
    """Coverage-guided, from the sound files on; some hundred inputs here, as many as you like by hand."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris (Linux, x86-64)")
    for number, name in enumerate(fuzz_readers.TARGETS):
        (tmp_path / name).write_bytes(bytes([number]) + fuzz_readers.TARGETS[name][1]()[:4000])
    command = [sys.executable, str(SCRIPT), str(tmp_path), f"-runs={ATHERIS_RUNS}", "-seed=1", "-max_len=4096", "-timeout=60"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {ATHERIS_RUNS}" in done.stderr or "DONE" in done.stderr
