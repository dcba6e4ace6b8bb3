"""The real command line as a subprocess, and small runs of the simulator that several tests share."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from loaded import PROFILE, Loaded, environ, strict

from xstage_bench.cli.group import xstage as group


@dataclass(frozen=True)
class Done:
    """How a call of ``xstage`` ended."""

    code: int
    out: str
    err: str
    words: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The one JSON object on stdout, strictly parsed."""
        return strict(self.out)

    def refused(self, code: int, words: str) -> None:
        """It ended with this status, one clear line that holds `words`, a hint, and nothing on stdout."""
        assert self.code == code, (self.code, self.err)
        assert "Traceback" not in self.err
        assert "internal error" not in self.err
        lines = [
            line for line in self.err.splitlines() if line and not line.startswith(("SIMULATED: ", "measuring into ", "CHANGED since "))
        ]
        assert len(lines) == 2, self.err
        assert lines[0].startswith("xstage: ")
        assert lines[1].startswith("  try: ")
        assert words in lines[0], lines[0]
        named = [part.split() for part in lines[1].split("xstage ")[1:]]
        known = options_of(self.words).union(*map(options_of, named))
        lacking = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", lines[1])) - known
        assert not lacking, f"{lines[1]}: no verb named there, nor the one called, has {lacking}"
        assert self.out == ""


def options_of(words: Sequence[str]) -> set[str]:
    """The options of the verb that these words call."""
    command: click.Command = group
    for word in words:
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        command = found or command
    return {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}


@pytest.fixture(scope="session")
def loaded() -> Iterator[Loaded]:
    """The process that those of the calls are forked from."""
    with Loaded(environ()) as process:
        yield process


@pytest.fixture(scope="session")
def xstage(loaded: Loaded) -> Callable[..., Done]:
    """Call ``xstage`` in a fresh process."""
    return lambda *words, cwd=None, **variables: Done(*loaded.call([*map(str, words)], cwd, environ(**variables)), tuple(map(str, words)))


@pytest.fixture(scope="session")
def python_c(loaded: Loaded) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code with words in a fresh process."""

    def call(code: str, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(code, *loaded.call([*map(str, words)], None, environ(**variables), code))

    return call


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Done]) -> tuple[Done, Path]:
    """Make a folder once for all test processes: xdist gives each a temporary root, and all of these one parent."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "done.json"
        if not kept.exists():
            kept.write_text(json.dumps(asdict(make(shared / "run"))))
    return Done(**json.loads(kept.read_text())), shared / "run"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, xstage: Callable[..., Done]) -> Path:
    """A quick run of two probes on the simulator, fitted; to be copied before it is changed."""

    def make(folder: Path) -> Done:
        done = xstage(
            "run", "--backend", "sim", "--quick", "--only", "timer", "--only", "isolated", "--pairs", "0:1", "--seed", "0", "--out", folder
        )
        assert done.code == 0, done.err
        return xstage("fit", folder, "--resamples", 20)

    fitted, folder = once(tmp_path_factory, "small", make)
    assert fitted.code == 0, fitted.err
    return folder


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory, xstage: Callable[..., Done]) -> tuple[Done, Path]:
    """A quick profile of one simulated pair, by isolated bursts alone: the call, and its folder, which is not to be changed."""
    done, folder = once(tmp_path_factory, "profile", lambda folder: xstage("profile", *PROFILE, "--out", folder, "--json"))
    assert done.code == 0, done.err
    return done, folder


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the small run that may be damaged."""
    shutil.copytree(small_run, tmp_path / "run")
    return tmp_path / "run"
