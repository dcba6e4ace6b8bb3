"""A kernel whose warps do not meet: seen in its stamps, kept in files, flagged by predict, not executed, judged apart."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pytest

from xstage_bench.cli import run
from xstage_bench.device.cuda import layout
from xstage_bench.device.sim.device import SimDevice
from xstage_bench.errors import DataError, UsageError
from xstage_bench.measure.stamps.layout import (
    from_csv,
)
from xstage_bench.measure.stamps.record import read_traces, record_traces
from xstage_bench.measure.stamps.schedule import trace_of
from xstage_bench.model.document import load_model
from xstage_bench.model.prediction import APART
from xstage_bench.model.validate import validate
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.burst_tasks import tasks_of_bursts
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.scenes import Scene

ROOT = Path(__file__).parents[2]
STAMPS = "smid,block,warp,kind,start_clock,end_clock,start_ns,end_ns,bytes\n"
APART_SCHEDULE = Schedule((Burst(32768), Burst(32768, 2000)), 132, 4, start="free", warps_meet=False)


def stamps(*warps: list[tuple[int, int]], sms: int = 1, size: int = 512) -> bytes:
    """CSV of these bursts (start, end) of each warp, the same on every SM; one ns a cycle."""
    every = itertools.product(range(sms), enumerate(warps))
    rows = [f"{sm},{sm},{w},burst,{a},{b},{a},{b},{size}\n" for sm, (w, mine) in every for a, b in mine]
    return (STAMPS + "".join(rows)).encode()


@pytest.mark.parametrize(
    ("warps", "meet"),
    [
        ([[(0, 300), (400, 700)], [(10, 350), (420, 690)]], True),
        ([[(0, 300), (350, 700)], [(10, 350), (420, 690)]], True),  # at the same moment: the barrier took no cycle
        ([[(0, 300), (349, 700)], [(10, 350), (420, 690)]], False),
        ([[(0, 300), (301, 700)]], True),  # one warp meets itself
    ],
)
def test_stamps_show_whether_warps_meet(warps: list[list[tuple[int, int]]], meet: bool) -> None:
    schedule = trace_of(from_csv(stamps(*warps))).schedule
    assert schedule.warps_meet is meet
    assert all(b.gap_cycles >= 0 for b in schedule.bursts)


def test_one_sm_and_one_launch_are_enough(tmp_path: Path) -> None:
    meeting, apart = [[(0, 300), (400, 700)], [(0, 350), (400, 690)]], [[(0, 300), (310, 700)], [(0, 350), (400, 690)]]
    rest = stamps(*meeting, sms=3).decode().removeprefix(STAMPS)
    mixed = stamps(*apart).decode() + "".join(line + "\n" for line in rest.splitlines() if not line.startswith("0,"))
    assert not trace_of(from_csv(mixed.encode())).schedule.warps_meet
    for i, content in enumerate((stamps(*meeting, sms=3), mixed.encode())):
        (tmp_path / f"{i}.csv").write_bytes(content)
    both = [tmp_path / "0.csv", tmp_path / "1.csv"]
    assert [t.schedule.warps_meet for t in read_traces(both)] == [False, False]
    assert [t.schedule.warps_meet for t in read_traces(both[:1])] == [True]
    recorded = read_traces([ROOT / "tests" / "data" / "tiles.npz"])  # its kernel has a barrier after every burst
    assert all(t.schedule.warps_meet for t in recorded)


@pytest.mark.parametrize("cell", ["true", "True", "FALSE", "false", "", " true ", "1", "yes", "no"])
def test_a_cell_is_true_false_or_empty(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "meet.csv"
    path.write_text(f"producers,start,warps_meet,bytes\n4,free,{cell},512\n")
    if cell.strip().lower() in ("true", "false", ""):
        assert load_bursts(path)[0].warps_meet is (cell.strip().lower() != "false")
    else:
        with pytest.raises(DataError, match=f"line 2: column 'warps_meet' is '{cell}', neither true nor false"):
            load_bursts(path)


def test_nothing_executes_it() -> None:
    for executes in (
        lambda s: layout.check(s, range(132)),
        lambda s: list(SimDevice(seed=0).measure([Execution(s)])),
        lambda s: Scene((s if s is APART_SCHEDULE else replace(s, bursts=s.bursts[:1], start="isolated"),)),
        tasks_of_bursts,
    ):
        with pytest.raises(UsageError, match="cannot be executed") as caught:
            executes(APART_SCHEDULE)
        assert "predict" in (caught.value.hint or "")
        executes(replace(APART_SCHEDULE, warps_meet=True))


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Stamps in, the flag in the schedule file, in predict's document and on stderr; run refuses, validate keeps it out of its models."""

    def call(code: int, *words: object) -> tuple[str, str]:
        assert run([str(w) for w in words]) == code
        return tuple(capfd.readouterr())

    warps: list[list[tuple[int, int]]] = [[(9000 * i + w, 9000 * i + 8000 + 1500 * (w == 3)) for i in range(4)] for w in range(4)]
    (tmp_path / "apart.csv").write_bytes(stamps(*warps, sms=132, size=8192))
    schedule, folder = tmp_path / "apart.json", tmp_path / "run"
    out, _ = call(0, "import", tmp_path / "apart.csv", "--schedule", schedule, "--out", folder, "--json")
    assert json.loads(out)["warps_meet"] is json.loads(schedule.read_text())["schedules"][0]["warps_meet"] is False

    out, err = call(0, "predict", h200.MODEL, schedule, "--json")
    (found,) = json.loads(out)["schedules"]
    assert found["notes"][0] == APART
    assert [b["in_calibrated_range"] for b in found["bursts"]] == [True, False, False, False]
    assert APART in " ".join(err.split())

    out, err = call(2, "run", "--schedule", schedule, "--backend", "sim", "--compute", "spin", "--out", tmp_path / "replay")
    assert out == ""
    assert "cannot be executed" in err
    assert not (tmp_path / "replay").exists()

    document = json.loads(call(0, "validate", folder, "--model", h200.MODEL, "--json")[0])
    assert document["models"] == []
    assert {(m["model"], m["n_bursts"]) for m in document["warps_apart"]} >= {("node", 4), ("burst_gap", 4)}
    assert "node, warps apart" in call(0, "validate", folder, "--model", h200.MODEL)[0]


def test_held_out_schedules_of_both_kinds_are_scored_by_themselves(tmp_path: Path) -> None:
    meeting = [[(9000 * i, 9000 * i + 7000 - 100 * w) for i in range(3)] for w in range(4)]
    apart = [[(9000 * i, 9000 * i + 7000 + 3000 * w) for i in range(3)] for w in range(4)]
    tables: list[Any] = []
    for i, warps in enumerate((meeting, apart)):
        (tmp_path / f"{i}.csv").write_bytes(stamps(*warps, sms=132, size=8192))
        record_traces(read_traces([tmp_path / f"{i}.csv"]), tmp_path / f"run{i}", [], ["x"])
        tables.append(load_run(tmp_path / f"run{i}").samples())
    assert [s.warps_meet for t in tables for s in schedules_of(t).values()] == [True, False]
    pandas = pytest.importorskip("pandas")
    model = load_model(h200.MODEL)
    both, alone = validate(model, pandas.concat(tables)), validate(model, tables[0])
    assert both.models == alone.models
    assert [m.n_schedules for m in both.warps_apart] == [1] * 2
    assert not np.isclose(both.warps_apart[0].issue_time.median_error, both.models[0].issue_time.median_error)
    assert any("warps of 1 held-out schedules do not meet" in note for note in both.notes)
    assert alone.warps_apart == []
