"""From stamps to a Schedule with its Trace, to tasks, and to a run folder that `validate` judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h200
import numpy as np
import pytest
from stamps_fake import BURST, COMPUTE, SIGNAL, WAIT, Part, fake_buffer, pack

from xstage_bench.cli import run
from xstage_bench.errors import DataError
from xstage_bench.measure.stamps.layout import NO_EVENT, Stamps, from_bytes
from xstage_bench.measure.stamps.record import read_traces, record_traces
from xstage_bench.measure.stamps.schedule import trace_of
from xstage_bench.measure.stamps.tasks import tasks_of
from xstage_bench.model.document import load_model
from xstage_bench.model.predict import predict
from xstage_bench.model.validate import validate
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.task_files import load_tasks

NONE = NO_EVENT


def stamps_of(*lists: list[Part], warps: int = 1, block_of: tuple[int, ...] | None = None) -> Stamps:
    """One list per warp; `warps` of them share an SM and a block."""
    slots = [
        {"smid": i // warps, "block": block_of[i] if block_of else i // warps, "warp": i % warps, "first_clock": 1000, "first_ns": 5000}
        for i in range(len(lists))
    ]
    return from_bytes(pack(slots, list(lists), 32))


def test_a_burst_begins_with_the_first_warp_and_ends_with_the_last() -> None:
    a = [(BURST, 100, 400, 512, NONE), (BURST, 2000, 2300, 1024, NONE)]
    b = [(BURST, 90, 350, 512, NONE), (BURST, 2050, 2600, 1024, NONE)]
    trace = trace_of(stamps_of(a, b, warps=2), 1, 0)
    s = trace.schedule
    assert (s.source, s.destination, s.warps, s.start, s.producers) == (1, 0, 2, "free", (0,))
    assert [burst.bytes for burst in s.bursts] == [1024, 2048]
    assert trace.issue_cycles.ravel().tolist() == [310, 600]
    assert trace.gap_cycles.ravel()[1] == 1600
    assert [burst.gap_cycles for burst in s.bursts] == [0, 1400]  # the instrument adds 200 to what it is asked for
    np.testing.assert_allclose(trace.end_ns - trace.start_ns, trace.issue_cycles * 1e3 / trace.sm_clock_mhz)
    assert trace.start_ns.min() == 0
    assert np.isnan(trace.drain_cycles).all()


def test_blocks_one_after_the_other_on_an_sm_are_one_producer() -> None:
    early, late = [(BURST, 100, 200, 512, NONE)], [(BURST, 5000, 5100, 512, NONE)]
    stamps = stamps_of(early, late, block_of=(0, 9))
    together = replace(stamps, smid=np.zeros_like(stamps.smid))
    trace = trace_of(together)
    assert trace.schedule.producers == (0,)
    assert trace.issue_cycles.ravel().tolist() == [100, 100]
    at_once = replace(together, start_clock=np.array([1100, 1150]), end_clock=np.array([1200, 1250]))
    with pytest.raises(DataError, match="two blocks stamped at the same time on SM 0"):
        trace_of(at_once)


@pytest.mark.parametrize(
    ("lists", "warps", "words"),
    [
        ([[(COMPUTE, 0, 10, 0, NONE)]], 1, "no burst was stamped"),
        ([[(BURST, 0, 9, 512, NONE)], [(BURST, 0, 9, 1024, NONE)]], 1, "SM 1 stored 1 bursts of 1024 bytes, SM 0 1 bursts of 512 bytes"),
        ([[(BURST, 0, 9, 512, NONE)], [(COMPUTE, 0, 9, 0, NONE)]], 2, "warps 0 and 1 stamped different parts"),
        ([[(BURST, 0, 9, 500, NONE)]], 1, "not a multiple"),
    ],
)
def test_what_no_schedule_describes_is_refused(lists: list[list[Part]], warps: int, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        trace_of(stamps_of(*lists, warps=warps))
    assert caught.value.hint


def test_tasks_have_the_time_between_stamped_parts_as_compute() -> None:
    a: list[Part] = [
        (COMPUTE, 0, 1000, 0, NONE),
        (BURST, 1100, 1500, 2048, NONE),
        (SIGNAL, 1500, 1700, 0, 3),
        (BURST, 2700, 2900, 512, NONE),
    ]
    b: list[Part] = [(WAIT, 0, 1800, 0, 3), (BURST, 2300, 2400, 1024, NONE), (COMPUTE, 2400, 3000, 0, NONE)]
    schedule, trace = tasks_of(stamps_of(a, b), publish="release.sys", name="pair")
    assert schedule.producers == (0, 1)
    assert schedule.producer.tolist() == [0, 0, 1, 1]
    assert schedule.compute_cycles.tolist() == [1100, 1000, 500, 600]
    assert schedule.bytes.tolist() == schedule.remote_bytes.tolist() == [2048, 512, 1024, 0]
    assert schedule.signals.tolist() == [3, -1, -1, -1]
    assert schedule.waits_for.tolist() == [-1, -1, 3, -1]
    assert (schedule.form, schedule.publish) == ("single", "release.sys")
    ns = 1e3 / trace.sm_clock_mhz
    np.testing.assert_allclose(trace.start_ns, np.array([0, 1700, 1800, 2400]) * ns, atol=1e-6)
    np.testing.assert_allclose(trace.store_end_ns, np.array([1500, 2900, 2400, np.nan]) * ns, atol=1e-6)
    assert trace.signal_end_ns[0] == pytest.approx(1700 * ns)
    assert trace.total_ns == pytest.approx(3000 * ns)
    with pytest.raises(DataError, match="waits for event 4, which no task signals"):
        tasks_of(stamps_of([(WAIT, 0, 10, 0, 4), (BURST, 20, 30, 512, NONE)]))


def test_launches_become_a_run_folder_that_validate_judges(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(fake_buffer(sms=132, warps=4, bursts=5, seed=i))
    traces = read_traces(paths)
    record_traces(traces, tmp_path / "run", ["xstage", "import"], ["a", "b", "c"], "NVIDIA H200")
    run = load_run(tmp_path / "run")
    assert run.manifest.complete
    assert "imported" in run.manifest.notes[0]
    samples = run.samples()
    assert list(schedules_of(samples).values()) == [traces[0].schedule]
    assert sorted(samples["repetition"].unique()) == [0, 1, 2]
    model = load_model(h200.MODEL)
    scores = {m.model: m for m in validate(model, samples).models}
    assert scores["node"].n_bursts == 5
    measured = np.median([t.issue_cycles.mean(axis=1) for t in traces], axis=0)
    predicted = predict(model, traces[0].schedule).issue_cycles
    error = np.median(np.abs(predicted - measured) / measured)
    assert scores["node"].issue_time.median_error == pytest.approx(error, rel=1e-3)
    assert len(run.producers()) == 3 * 5 * 132
    paths[1].write_bytes(fake_buffer(sms=132, warps=3, bursts=5))
    with pytest.raises(DataError, match=r"1\.bin has other bursts or SMs than .*0\.bin"):
        read_traces(paths)


def test_the_verb_writes_what_predict_and_validate_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.bin").write_bytes(fake_buffer(sms=4))
    words = ["import", str(tmp_path / "a.bin"), "--json", "--out", str(tmp_path / "run")]
    assert run([*words, "--schedule", str(tmp_path / "s.json"), "--tasks", str(tmp_path / "t.json")]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["producers"], document["warps"], document["launches"]) == (4, 2, 1)
    assert [b["bytes"] for b in document["bursts"]] == [4096] * 4
    (schedule,) = load_bursts(tmp_path / "s.json")
    assert schedule.producers == (0, 1, 2, 3)
    (tasks,) = load_tasks(tmp_path / "t.json")
    assert tasks.task_count == document["task_count"][0] == 16
    assert run(["import", str(tmp_path / "a.bin")]) == 0
    assert "burst 3: 4096 bytes per producer" in capfd.readouterr().out
    assert run(["import", str(tmp_path / "none.bin"), "--json"]) == 2
    assert "no such file" in json.loads(capfd.readouterr().out)["error"]
    assert run(["import", str(tmp_path / "a.bin"), "--out", str(tmp_path / "run")]) == 2
    assert "never overwrites" in capfd.readouterr().err
