"""`xstage predict` with task schedules, time lines and workloads; the real command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h200
import pytest

ROOT = Path(__file__).parents[2]
MODEL = h200.MODEL
CSV = """name,producers,form,producer,compute_cycles,bytes,waits_for,signals,phase
two tiles,2,ping_pong,0,9000,0,,0,linear 1
,,,0,4000,32768,0,,linear 2
,,,1,9000,0,,0,linear 1
,,,1,4000,32768,0,,linear 2
"""


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.csv"
    path.write_text(CSV)
    return path


def test_a_table_totals_and_where_the_constants_are_from(xstage: Callable[..., Any], tasks: Path) -> None:
    done = xstage("predict", MODEL, tasks)
    assert done.code == 0, done.err
    head, columns, *rows = done.out.splitlines()
    assert head.startswith("two tiles: pair 0>1, node model, 2 producers x 4 warps, ping_pong, release.gpu: 4 tasks in ")
    assert "without stores" in head
    assert columns.split()[:3] == ["task", "producer", "phase"]
    assert len(rows) == 4
    assert "not on this node" in done.err


def test_json_and_a_time_line(xstage: Callable[..., Any], tasks: Path, tmp_path: Path) -> None:
    done = xstage("predict", MODEL, tasks, "--json", "--sm-clock-mhz", "1790", "--trace", tmp_path / "t.json")
    assert done.code == 0, done.err
    (one,) = strict(done.out)["task_schedules"]
    assert one["sm_clock_mhz"] == 1790
    assert one["total_ns"] > one["without_stores_ns"] > 13_000 / 1.79
    assert one["stores_ns"] == pytest.approx(one["total_ns"] - one["without_stores_ns"])
    assert [t["phase"] for t in one["tasks"]] == ["linear 1", "linear 2"] * 2
    assert one["tasks"][0]["store_end_ns"] is None
    assert one["tasks"][1]["signal_end_ns"] is None
    assert one["tasks"][1]["in_calibrated_range"] is True
    trace = strict((tmp_path / "t.json").read_text())
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"} == {"compute", "store", "signal", "link"}
    alone = xstage("predict", MODEL, tasks, "--trace", "-")
    assert strict(alone.out) == strict(xstage("predict", MODEL, tasks, "--trace", "-").out)


def test_a_workload(xstage: Callable[..., Any]) -> None:
    done = xstage("predict", MODEL, "--workload", "qwen3.5", "--ep", "8", "--tokens-per-rank", "512", "--json")
    assert done.code == 0, done.err
    found = strict(done.out)
    assert found["workload"] == "qwen3.5"
    assert found["status"] == "predicted"
    assert found["layer_ns"] >= found["advised_layer_ns"] > 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "give a schedule file, or --workload"),
        (("--workload", "qwen3.5", "--trace", "x.json"), 2, "not a workload"),
        (("--workload", "qwen3.5", "--ep", "7"), 2, "EP 7"),
        (("none.json",), 2, "no such file"),
    ],
)
def test_what_is_refused(xstage: Callable[..., Any], words: tuple[str, ...], status: int, said: str) -> None:
    done = xstage("predict", MODEL, *words)
    assert done.code == status
    assert said in done.err
    assert "try:" in done.err
    assert "Traceback" not in done.err


def test_a_task_that_cannot_be_is_named(xstage: Callable[..., Any], tasks: Path) -> None:
    tasks.write_text(CSV.replace("1,9000,0,,0,", "1,9000,0,,,").replace("0,9000,0,,0,", "0,9000,0,,,"))
    done = xstage("predict", MODEL, tasks)
    assert done.code == 1
    assert "line 3: task 1 (producer 0, its task 1) waits for event 0, which no task signals" in done.err


def test_run_executes_tasks_on_the_simulator(xstage: Callable[..., Any], tasks: Path, tmp_path: Path) -> None:
    done = xstage("run", "--backend", "sim", "--schedule", tasks, "--compute", "spin", "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert "SIMULATED" in done.err
    (row,) = strict(done.out)["rows"]
    assert row["total_us"]["value"] > row["no_store_us"]["value"] > 6.0
