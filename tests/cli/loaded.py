"""Processes of the command line without the second that loading takes: forked from one that has loaded what most verbs need.

Each call has its own process, environment, folder, stdout and stderr, and ends as ``python -m xstage_bench`` does. What a process
loads, and how it ends on a signal, is tested with whole ones (`test_cli_signals`, `test_cli_verbs`).
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

LIBRARIES = (
    "numpy", "pandas", "pyarrow.dataset", "pyarrow.parquet", "msgspec", "click", "rich.progress", "jinja2", "pynvml", "scipy.special",
)  # fmt: skip
#: What reads no environment when it is loaded.
MODULES = (
    "cli.output", "device.sim", "judge.check", "judge.compare", "judge.limits", "measure.bursts", "measure.plan", "model.validate",
    "profile", "schedule.task_files", "show.advice_text", "show.report",
)  # fmt: skip
DEADLINE_S = 300
ROOT = Path(__file__).parents[2]
#: The options of the fixture `profiled`.
PROFILE = ("--backend", "sim", "--quick", "--only", "isolated", "--only", "holdout", "--only", "timer", "--pairs", "0:1", "--seed", "7")


def strict(text: str) -> dict[str, Any]:
    """Parse one JSON object as the standard has it."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def environ(**changes: str) -> dict[str, str]:
    """The environment of a subprocess, without what would change its meaning."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "XSTAGE", "DISPLAY", "COLUMNS"))}
    return {**keep, "PYTHONPATH": str(ROOT), **changes}


class Loaded:
    """The process that is forked, its libraries loaded with an environment, and how to ask it."""

    def __init__(self, environ: dict[str, str]) -> None:
        command = [sys.executable, str(Path(__file__)), str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True)

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def call(self, words: list[str], cwd: Path | None, environ: dict[str, str], code: str | None = None) -> tuple[int, str, str]:
        """Run ``xstage`` with these words, or ``python -c code``: its exit status, stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder) / name) for name in ("out", "err")]
            asked = {"words": words, "cwd": str(cwd or Path.cwd()), "environ": environ, "files": files, "code": code}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline()
            out, err = (Path(f).read_bytes().decode() for f in files)
        return int(status), out, err


def run(words: list[str], cwd: str, environ: dict[str, str], files: list[str], code: str | None) -> int:
    """Become ``xstage``, or what the code does, in the forked process, and return its exit status."""
    signal.alarm(DEADLINE_S)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    for stream, name in zip((1, 2), files, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = cwd
    sys.argv = ["xstage" if code is None else "-c", *words]
    try:
        if code is None:
            runpy.run_module("xstage_bench", run_name="__main__", alter_sys=True)
        else:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End as Python does, but for taking apart what all the libraries have made: half a second, and a copy of each page."""
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(status)


def serve() -> None:
    """Load, then fork for every line of stdin."""
    import importlib

    for name in (*LIBRARIES, *(f"xstage_bench.{module}" for module in MODULES)):
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _end(run(**json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
