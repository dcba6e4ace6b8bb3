"""What is written is what is read, value for value."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_fake import FakeDevice, make_manifest, make_plan, make_run, make_schedules, make_trace

from xstage_bench.record import writer as writer_module
from xstage_bench.record.columns import MEASURED, PER_PRODUCER, SAMPLES, recorded_precision
from xstage_bench.record.manifest import load_manifest
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.record.rows import summaries
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.trace import Trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return make_run(folder), load_run(folder)


def test_every_row_holds_what_was_measured(recorded):
    plan, run = recorded
    samples = run.samples()
    assert len(samples) == sum(len(e.schedule.bursts) for _, _, e in plan)
    rows = iter(samples.to_dict("records"))
    for process, order, execution in plan:
        trace, s = make_trace(execution), execution.schedule
        summary = trace.summary()
        for i, burst in enumerate(s.bursts):
            row = next(rows)
            asked_gap = burst.gap_cycles if s.start == "free" and i else np.nan
            asked_start = burst.start_ns if s.start == "timed" else np.nan
            expected = {
                "schedule": s.key(), "probe": "fake", "kind": execution.kind, "source": s.source, "destination": s.destination,
                "flavour": "st.v4", "layout": "contiguous", "completion": "fence.sys",
                "start": s.start, "producers": s.producer_count, "producer_set": s.producer_set,
                "warps": s.warps, "burst": i, "bursts": len(s.bursts), "bytes": burst.bytes,
                "gap_cycles": asked_gap, "start_ns": asked_start,
                "process": process, "repetition": execution.repetition, "order": order, "sm_clock_mhz": trace.sm_clock_mhz,
                "status": trace.status, **{name: recorded_precision(summary[name][i]) for name in MEASURED},
            }  # fmt: skip
            detail = row.pop("detail")
            assert (detail if isinstance(detail, str) else "") == trace.detail
            assert row.keys() == expected.keys()
            for name, value in expected.items():
                assert row[name] == value or (np.isnan(row[name]) and np.isnan(value)), name


def test_whole_numbers_are_exact_and_means_to_a_thousandth(recorded):
    _, run = recorded
    samples = run.samples()
    for name in ("issue_min_cycles", "issue_max_cycles", "start_skew_ns", "makespan_ns"):
        assert (samples[name] == samples[name].round()).all()
    exact = np.array([1 / 3, 1e9 + 1 / 7, 0.0, np.nan])
    assert np.nanmax(np.abs(recorded_precision(exact) - exact)) <= 1 / 2048
    assert np.isnan(recorded_precision(exact)[3])


def test_producers_of_the_kept_repetitions(recorded):
    plan, run = recorded
    producers = run.producers()
    kept = [(p, e) for p, _, e in plan if e.repetition % 2 == 0]
    assert len(producers) == sum(len(e.schedule.bursts) * e.schedule.producer_count for _, e in kept)
    position = 0
    for process, execution in kept:
        trace = make_trace(execution)
        n, k = trace.issue_cycles.shape
        rows = producers.iloc[position : position + n * k]
        position += n * k
        assert (set(rows["schedule"]), set(rows["process"])) == ({execution.schedule.key()}, {process})
        assert rows["burst"].tolist() == np.repeat(np.arange(n), k).tolist()
        assert rows["producer"].tolist() == list(range(k)) * n
        assert rows["smid"].tolist() == trace.smids.tolist() * n
        for name in PER_PRODUCER:
            np.testing.assert_array_equal(rows[name].to_numpy().reshape(n, k), getattr(trace, name))


def test_an_exemplar_is_in_traces_alone(recorded):
    _, run = recorded
    exemplar = Execution(make_schedules()[1], 99, timeline=True)
    traces = run.traces()
    np.testing.assert_array_equal(traces["cycles"], make_trace(exemplar).timeline_cycles.ravel())
    assert set(traces["schedule"]) == {exemplar.schedule.key()}
    assert 99 not in set(run.samples()["repetition"])
    assert 99 not in set(run.producers()["repetition"])


def test_schedules_are_rebuilt(recorded):
    plan, run = recorded
    rebuilt = schedules_of(run.samples())
    assert rebuilt == {s.key(): schedules_of_row(s) for s in dict.fromkeys(e.schedule for _, _, e in plan)}


def schedules_of_row(schedule):
    """Gaps and start times that mean nothing are not recorded, so they come back as zero."""
    free, timed = schedule.start == "free", schedule.start == "timed"
    bursts = enumerate(schedule.bursts)
    kept = [replace(b, gap_cycles=b.gap_cycles if free and i else 0, start_ns=b.start_ns if timed else 0) for i, b in bursts]
    return replace(schedule, bursts=tuple(kept))


def test_manifest_counts_and_strict_json(recorded):
    plan, run = recorded
    manifest = run.manifest
    assert (manifest.complete, manifest.finished is not None, manifest.wall_s) == (True, True, 1.5)
    assert [manifest.counts[name] for name in ("executions", "rows", "schedules")] == [len(plan), len(run.samples()), 8]
    statuses = [make_trace(e).status for _, _, e in plan]
    for status in ("ok", "warmup", "throttled", "timeout"):
        assert manifest.counts[f"status_{status}"] == statuses.count(status)
    json.loads((run.folder / "manifest.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_nan_in_a_manifest_becomes_null(tmp_path):
    before = {"clock_mhz": float("nan"), "deep": [{"power_w": float("inf")}]}
    with RunWriter(tmp_path / "r", make_manifest(environment_before=before)):
        pass
    assert load_manifest(tmp_path / "r").environment_before == {"clock_mhz": None, "deep": [{"power_w": None}]}


def test_an_empty_run_loads_with_typed_columns(tmp_path):
    with RunWriter(tmp_path / "r", make_manifest()) as writer:
        writer.finish()
    run = load_run(tmp_path / "r")
    assert [*run.samples().columns] == [c.name for c in SAMPLES]
    assert run.samples()["issue_mean_cycles"].dtype == np.float64
    assert len(run.producers()) == len(run.traces()) == 0
    assert schedules_of(run.samples()) == {}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_reducing_in_batches_changes_no_bit(shapes, seed):
    rng = np.random.default_rng(seed)
    schedule = make_schedules()[0]
    traces = []
    for n, k in shapes:
        arrays = [np.where(rng.random((n, k)) < 0.1, np.nan, rng.normal(1e4, 3e3, (n, k))) for _ in range(5)]
        if rng.random() < 0.3:
            arrays = [np.asfortranarray(a) for a in arrays]
        traces.append(Trace(schedule, np.arange(k), *arrays, sm_clock_mhz=1.0))
    for trace, batched in zip(traces, summaries(traces), strict=True):
        for name, values in trace.summary().items():
            np.testing.assert_array_equal(recorded_precision(batched[name]), recorded_precision(values), err_msg=name)


def test_parts_by_rows_never_split_an_execution(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_ROWS", 10)
    plan = make_plan(make_schedules())
    with RunWriter(tmp_path / "r", make_manifest()) as writer:
        executions = [e for _, _, e in plan]
        writer.write("fake", 0, 0, executions, list(FakeDevice().measure(executions)), keep_producers=True)
        writer.finish()
    run = load_run(tmp_path / "r")
    parts = [p.to_pandas() for p in run.arrow_parts("samples")]
    assert len(parts) > 5
    for part in parts:
        assert part["burst"].iloc[0] == 0
        assert part["burst"].iloc[-1] == part["bursts"].iloc[-1] - 1
        assert len(part) < 10 + 4
    assert len(run.producers()) == sum(len(e.schedule.bursts) * e.schedule.producer_count for e in executions)


def test_parts_by_time(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.0)
    execution = Execution(make_schedules()[0])
    writer = RunWriter(tmp_path / "r", make_manifest())
    for order in range(3):
        writer.write("fake", 0, order, [execution], [make_trace(execution)], keep_producers=False)
        assert len(load_run(tmp_path / "r").samples()) == order + 1
