"""Exports carry every value of a run, strictly, and never write over it."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from record_fake import make_manifest, make_run

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.record.dump import export_run
from xstage_bench.record.reader import load_run
from xstage_bench.record.writer import RunWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(folder)
    return load_run(folder)


def same(found, frame):
    """Every value of a column: numbers alike, words as they are."""
    for name in frame.columns:
        if frame[name].dtype.kind in "fi":
            np.testing.assert_array_equal(found[name].astype(float), frame[name].astype(float), err_msg=name)
        else:
            assert found[name].fillna("").tolist() == frame[name].fillna("").tolist()


@pytest.mark.parametrize("table", ["samples", "producers", "traces"])
def test_json_and_csv(run, tmp_path, table):
    frame = getattr(run, table)()
    assert export_run(run, "json", tmp_path / "x.json", table=table) == len(frame)
    content = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (content["schema_version"], content["manifest"]["backend"]) == (1, "fake")
    assert export_run(run, "csv", tmp_path / "x.csv", table=table) == len(frame)
    text = (tmp_path / "x.csv").read_text()
    assert "nan" not in text.lower()
    header, *cells = csv.reader(io.StringIO(text))
    words = pd.DataFrame(cells, columns=header)
    numbers = {name: words[name].replace("", np.nan) for name in header if frame[name].dtype.kind in "fi"}
    for found in (pd.DataFrame(content["rows"]), words.assign(**numbers)):
        assert ([*found.columns], len(found)) == ([*frame.columns], len(frame))
        same(found, frame)


def test_an_empty_table(tmp_path):
    with RunWriter(tmp_path / "r", make_manifest()) as writer:
        writer.finish()
    empty = load_run(tmp_path / "r")
    for fmt in ("json", "csv"):
        with pytest.raises(DataError, match="holds no row of the table samples"):
            export_run(empty, fmt, tmp_path / "x")
    assert not (tmp_path / "x").exists()


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
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
