"""Replays: interleaved with their twins, the instrument's costs found again, documents that load, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from xstage_bench.cli import run
from xstage_bench.device.backend import BackendChoice
from xstage_bench.errors import UsageError
from xstage_bench.io.json_file import read_json
from xstage_bench.measure import tasks as task_run
from xstage_bench.measure.replay_document import errors, summary_rows, with_predictions, write_summary
from xstage_bench.measure.replay_run import load_any, record_replay
from xstage_bench.schedule.burst_tasks import tasks_of_bursts
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Compute, Gpu, Node
from xstage_bench.schedule.tasks import NONE, TaskSchedule, TaskTrace

MHZ = 2000.0


@dataclass
class FakeTaskDevice:
    """Every task pays `turn`, its compute, `per_store` for each warp-store of a warp, `signal`; what waits sees an event `event` later.

    `bad` names schedules that come back corrupt.
    """

    turn: float = 100.0
    signal: float = 700.0
    event: float = 1200.0
    per_store: float = 20.0
    bad: tuple[str, ...] = ()
    executed: list[str] = field(default_factory=list)
    backend: str = "cuda"

    def node(self) -> Node:
        gpus = tuple(Gpu(i, "fake", tuple(range(8)), MHZ) for i in range(2))
        return Node(gpus, ((0, 1), (1, 0)), 32.0)

    def verify(self, source: int, destination: int) -> None:
        return None

    def measure(self, executions: object) -> Iterator[object]:
        raise NotImplementedError

    def close(self) -> None:
        return None

    def execute_tasks(self, schedules: Sequence[TaskSchedule], *, repetitions: int, compute: Compute) -> Iterator[TaskTrace]:
        for _ in range(repetitions):
            for s in schedules:
                self.executed.append(s.name + ("" if s.bytes.any() else " bare"))
                yield self._execute(s)

    def _execute(self, s: TaskSchedule) -> TaskTrace:
        size, first = s.task_count, s.first
        start, computed, stored, signalled = (np.full(size, np.nan) for _ in range(4))
        seen = np.zeros(s.event_count)
        missing = s.signals_of_event.copy()
        stores = s.bytes // (s.warps * s.warp_store_bytes)
        at, lag = first[:-1].copy(), 2 if s.form == "ping_pong" else 1
        while (at < first[1:]).any():
            for p in range(s.producer_count):
                t = at[p]
                if t == first[p + 1] or (s.waits_for[t] != NONE and missing[s.waits_for[t]]):
                    continue
                begin = computed[t - 1] + self.turn if t > first[p] else 0.0
                if t - lag >= first[p]:
                    begin = max(begin, np.nanmax([computed[t - lag], stored[t - lag], signalled[t - lag]]) + self.turn)
                if s.waits_for[t] != NONE:
                    begin = max(begin, seen[s.waits_for[t]] + self.event)
                start[t], computed[t] = begin, begin + s.compute_cycles[t]
                end = computed[t]
                if stores[t]:
                    end = stored[t] = end + self.per_store * stores[t]
                if s.signals[t] != NONE:
                    end = signalled[t] = end + self.signal
                    missing[s.signals[t]] -= 1
                    seen[s.signals[t]] = max(seen[s.signals[t]], end)
                at[p] += 1
        ns = 1e3 / MHZ
        total = float(np.nanmax([computed, stored, signalled]) * ns)
        status, detail = ("corrupt", "pair 0>1: 1 wrong word") if s.name in self.bad else ("ok", "")
        smids = np.arange(s.producer_count)
        return TaskTrace(s, smids, start * ns, computed * ns, stored * ns, signalled * ns, total, total + 500, MHZ, status, detail)


CHOICE = BackendChoice("cuda", "asked for", False)


def schedule(name: str, stores: int, per: int = 6, k: int = 4) -> TaskSchedule:
    n = k * per
    size, none = np.full(n, stores * 2048), np.full(n, NONE)
    return TaskSchedule(k, np.repeat(np.arange(k), per), np.full(n, 4000), size, size, none, none, form="single", name=name)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeTaskDevice:
    fake = FakeTaskDevice()
    monkeypatch.setattr("xstage_bench.device.backend.open_device", lambda choice, **kwargs: fake)
    return fake


def test_a_schedule_runs_beside_its_twin_in_an_order_of_its_own_each_round(device: FakeTaskDevice) -> None:
    wanted = [schedule("a", 10), schedule("b", 40)]
    document = task_run.measure_tasks(CHOICE, wanted, compute="mma", repetitions=4, processes=2, instrument=False)
    rounds = [device.executed[i : i + 4] for i in range(0, len(device.executed), 4)]
    assert len(rounds) == 2 * 5, "a round of warm-ups before four of each process"
    assert all(sorted(r) == ["a", "a bare", "b", "b bare"] for r in rounds)
    assert len({tuple(r) for r in rounds}) > 3
    a, b = document["rows"]
    bare_us = (6 * 4000 + 5 * 100) / 2000
    assert a["no_store_us"].value == pytest.approx(bare_us)
    assert a["stores_us"].value == pytest.approx(6 * 10 * 20 / 2000)
    assert b["total_us"].value == pytest.approx(bare_us + 6 * 40 * 20 / 2000)
    assert b["slowdown"].value == pytest.approx(b["total_us"].value / bare_us)
    assert b["visible_us"].value == pytest.approx(b["total_us"].value + 0.5)
    assert a["compute_ratio"].value == pytest.approx(1.0)
    assert a["left_out"] == {"warmup": 4}
    assert (document["compute"], document["processes"], document["repetitions"], document["simulated"]) == ("mma", 2, 4, False)
    device.bad = ("a",)
    wrong = task_run.measure_tasks(CHOICE, wanted[:1], compute="mma", repetitions=2, processes=1, instrument=False)["rows"][0]
    assert wrong["left_out"]["corrupt"] == 6, "each execution of the schedule and of its twin, which has its name"
    assert wrong["total_us"].status == "not_identified"
    assert wrong["reasons"] == ["pair 0>1: 1 wrong word"]


def test_the_instruments_own_costs_are_found_again(device: FakeTaskDevice) -> None:
    document = task_run.measure_tasks(CHOICE, [schedule("a", 10)], compute="spin", repetitions=3, processes=3)
    found = {name: e.value for name, e in document["instrument"].items()}
    assert found["turn_cycles.single"] == pytest.approx(100)
    assert found["turn_cycles.ping_pong"] == pytest.approx(100)
    assert found["compute_excess_cycles.ping_pong"] == pytest.approx(0, abs=1e-6)
    for publish in ("relaxed", "release.gpu", "release.sys"):
        assert found[f"signal_cycles.{publish}"] == pytest.approx(700)
        assert found[f"event_cycles.{publish}"] == pytest.approx(1200)
    assert [found[f"store_cycles.{n}"] for n in (1, 4, 64)] == pytest.approx([20, 80, 1280])
    assert found["drain_gb_per_s.one_way"] == found["drain_gb_per_s.both_ways"]


def test_a_folder_holds_the_document_and_a_summary(device: FakeTaskDevice, tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    record_replay(CHOICE, [schedule("a", 10)], folder, ["xstage"], compute="mma", repetitions=3, processes=1, seed=0)
    document = read_json(folder / "replay.json", dict[str, Any])
    summary = read_json(folder / "summary.json", dict[str, Any])
    assert [s.key() for s in load_any([folder / "schedules.json"])] == [document["rows"][0]["key"]], "what was executed"
    (row,) = summary["rows"]
    assert {"workload", "schedule", "measured_us", "no_store_us", "predicted_us"} <= set(row)
    assert row["schedule"] == "a"
    assert row["measured_us"] == pytest.approx(document["rows"][0]["total_us"]["value"])
    assert row["predicted_us"] is None
    with pytest.raises(UsageError, match="never overwritten"):
        record_replay(CHOICE, [schedule("a", 10)], folder, ["xstage"], compute="mma", repetitions=3, processes=1, seed=0)
    (tmp_path / "replay.json").write_bytes((folder / "replay.json").read_bytes())
    assert len(read_json(write_summary(tmp_path), dict[str, Any])["rows"]) == 2, "one of its own and one in a subfolder"


def test_predictions_are_judged_on_the_total_and_on_the_part_that_stores_cost() -> None:
    rows = [
        {"measured_us": 100.0, "no_store_us": 50.0, "predicted_us": 104.0, "predicted_no_store_us": 49.0},
        {"measured_us": 100.0, "no_store_us": 99.0, "predicted_us": 98.0, "predicted_no_store_us": 99.0},
        {"measured_us": 100.0, "no_store_us": 60.0, "predicted_us": 100.0, "predicted_no_store_us": 60.0},
        {"measured_us": None, "no_store_us": 60.0, "predicted_us": 100.0},
    ]
    judged = errors(rows)
    assert (judged["n"], judged["slowed"]) == (3, 2)
    assert judged["total_median_error"] == pytest.approx(0.02)
    assert judged["total_largest_error"] == pytest.approx(0.04)
    assert judged["stores_median_error"] == pytest.approx(0.05), "5 of 50 us, and none"
    assert errors([])["total_median_error"] is None
    assert summary_rows({"rows": [], "compute": "mma", "repetitions": 1, "processes": 1}) == []


def test_predictions_stand_beside_at_the_clocks_that_were_measured(device: FakeTaskDevice) -> None:
    wanted = [schedule("a", 10), schedule("b", 40)]
    document = msgspec.to_builtins(task_run.measure_tasks(CHOICE, wanted, compute="mma", repetitions=3, processes=1, instrument=False))
    document["rows"][0]["no_store_sm_clock_mhz"]["value"] = 1900.0
    asked = []

    def predict(s: TaskSchedule, sm_clock_mhz: float) -> tuple[float, float]:
        asked.append((s.name, sm_clock_mhz))
        return 20_000.0, 10_000.0

    got = with_predictions(document, [wanted[0], schedule("another", 1)], predict)
    assert asked == [("a", 2000.0)]
    a, b = got["rows"]
    assert (a["predicted_us"], a["predicted_no_store_us"]) == (20.0, pytest.approx(10 * 2000 / 1900))
    assert "predicted_us" not in b
    assert got["prediction"]["n"] == 1
    assert got["prediction"]["total_median_error"] == pytest.approx(abs(20 / a["total_us"]["value"] - 1))
    assert [row["predicted_us"] for row in summary_rows(got)] == [20.0, None]


def test_bursts_become_tasks_whose_work_fills_the_gap() -> None:
    bursts = Schedule((Burst(4096), Burst(8192, 700), Burst(0, 90)), 3, 2, start="free")
    s = tasks_of_bursts(bursts, "x")
    assert (s.form, s.producer_count, s.task_count, s.volume_bytes) == ("single", 3, 9, 3 * 12288)
    assert s.compute_cycles.tolist() == [0, 700, 90] * 3
    assert tasks_of_bursts(replace(bursts, destination=0)).volume_bytes == 0, "the local control stores nothing remote"
    for wrong, words in (
        (Schedule((Burst(4096),), 1, 2, start="timed"), "no gaps that work could fill"),
        (Schedule((Burst(4096),) * 2, 1, 2), "no gaps that work could fill"),
        (Schedule((Burst(9 * 512),), 1, 9), "at most 8"),
        (Schedule((Burst(4096),), 1, 2, destination=HOST), "name a GPU"),
    ):
        with pytest.raises(UsageError, match=words):
            tasks_of_bursts(wrong)


def test_the_verb_replays_files_of_both_kinds_on_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bursts, tasks = tmp_path / "bursts.json", tmp_path / "tasks.json"
    gaps = [{"bytes": 8192}, {"bytes": 8192, "gap_cycles": 900}]
    bursts.write_text(json.dumps({"producers": 4, "warps": 4, "start": "free", "bursts": gaps}))
    columns = {"producer": [0, 1], "compute_cycles": [19800, 9900], "bytes": [32768, 0]}
    tasks.write_text(json.dumps({"schema_version": 1, "producers": 2, "tasks": columns, "name": "mine"}))
    assert [s.name for s in load_any([bursts, tasks])] == ["bursts", "mine"]
    words = ["run", "--backend", "sim", "--schedule", str(bursts), "--schedule", str(tasks), "--processes", "1"]
    assert run([*words, "--repetitions", "3", "--out", str(tmp_path / "o"), "--json"]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    assert [row["schedule"] for row in said["rows"]] == ["bursts", "mine"]
    assert read_json(tmp_path / "o" / "replay.json", dict[str, Any])["simulated"] is True
    assert (said["simulated"], said["compute"], said["instrument"]) == (True, "mma", {})
    row = said["rows"][1]
    assert 9.9 < row["no_store_us"]["value"] < row["total_us"]["value"] < 12, "19 800 cycles, and 16 warp-stores"
    assert "SIMULATED" in told.err
    for extra, message in (
        (["--compute", "mma"], "does not say what to replay"),
        (["--model", "m.json"], "belongs to a replay"),
        (["--compute", "mma", "--schedule", str(tasks), "--only", "onset"], "it has no probes"),
        (["--compute", "mma", "--schedule", str(tasks), "--resume", "--out", "x"], "it has no probes"),
    ):
        assert run(["run", "--backend", "sim", *extra]) == 2
        assert message in capsys.readouterr().err
