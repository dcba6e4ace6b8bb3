"""A kill at any moment, a full disk, a folder that may not be written: what was flushed stays, and can be resumed."""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from record_fake import NODE, FakeDevice, make_manifest, make_plan, make_run, make_schedules, make_trace, write_plan

from xstage_bench.errors import UsageError, XStageError
from xstage_bench.io import atomic
from xstage_bench.io.identity import Kernel
from xstage_bench.record.reader import load_run
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.device import Execution

ROOT = Path(__file__).parents[2]
OTHER = replace(NODE, gpus=(replace(NODE.gpus[0], uuid="GPU-1"), NODE.gpus[1]))


def check_whole(run):
    """Every execution has all its bursts, once; producers belong to executions that are there."""
    samples = run.samples()
    sizes = samples.groupby(["schedule", "process", "repetition", "kind"])["burst"].agg(["size", "nunique"])
    bursts = samples.groupby(["schedule", "process", "repetition", "kind"])["bursts"].first()
    assert (sizes["nunique"] == bursts).all()
    measured = sizes.index.get_level_values("kind") == "measure"
    assert (sizes["size"][measured] == bursts[measured]).all()
    there = set(zip(samples["schedule"], samples["repetition"], strict=True))
    producers = run.producers()
    assert set(zip(producers["schedule"], producers["repetition"], strict=True)) <= there
    return samples


def measured_rows(samples):
    rows = samples[samples["kind"] == "measure"].drop(columns=["order"])
    return rows.sort_values(["process", "schedule", "repetition", "burst"]).reset_index(drop=True)


def expected_rows(folder, plan):
    with RunWriter(folder, make_manifest()) as writer:
        write_plan(writer, plan)
        writer.finish()
    return measured_rows(load_run(folder).samples())


def test_kill_9_at_random_moments_then_finish(tmp_path):
    folder = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("record_killed.py")), str(folder)]
    delays = random.Random(20261129)
    held = 0
    for _ in range(3):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delays.uniform(0.0, 0.08))
            process.send_signal(signal.SIGKILL)
        run = load_run(folder)
        assert not run.manifest.complete
        samples = check_whole(run)
        assert len(samples) > held
        held = len(samples)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)
    run = load_run(folder)
    assert run.manifest.complete
    assert len(run.manifest.notes) == 3
    assert run.manifest.counts["rows"] == len(run.samples())
    plan = make_plan(make_schedules(12), repetitions=5)
    pd.testing.assert_frame_equal(measured_rows(check_whole(run)), expected_rows(tmp_path / "whole", plan))
    assert [p for p in folder.rglob("*") if p.name.startswith(".")] == []


def test_the_disk_at_every_moment_of_a_run_loads_and_resumes(tmp_path, monkeypatch):
    """A copy of the folder before and after each rename is what a kill at that moment leaves; each of them is then finished."""
    folder, copies = tmp_path / "run", []
    real = os.replace

    def renamed(source, target):
        for _ in range(2):
            copies.append(Path(shutil.copytree(folder, tmp_path / f"copy-{len(copies)}")))
            with contextlib.suppress(FileNotFoundError):
                real(source, target)

    monkeypatch.setattr(atomic.os, "replace", renamed)
    schedules = make_schedules(5)
    make_run(folder, schedules)
    monkeypatch.undo()
    plan = make_plan(schedules)
    whole = measured_rows(load_run(folder).samples())
    assert len(copies) > 20
    leftovers = 0
    for copy in copies:
        leftovers += any(p.name.endswith(".tmp") for p in copy.rglob("*"))
        if (copy / "manifest.json").exists():
            check_whole(load_run(copy))
            if load_run(copy).manifest.complete:
                continue
        with RunWriter(copy, make_manifest(), resume=True) as writer:
            write_plan(writer, plan)
            exemplar = Execution(schedules[1], 99, timeline=True)
            writer.write("fake", 0, 1000, [exemplar], [make_trace(exemplar)], keep_producers=True)
            writer.finish()
        run = load_run(copy)
        pd.testing.assert_frame_equal(measured_rows(check_whole(run)), whole)
        pd.testing.assert_frame_equal(run.traces(), load_run(folder).traces())
        assert not any(p.name.endswith(".tmp") for p in copy.rglob("*"))
        assert len(run.producers().drop_duplicates()) == len(load_run(folder).producers().drop_duplicates())
    assert leftovers >= len(copies) // 2


def fill_disk(monkeypatch, after):
    """Let `after` files through, then refuse as a full disk does: after some of the bytes have been taken."""
    real, count = os.fsync, 0

    def fsync(descriptor):
        nonlocal count
        if os.path.isfile(f"/proc/self/fd/{descriptor}"):
            count += 1
            if count > after:
                os.ftruncate(descriptor, 10)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)


@pytest.mark.parametrize("after", [1, 2, 4, 7])
def test_disk_full(tmp_path, monkeypatch, after):
    folder = tmp_path / "run"
    plan = make_plan(make_schedules(6))
    with monkeypatch.context() as patch:
        fill_disk(patch, after)
        with pytest.raises(XStageError) as caught, RunWriter(folder, make_manifest()) as writer:
            write_plan(writer, plan)
    assert "No space left on device" in caught.value.message
    assert "free some space" in caught.value.hint
    assert caught.value.exit_code == 1
    check_whole(load_run(folder))
    assert not any(p.name.endswith(".tmp") for p in folder.rglob("*"))
    with RunWriter(folder, make_manifest(), resume=True) as writer:
        write_plan(writer, plan)
        writer.finish()
    pd.testing.assert_frame_equal(measured_rows(load_run(folder).samples()), expected_rows(tmp_path / "whole", plan))


def test_rows_refused_once_are_written_by_the_next_flush(tmp_path, monkeypatch):
    execution = Execution(make_schedules()[0])
    with RunWriter(tmp_path, make_manifest()) as writer:  # an empty folder is welcome
        assert writer.done == set()
        writer.write("fake", 0, 0, [execution], [make_trace(execution)], keep_producers=True)
        with monkeypatch.context() as patch:
            fill_disk(patch, 0)
            with pytest.raises(XStageError):
                writer.flush()
        writer.finish()
    assert len(load_run(tmp_path).samples()) == len(execution.schedule.bursts)


def test_a_small_file_system_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with pytest.raises(XStageError, match="No space left"), RunWriter(disk / "run", make_manifest()) as writer:
            write_plan(writer, make_plan(make_schedules(12), repetitions=20), flush_every=1)
        assert len(check_whole(load_run(disk / "run"))) > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def unprivileged():
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_without_permission(tmp_path):
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    tmp_path.chmod(0o555)
    with unprivileged(), pytest.raises(XStageError, match="Permission denied") as caught:
        RunWriter(tmp_path / "run", make_manifest())
    assert caught.value.exit_code == 1
    tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_keeps_what_was_measured_and_leaves_the_run_incomplete(tmp_path):
    execution = Execution(make_schedules()[0])
    writer = RunWriter(tmp_path / "r", make_manifest())

    def measure():
        with writer:
            writer.write("fake", 0, 0, [execution], [make_trace(execution)], keep_producers=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    run = load_run(tmp_path / "r")
    assert not run.manifest.complete
    assert len(run.samples()) == len(execution.schedule.bursts)


class TestNeverOverwrites:
    def test_a_run(self, tmp_path):
        make_run(tmp_path / "r")
        before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*.*") if p.is_file()}
        for resume in (False, True):
            with pytest.raises(UsageError, match="complete" if resume else "never overwrites"):
                RunWriter(tmp_path / "r", make_manifest(), resume=resume)
        assert {p: p.read_bytes() for p in before} == before

    @pytest.mark.parametrize("resume", [False, True])
    def test_a_folder_of_other_things(self, tmp_path, resume):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(UsageError, match=r"thesis\.tex"):
            RunWriter(tmp_path, make_manifest(), resume=resume)
        assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_file_or_an_interrupted_run_without_resume(self, tmp_path):
        (tmp_path / "f").write_text("x")
        with pytest.raises(UsageError, match="is a file"):
            RunWriter(tmp_path / "f", make_manifest())
        with pytest.raises(UsageError):
            RunWriter(tmp_path / "f" / "run", make_manifest())
        make_run(tmp_path / "r", finish=False)
        with pytest.raises(UsageError, match="never overwrites"):
            RunWriter(tmp_path / "r", make_manifest())


class TestResume:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(UsageError, match="nothing to resume"):
            RunWriter(tmp_path / "none", make_manifest(), resume=True)
        assert not (tmp_path / "none").exists()

    @pytest.mark.parametrize("change", [{"backend": "cuda"}, {"seed": 8}, {"cuda_sources": "abc"}, {"simulated": False}, {"node": OTHER}])
    def test_of_another_kind(self, tmp_path, change):
        make_run(tmp_path / "r", finish=False)
        with pytest.raises(UsageError, match="GPU-1" if "node" in change else next(iter(change))):
            RunWriter(tmp_path / "r", make_manifest(**change), resume=True)

    def test_measured_by_the_same_kernels_however_the_rest_of_the_sources_changed(self, tmp_path):
        first, flavour = (Kernel(source="burst.cu", arch="sm_90", compiler="NVRTC 13.0", identity=i) for i in ("aa", "bb"))
        with RunWriter(tmp_path / "r", make_manifest(cuda_sources="before", kernels=[first, flavour])):
            pass
        with pytest.raises(UsageError, match=r"another burst\.cu"):
            RunWriter(tmp_path / "r", make_manifest(kernels=[replace(first, identity="cc")]), resume=True)
        with RunWriter(tmp_path / "r", make_manifest(cuda_sources="after", kernels=[first]), resume=True) as writer:
            assert writer.manifest.kernels == [first, flavour]

    def test_done_holds_what_need_not_be_measured_again(self, tmp_path):
        plan = make_run(tmp_path / "r", finish=False)
        with RunWriter(tmp_path / "r", make_manifest(argv=["again"]), resume=True) as writer:
            assert writer.done == {(e.schedule.key(), p, e.repetition) for p, _, e in plan if e.kind != "warmup"}
            assert writer.manifest.argv == []
            manifest = writer.finish()
        assert manifest.counts["executions"] == len(plan)
        assert "resumed at" in manifest.notes[0]
        assert load_run(tmp_path / "r").changed() == []
        assert "traces.parquet" in manifest.parts

    def test_while_it_is_being_written(self, tmp_path):
        writer = RunWriter(tmp_path / "r", make_manifest())
        with pytest.raises(UsageError, match="another process"):
            RunWriter(tmp_path / "r", make_manifest(), resume=True)
        with writer:
            pass
        with RunWriter(tmp_path / "r", make_manifest(), resume=True):
            pass


def test_a_trace_for_each_execution(tmp_path):
    execution = Execution(make_schedules()[0])
    with RunWriter(tmp_path / "r", make_manifest()) as writer, pytest.raises(ValueError, match="shorter"):
        writer.write("fake", 0, 0, [execution, execution], list(FakeDevice().measure([execution])), keep_producers=False)
