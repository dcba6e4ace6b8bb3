"""The real command line as a subprocess, and small runs of the simulator that several tests share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Done:
    """How a call of ``xstage`` ended."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """The one JSON object on stdout, strictly parsed."""
        return strict(self.out)


def strict(text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def environ(**changes: str) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "XSTAGE", "DISPLAY"))}
    return {**keep, "PYTHONPATH": str(ROOT), **changes}


def call_xstage(*words: object, cwd: Path | None = None, **variables: str) -> Done:
    command = [sys.executable, "-m", "xstage_bench", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environ(**variables))
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def xstage() -> Callable[..., Done]:
    """Call ``xstage`` in a fresh process."""
    return call_xstage


@pytest.fixture(scope="session")
def strictly() -> Callable[[str], dict[str, Any]]:
    """Parse strict JSON."""
    return strict


@pytest.fixture(scope="session")
def subprocess_environ() -> Callable[..., dict[str, str]]:
    """The environment of a subprocess, without what would change its meaning."""
    return environ


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick run of two probes on the simulator, fitted; to be copied before it is changed."""
    folder = tmp_path_factory.mktemp("small") / "run"
    done = call_xstage("run", "--backend", "sim", "--quick", "--only", "timer", "--only", "isolated", "--pairs", "0:1", "--out", folder)
    assert done.code == 0, done.err
    fitted = call_xstage("fit", folder, "--resamples", 20)
    assert fitted.code == 0, fitted.err
    return folder


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the small run that may be damaged."""
    shutil.copytree(small_run, tmp_path / "run")
    return tmp_path / "run"
