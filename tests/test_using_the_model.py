"""docs/using-the-model.md, run: five commands in a new folder, on the simulator, each on what the one before has left."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "using-the-model.md").read_text()
#: What makes the first command short: only what the node model needs, of one pair.
SHORT = "--backend sim --quick --pairs 0:1 --only isolated --only periodic --only timed --only placement"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def run(command: str, folder: Path) -> str:
    verb, *words = shlex.split(command)
    assert verb == "xstage"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("XSTAGE", "CUDA"))} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "xstage_bench", *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_the_five_commands(tmp_path: Path) -> None:
    folder = tmp_path
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 5
    profile, predict, advise, look, export = commands
    run(f"{profile} {SHORT}", folder)
    assert (folder / "node" / "report.html").exists()
    (schedule,) = blocks("json")
    (folder / "bursts.json").write_text(schedule)
    shown = run(predict, folder)
    header = next(line for line in shown.splitlines() if line.startswith("burst "))
    assert set(blocks("text")[0].splitlines()[0].split()) <= set(header.split()), "the columns are those that the page shows"
    (predicted,) = json.loads(run(f"{predict} --json", folder))["schedules"]
    *stalled, last = (b["issue_cycles"] / b["t0_cycles"] for b in predicted["bursts"])
    assert min(stalled) > 5, "the story of the page holds on the simulated node too: four bursts stall,"
    assert last < min(stalled) / 2, "and the last, after a long gap, hardly"
    advice = run(advise, folder)
    for line in ("largest stall-free burst", "smallest gap", "present", "advised", "gain"):
        assert any(shown.startswith(line) for shown in advice.splitlines()), line
    present, advised = (float(re.search(rf"{word}\s+([\d.]+) us", advice).group(1)) for word in ("present", "advised"))  # type: ignore[union-attr]
    assert advised < present / 1.05
    columns = next(line for line in run(look, folder).splitlines() if line.startswith("task "))
    assert set(blocks("text")[2].splitlines()[0].split()) <= set(columns.split())
    (changed,) = json.loads(run(f"{look} --json", folder))["task_schedules"]
    assert changed["total_ns"] / 1e3 == pytest.approx(advised, abs=0.1), "what was advised is what is in the file"
    assert json.loads((folder / "changed-trace.json").read_text())
    run(export, folder)
    assert "SIMULATED" in (folder / "node.cuh").read_text()
    compile_the_kernel(folder)


def compile_the_kernel(folder: Path) -> None:
    """Compile the page's kernel with the header that its last command wrote, where there is a compiler for the CPU."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return
    (code,) = blocks("cpp")
    (folder / "kernel.cpp").write_text(code)
    subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused", "kernel.cpp"], cwd=folder, check=True)


def test_every_page_that_it_points_to_exists() -> None:
    for name in re.findall(r"\]\(([\w-]+\.md)\)", PAGE):
        assert (ROOT / "docs" / name).exists(), name
