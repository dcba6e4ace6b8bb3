"""Exports carry every value of a run, strictly, and never write over it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from record_fake import make_run

from xstage_bench.errors import UsageError, XStageError
from xstage_bench.record.dump import export_run
from xstage_bench.record.reader import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(folder)
    return load_run(folder)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("table", ["samples", "producers", "traces"])
def test_json(run, tmp_path, table):
    rows = export_run(run, "json", tmp_path / "x.json", table=table)
    content = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    frame = getattr(run, table)()
    assert rows == len(frame) == len(content["rows"])
    assert content["schema_version"] == 1
    assert content["manifest"]["backend"] == "fake"
    again = pd.DataFrame(content["rows"])
    assert [*again.columns] == [*frame.columns]
    for name in frame.columns:
        if frame[name].dtype.kind in "fi":
            np.testing.assert_array_equal(again[name].astype(float), frame[name].astype(float), err_msg=name)
        else:
            assert again[name].fillna("").tolist() == frame[name].fillna("").tolist()


@pytest.mark.parametrize("table", ["samples", "producers", "traces"])
def test_csv(run, tmp_path, table):
    rows = export_run(run, "csv", tmp_path / "x.csv", table=table)
    frame = getattr(run, table)()
    text = (tmp_path / "x.csv").read_text()
    assert "nan" not in text.lower()
    header, *cells = csv.reader(io.StringIO(text))
    assert header == [*frame.columns]
    assert rows == len(cells) == len(frame)
    for i, name in enumerate(header):
        column = [row[i] for row in cells]
        if frame[name].dtype.kind in "fi":
            np.testing.assert_array_equal([float(c) if c else np.nan for c in column], frame[name].astype(float), err_msg=name)
        else:
            assert column == frame[name].fillna("").tolist()


def test_an_empty_table(tmp_path):
    from record_fake import make_manifest

    from xstage_bench.record.writer import RunWriter

    with RunWriter(tmp_path / "r", make_manifest()) as writer:
        writer.finish()
    empty = load_run(tmp_path / "r")
    assert export_run(empty, "json", tmp_path / "x.json") == 0
    assert json.loads((tmp_path / "x.json").read_text())["rows"] == []
    assert export_run(empty, "csv", tmp_path / "x.csv") == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1


def test_a_second_export_replaces_the_first(run, tmp_path):
    for _ in range(2):
        export_run(run, "csv", tmp_path / "x.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


def test_refusals(run, tmp_path):
    with pytest.raises(UsageError, match="unknown format 'xlsx'"):
        export_run(run, "xlsx", tmp_path / "x")
    with pytest.raises(UsageError, match="no table 'sample'"):
        export_run(run, "csv", tmp_path / "x", table="sample")
    with pytest.raises(UsageError, match="is a folder"):
        export_run(run, "csv", tmp_path)
    with pytest.raises(XStageError, match="no such folder"):
        export_run(run, "csv", tmp_path / "none" / "x.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", ["manifest.json", "traces.parquet", "samples/part-0000.parquet", "producers/new.csv"])
def test_the_run_itself_is_never_written_over(run, own):
    before = (run.folder / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="never overwritten"):
        export_run(run, "csv", run.folder / own)
    assert (run.folder / "manifest.json").read_bytes() == before


def test_a_damaged_part_leaves_no_half_export(run, tmp_path):
    import shutil

    copy = shutil.copytree(run.folder, tmp_path / "r")
    sorted((copy / "samples").iterdir())[-1].write_bytes(b"PAR1")
    with pytest.raises(XStageError, match="cannot be read as Parquet"):
        export_run(load_run(copy), "json", tmp_path / "x.json")
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_stdout_and_a_reader_that_stops(run):
    imports = "from xstage_bench.record.reader import load_run; from xstage_bench.record.dump import export_run"
    code = f"{imports}; export_run(load_run({str(run.folder)!r}), 'csv', '-')"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert len(done.stdout.splitlines()) >= len(run.samples()) + 1
    assert done.stderr == b""
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
