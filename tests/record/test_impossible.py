"""Numbers that no instrument gives: marked where they are read, counted, and in no fit, verdict or fleet; a changed file is named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_fake import make_run

from xstage_bench.record.manifest import load_manifest, save_manifest
from xstage_bench.record.reader import load_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "run"
    make_run(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


def put(folder: Path, table: str, column: str, value: Any, at: int = 0) -> Path:
    """Write a value into one row of status ``ok``."""
    path = folder / ("traces.parquet" if table == "traces" else f"{table}/part-0000.parquet")
    frame = pq.read_table(path)
    rows = np.flatnonzero(frame.column("status").to_numpy() == "ok") if table == "samples" else np.arange(len(frame))
    index = frame.column_names.index(column)
    values = frame.column(column).to_pylist()
    values[int(rows[at])] = value
    pq.write_table(frame.set_column(index, frame.schema.field(index), pa.array(values, frame.schema.field(index).type)), path)
    return path


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("issue_max_cycles", 1.0, "issue_mean_cycles is above issue_max_cycles"),
        ("issue_min_cycles", 1e12, "issue_min_cycles is above issue_mean_cycles"),
        ("issue_mean_cycles", float("inf"), "issue_mean_cycles is infinite"),
        ("issue_mean_cycles", -5.0, "issue_mean_cycles is not positive"),
        ("issue_mean_cycles", None, "issue_mean_cycles is missing"),
        ("makespan_ns", 0.0, "makespan_ns is below issue_max_cycles"),
        ("drain_max_cycles", float("-inf"), "drain_max_cycles is infinite"),
        ("start_skew_ns", -1.0, "start_skew_ns is negative"),
        ("sm_clock_mhz", -1980.0, "sm_clock_mhz is not positive"),
        ("sm_clock_mhz", 19800.0, "sm_clock_mhz is not in the range of its GPU"),
        ("bytes", -512, "bytes is below 0"),
        ("warps", 0, "warps is below 1"),
        ("source", 7, "its GPU is not in the manifest"),
        ("destination", 7, "its destination is not in the manifest"),
    ],
)
def test_a_sample_that_cannot_be_is_marked_and_no_other(folder: Path, sound: Path, column: str, value: Any, why: str) -> None:
    put(folder, "samples", column, value)
    before, after = load_run(sound).samples(), load_run(folder).samples()
    marked = after[after["status"] == "impossible"]
    assert marked["detail"].tolist() == [why]
    assert (after["status"] != before["status"]).sum() == 1
    assert (before["status"] != "impossible").all()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("producers", "end_ns", -1e12),
        ("producers", "issue_cycles", float("inf")),
        ("producers", "drain_cycles", -1.0),
        ("traces", "cycles", float("inf")),
        ("traces", "cycles", -1.0),
        ("traces", "store", -1),
    ],
)
def test_an_execution_with_a_producer_or_store_that_cannot_be_is_left_out_whole(
    folder: Path, sound: Path, table: str, column: str, value: float
) -> None:
    put(folder, table, column, value)
    before, after = (getattr(load_run(run), table)() for run in (sound, folder))
    keys = ["schedule", "process", "repetition", *(["order"] if table == "producers" else [])]
    first = (before[keys] == before[keys].iloc[0]).all(axis=1)
    assert len(after) == len(before) - first.sum()


def test_files_that_are_not_as_they_were_written_are_named(folder: Path, sound: Path) -> None:
    assert load_run(sound).changed() == []
    path = put(folder, "samples", "issue_mean_cycles", 7.0)
    put(folder, "traces", "cycles", 7.0)
    assert load_run(folder).changed() == ["samples/part-0000.parquet", "traces.parquet"]
    assert load_run(folder).changed(("producers",)) == []
    manifest = load_manifest(folder)
    save_manifest(folder, replace(manifest, parts={n: d for n, d in manifest.parts.items() if n != "traces.parquet"}))  # before its digest
    shutil.copy(path, path.with_name("part-0099.parquet"))
    (lost,) = [p for p in (folder / "producers").iterdir() if p.name == "part-0000.parquet"]
    lost.unlink()
    assert load_run(folder).changed() == ["producers/part-0000.parquet", "samples/part-0000.parquet", "samples/part-0099.parquet"]
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text().replace('"parts"', '"of_a_newer_version"'))
    assert load_run(folder).changed() == [], "a run from before digests"
