"""The commands of docs/predict.md, docs/advise.md and docs/own-kernel.md, run in this order in one folder, on the simulator."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
PREDICT, ADVISE, OWN = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("predict.md", "advise.md", "own-kernel.md"))
#: What makes the first command short: only what the node model needs, of one pair.
SHORT = "--pairs 0:1 --only isolated --only periodic --only timed --only placement"


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M) if found == language]


def run(command: str, folder: Path) -> str:
    verb, *words = shlex.split(command)
    assert verb == "xstage"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("XSTAGE", "CUDA", "COLUMNS"))} | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "xstage_bench", *words]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the pages' commands are typed, with the node that the first of them makes."""
    folder = tmp_path_factory.mktemp("pages")
    profile = blocks(PREDICT, "sh")[0].strip()
    assert profile.startswith("xstage profile --backend sim --quick")
    (folder / "profile.txt").write_text(run(f"{profile} {SHORT}", folder))
    assert (folder / "node" / "report.html").exists()
    return folder


def columns_of(block: str, first: str) -> set[str]:
    return set(next(line for line in block.splitlines() if line.startswith(first)).split()) - {"..."}


def test_bursts_are_predicted_as_the_page_says(node: Path) -> None:
    (schedule,) = blocks(PREDICT, "json")
    (node / "bursts.json").write_text(schedule)
    _, command = blocks(PREDICT, "sh")
    assert columns_of(blocks(PREDICT, "text")[0], "burst ") <= columns_of(run(command, node), "burst ")
    (predicted,) = json.loads(run(f"{command} --json", node))["schedules"]
    *stalled, last = (b["issue_cycles"] / b["t0_cycles"] for b in predicted["bursts"])
    assert min(stalled) > 5, "the story of the page: three bursts stall,"
    assert last < min(stalled) / 2, "and the last, after a long gap, far less"


def test_the_python_of_the_page_says_the_same(node: Path) -> None:
    (node / "bursts.json").write_text(blocks(PREDICT, "json")[0])
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", blocks(PREDICT, "python")[0]]
    done = subprocess.run(code, cwd=node, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (predicted,) = json.loads(run("xstage predict node bursts.json --json", node))["schedules"]
    assert done.stdout.split()[0] == str(predicted["total_ns"])


def test_a_job_is_advised_and_the_advice_predicted(node: Path) -> None:
    command, again = (block.strip() for block in blocks(ADVISE, "sh"))
    shown = blocks(ADVISE, "text")[0]
    advice = run(command, node)
    for line in shown.splitlines():
        if line[0].isalpha() and "  " in line:
            assert any(found.startswith(line.split("  ")[0]) for found in advice.splitlines()), line
    present, advised = (float(re.search(rf"{word}\s+([\d.]+) us", advice).group(1)) for word in ("present", "advised"))  # type: ignore[union-attr]
    assert advised < present / 1.05
    assert (node / "advice.png").read_bytes()[1:4] == b"PNG"
    look = "xstage predict node changed.json --trace changed-trace.json"
    assert columns_of(blocks(PREDICT, "text")[1], "task ") <= columns_of(run(look, node), "task ")
    (changed,) = json.loads(run(f"{look} --json", node))["task_schedules"]
    assert changed["total_ns"] / 1e3 == pytest.approx(advised, abs=0.1), "what was advised is what is in the file"
    assert json.loads((node / "changed-trace.json").read_text())
    assert "nothing to change" in run(again, node)


def test_the_header_compiles_with_the_kernel_of_the_page(node: Path) -> None:
    (command,) = blocks(OWN, "sh")
    run(command.strip(), node)
    assert "SIMULATED" in (node / "node.cuh").read_text()
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no compiler for the CPU here")
    (node / "kernel.cpp").write_text(blocks(OWN, "cpp")[0])
    subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused", "kernel.cpp"], cwd=node, check=True)


def test_the_stamps_of_the_page_are_read(node: Path) -> None:
    table = next(block for block in blocks(OWN, "") if block.startswith("smid,"))
    (node / "stamps.csv").write_text(table)
    run("xstage import stamps.csv --gpu 'NVIDIA H200' --schedule tiles.json", node)
    (schedule,) = json.loads((node / "tiles.json").read_text())["schedules"]
    assert [burst["bytes"] for burst in schedule["bursts"]] == [8192]


def test_the_kernel_of_the_page_is_diagnosed_and_its_tuner_asked(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = (block for block in blocks(OWN, "") if block.startswith("xstage diagnose"))
    assert "outstanding capacity" in run(command.strip(), node)
    monkeypatch.chdir(node)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks(OWN, "python") if "perf_model" in block), names)
    ask = names["prune"]["perf_model"]
    small, large = (ask(M=8192, N=8192, BLOCK_M=m, BLOCK_N=128, num_warps=4, num_stages=3) for m in (64, 128))
    assert 0 < small < 2 * large


def test_the_tutorial_prints_what_it_shows(node: Path) -> None:
    """Each of its commands, in its order; what a shorter profile changes is the numbers, not the lines."""
    profile, predict, _ = (block for block in blocks(START, "text") if block.startswith("$ "))
    assert columns_of(profile, "pair ") == columns_of((node / "profile.txt").read_text(), "pair ")
    (node / "bursts.json").write_text(blocks(START, "json")[0])
    command, *shown = predict.splitlines()
    printed = run(command.removeprefix("$ "), node)
    assert columns_of(predict, "burst ") <= columns_of(printed, "burst ")
    assert printed.count("\n") >= len(shown) - shown.count("...")
    run(blocks(START, "sh")[2].strip(), node)
    code = [sys.executable, "-c", blocks(START, "python")[0]]
    done = subprocess.run(code, cwd=node, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.stdout.count(".") == blocks(START, "text")[-1].count("."), done.stderr
