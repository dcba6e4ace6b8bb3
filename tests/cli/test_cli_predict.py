"""`xstage predict` with task schedules, time lines and workloads; the real command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h200
import pytest

from xstage_bench.cli import predict

MODEL = h200.MODEL
TILES = Path(__file__).parents[1] / "data" / "tiles.npz"
CSV = """name,producers,form,producer,compute_cycles,bytes,waits_for,signals,phase
two tiles,2,ping_pong,0,9000,0,,0,linear 1
,,,0,4000,32768,0,,linear 2
,,,1,9000,0,,0,linear 1
,,,1,4000,32768,0,,linear 2
"""


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
    (one,) = done.document()["task_schedules"]
    assert one["sm_clock_mhz"] == 1790
    assert one["total_ns"] > one["without_stores_ns"] > 13_000 / 1.79
    assert one["stores_ns"] == pytest.approx(one["total_ns"] - one["without_stores_ns"])
    assert [t["phase"] for t in one["tasks"]] == ["linear 1", "linear 2"] * 2
    assert one["tasks"][0]["store_end_ns"] is None
    assert one["tasks"][1]["signal_end_ns"] is None
    assert one["tasks"][1]["in_calibrated_range"] is True
    trace = json.loads((tmp_path / "t.json").read_text())
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"} == {"compute", "store", "signal", "link"}
    alone = xstage("predict", MODEL, tasks, "--trace", "-").document()
    assert alone == xstage("predict", MODEL, tasks, "--trace", "-").document()


def test_every_phase_of_a_workload_in_words_and_as_json(xstage: Callable[..., Any]) -> None:
    words = ("--workload", "keye-vl-2", "--ep", "8", "--sp", "4", "--context", "2048")
    text = xstage("predict", MODEL, *words)
    assert text.code == 0, text.err
    for phase in ("vision", "reshard", "qkv", "select", "attention", "output", "dispatch", "experts"):
        assert f"\n{phase} " in text.out
    assert "EP 8 x SP 4 x TP 1, prefill, 2048 tokens, bf16" in text.out
    assert "assumed" in text.out
    document = xstage("predict", MODEL, *words, "--json").document()
    assert (document["workload"], document["status"], document["simulated"]) == ("keye-vl-2", "predicted", False)
    assert document["layer_ns"] >= document["advised_layer_ns"] > 0
    assert document["advised_pass_ns"] <= document["pass_ns"]


def test_a_model_by_its_own_config(xstage: Callable[..., Any], tmp_path: Path) -> None:
    file, cards = tmp_path / "config.json", Path(__file__).parents[1] / "workloads" / "configs.json"
    config = json.loads(cards.read_text())["Qwen3-30B-A3B"]["config"] | {"num_hidden_layers": 2}
    file.write_text(json.dumps({"architectures": ["any"], "text_config": config}))
    words = ("predict", MODEL, "--config", file, "--ep", "8", "--sp", "4", "--context", "1024")
    document = xstage(*words, "--json").document()
    assert document["workload"] == tmp_path.name
    assert document["notes"][0].endswith("2 layers, 2 with top 8 of 128 experts")
    assert document["layer_ns"] > 0
    xstage(*words, "--workload", "keye-vl-2").refused(2, "give a schedule file")
    file.write_text(json.dumps(config | {"model_type": "jamba"}))
    xstage(*words).refused(1, "'jamba' is not known")


def test_a_task_that_cannot_be_is_named(xstage: Callable[..., Any], tasks: Path) -> None:
    tasks.write_text(CSV.replace("1,9000,0,,0,", "1,9000,0,,,").replace("0,9000,0,,0,", "0,9000,0,,,"))
    xstage("predict", MODEL, tasks).refused(1, "line 3: task 1 (producer 0, its task 1) waits for event 0, which no task signals")


def test_run_executes_tasks_on_the_simulator(xstage: Callable[..., Any], tasks: Path, tmp_path: Path) -> None:
    done = xstage("run", "--backend", "sim", "--schedule", tasks, "--compute", "spin", "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert "SIMULATED" in done.err
    (row,) = done.document()["rows"]
    assert row["total_us"]["value"] > row["no_store_us"]["value"] > 6.0


def test_a_long_file_is_predicted_in_parts_alike(xstage: Callable[..., Any], tmp_path: Path) -> None:
    rows = [f"s{i // 3 if i < 60 else 99},8,4,free,{2048 * (1 + i % 7)},{i}\n" for i in range(90)]  # twenty short ones and a long one
    (tmp_path / "s.csv").write_text("schedule,producers,warps,start,bytes,gap_cycles\n" + "".join(rows))
    whole = xstage("predict", MODEL, tmp_path / "s.csv", "--json").document()
    with patch.object(predict, "PART_BURSTS", 16):
        parts = xstage("predict", MODEL, tmp_path / "s.csv", "--json").document()
        shown = xstage("predict", MODEL, tmp_path / "s.csv").out
    assert [len(s["bursts"]) for s in whole["schedules"]] == [3] * 20 + [30]
    assert shown.count("8 producers x 4 warps") == 21
    for a, b in zip(parts["schedules"], whole["schedules"], strict=True):
        assert {k: v for k, v in a.items() if k not in ("bursts", "total_ns")} == {
            k: v for k, v in b.items() if k not in ("bursts", "total_ns")
        }
        assert a["total_ns"] == pytest.approx(b["total_ns"])
        for x, y in zip(a["bursts"], b["bursts"], strict=True):
            assert x == pytest.approx(y)


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_what_is_written_for_others_reads_back(xstage: Callable[..., Any], tmp_path: Path, suffix: str) -> None:
    schedule, own, advised = (tmp_path / f"{name}.{suffix}" for name in ("schedule", "own", "advised"))
    assert xstage("import", TILES, "--schedule", schedule, "--tasks", own).code == 0
    assert xstage("advise", MODEL, "--bytes", "30720", "--tiles", "4", "--tile-ns", "5000", "--out", advised).code == 0
    counts = [
        len(entry.get("tasks", entry.get("bursts")))
        for path in (schedule, own, advised)
        for key in ("schedules", "task_schedules")
        for entry in xstage("predict", MODEL, path, "--json").document().get(key, [])
    ]
    assert counts == [18, 18 * 132, 4 * 132]
