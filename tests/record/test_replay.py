"""A replayed run gives back what was recorded, bit for bit, and refuses what was not."""

import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from record_fake import NODE, make_manifest, make_run, make_schedules, make_trace

from xstage_bench.device import replay
from xstage_bench.device.replay import ReplayDevice, find_run
from xstage_bench.errors import DataError, PairError, UsageError
from xstage_bench.record.columns import MEASURED, PER_PRODUCER, recorded_precision
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "fake-node"
    return folder, make_run(folder)


def test_summaries_and_marks_come_back(recorded):
    folder, plan = recorded
    for process in range(3):
        device = ReplayDevice(str(folder), process=process)
        executions = [e for p, _, e in plan if p == process]
        for execution, trace in zip(executions, device.measure(executions), strict=True):
            original = make_trace(execution)
            assert (trace.status, trace.detail, trace.sm_clock_mhz) == (original.status, original.detail, original.sm_clock_mhz)
            assert trace.schedule == execution.schedule
            np.testing.assert_array_equal(trace.smids, original.smids)
            for name in MEASURED:
                np.testing.assert_array_equal(trace.summary()[name], recorded_precision(original.summary()[name]))
            for name in PER_PRODUCER:
                kept = execution.repetition % 2 == 0
                got, expected = getattr(trace, name), getattr(original, name)
                assert got.shape == expected.shape
                np.testing.assert_array_equal(got, expected if kept else np.full_like(expected, np.nan))


def test_what_was_not_recorded_is_refused_but_for_a_warm_up(recorded):
    folder, _ = recorded
    device = ReplayDevice(str(folder), process=1)
    other = Schedule((Burst(512 * 77),), 3)
    with pytest.raises(UsageError, match=other.key()) as caught:
        list(device.measure([Execution(other)]))
    assert "replay:fake-node" in caught.value.message
    known = make_schedules()[0]
    with pytest.raises(UsageError, match="measure 0 of schedule") as caught:
        list(device.measure([Execution(known, 0)]))
    assert "[2, 3]" in caught.value.hint
    (warm,) = device.measure([Execution(make_schedules()[3], 50, kind="warmup")])
    assert warm.status == "warmup", "a warm-up that was not recorded is served, and marked"
    with pytest.raises(UsageError, match="time line"):
        list(device.measure([Execution(known, timeline=True)]))
    with pytest.raises(UsageError, match="process 3 is not in"):
        ReplayDevice(str(folder), process=3)


def test_an_execution_recorded_twice_is_served_in_order(tmp_path):
    schedule = make_schedules()[0]
    sentinels = [Execution(schedule, 0, kind="sentinel")] * 3
    traces = [replace(make_trace(sentinels[0]), sm_clock_mhz=1900.0 + i) for i in range(3)]
    with RunWriter(tmp_path / "r", make_manifest()) as writer:
        writer.write("fake", 0, 0, sentinels, traces, keep_producers=False)
        writer.finish()
    device = ReplayDevice(str(tmp_path / "r"))
    assert [t.sm_clock_mhz for t in device.measure(sentinels + sentinels[:1])] == [1900.0, 1901.0, 1902.0, 1900.0]


def test_names_and_places(recorded, tmp_path, monkeypatch):
    folder, _ = recorded
    results = tmp_path / "results"
    shutil.copytree(folder, results / "node-a")
    shutil.copytree(folder, results / "reference" / "node-b")
    monkeypatch.setattr(replay, "asset_dir", lambda name: tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert ReplayDevice("node-a").backend == "replay:node-a"
    assert find_run("node-b").folder == results / "reference" / "node-b"
    shutil.copytree(folder, tmp_path / "node-b")
    assert find_run("node-b").folder.resolve() == tmp_path / "node-b"
    with pytest.raises(UsageError, match="no recorded run 'node-c'") as caught:
        find_run("node-c")
    assert "node-a" in caught.value.hint
    assert "node-b" in caught.value.hint
    with pytest.raises(UsageError):
        find_run("")
    with pytest.raises(DataError, match="not a run folder"):
        find_run("results")


def test_the_replay_of_a_simulated_run_is_simulated_and_failed_pairs_fail_again(tmp_path):
    make_run(tmp_path / "r", finish=False)
    with RunWriter(tmp_path / "r", make_manifest(), resume=True) as writer:
        writer.finish(failed_pairs={"1>0": "offset 512: expected 7, found 0"})
    device = ReplayDevice(str(tmp_path / "r"))
    assert device.simulated
    assert device.node() == NODE
    device.verify(0, 1)
    with pytest.raises(PairError, match="expected 7, found 0"):
        device.verify(1, 0)
    device.close()
    device.close()


def test_incomplete_producers_are_named(recorded, tmp_path):
    folder, plan = recorded
    copy = shutil.copytree(folder, tmp_path / "r")
    part = sorted((copy / "producers").iterdir())[0]
    pq.write_table(pq.read_table(part).slice(3), part)  # the first two rows are whole executions
    with pytest.raises(DataError, match="producers of schedule"):
        list(ReplayDevice(str(copy)).measure([e for p, _, e in plan if p == 0]))
