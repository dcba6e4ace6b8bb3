"""Traces for the viewer: strict JSON that holds to the Trace Event Format, with every part of every task."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pytest

from xstage_bench.device.sim import SimDevice
from xstage_bench.model.document import Model, load_model
from xstage_bench.model.predict import predict
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.show.perfetto import all_events, burst_events, encode_trace, task_events, under_way, write_trace

WAVE = TaskSchedule(
    producers=4, producer=np.repeat(np.arange(4), 3), compute_cycles=np.tile([3000, 1000, 0], 4), bytes=np.tile([0, 32_768, 2048], 4),
    remote_bytes=np.tile([0, 28_672, 0], 4), waits_for=np.tile([NONE, 0, NONE], 4), signals=np.tile([0, NONE, NONE], 4),
    phase=np.tile([0, 1, 1], 4), phases=("linear1", "linear2"), name="wave",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(h200.MODEL)


def parsed(data: bytes) -> list[dict[str, Any]]:
    """Parse strictly, and check what the Trace Event Format asks of each event."""
    document = json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert document["displayTimeUnit"] in ("ns", "ms")
    events: list[dict[str, Any]] = document["traceEvents"]
    for e in events:
        assert {"ph", "pid", "tid", "name", "args"} <= set(e)
        assert (type(e["pid"]), type(e["tid"])) == (int, int)
        if e["ph"] == "X":
            assert (e["ts"] >= 0, e["dur"] >= 0, type(e["cat"])) == (True, True, str)
        elif e["ph"] == "C":
            assert all(isinstance(x, int | float) for x in e["args"].values())
        else:
            assert (e["ph"], e["name"]) in (("M", "process_name"), ("M", "thread_name"))
            assert isinstance(e["args"]["name"], str)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    return events


def overlapping(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Slices of one track that overlap without one holding the other: a viewer cannot draw them."""
    bad = []
    for track in {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == track)
        bad += [(b, e) for (_, e), (b, _) in pairwise(mine) if b < e - 1e-9]
    return bad


def test_tasks_of_a_prediction(model: Model, tmp_path: Path) -> None:
    p = predict_tasks(model, WAVE)
    write_trace(tmp_path / "t.json", task_events(p))
    events = parsed((tmp_path / "t.json").read_bytes())
    slices = [e for e in events if e["ph"] == "X"]
    assert not overlapping(events)
    count = {c: sum(e["cat"] == c for e in slices) for c in ("compute", "store", "signal")}
    assert count == {"compute": 12, "store": 8, "signal": 4}
    first = next(e for e in slices if e["cat"] == "store" and e["args"]["task"] == 1)
    assert (first["ts"], first["dur"]) == pytest.approx((p.compute_end_ns[1] * 1e-3, p.issue_ns[1] * 1e-3))
    assert first["name"] == "linear2: store"
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"wave (predicted)"}
    counter = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counter == sorted(counter)
    assert max(b for _, b in counter) == pytest.approx(p.backlog_bytes[WAVE.remote_bytes > 0].max())
    assert counter[-1][1] == 0.0
    assert any(e["cat"] == "link" for e in slices)


def test_an_execution_has_no_backlog() -> None:
    trace = next(iter(SimDevice().execute_tasks([WAVE], repetitions=1, compute="spin")))
    events = parsed(encode_trace(task_events(trace, label="wave (simulated)")))
    assert not [e for e in events if e["ph"] == "C"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"wave (simulated)"}


def test_bursts_and_several_time_lines(model: Model) -> None:
    s = Schedule((Burst(65_536), Burst(65_536, 2000)), 132, 4, start="free")
    p = predict(model, s)
    events = parsed(encode_trace(burst_events(p)))
    assert [sum(e["ph"] == "X" and e["cat"] == cat for e in events) for cat in ("issue", "stall")] == [2, 2]
    both = parsed(encode_trace(all_events([p, predict_tasks(model, WAVE)])))
    assert {e["pid"] for e in both} == {1, 2}


def test_intervals_are_merged() -> None:
    begin, end = np.array([5.0, 0.0, 1.0, 9.0]), np.array([6.0, 2.0, 4.0, 9.5])
    assert list(under_way(begin, end)) == [(0.0, 4.0), (5.0, 6.0), (9.0, 9.5)]
    assert list(under_way(np.zeros(0), np.zeros(0))) == []
