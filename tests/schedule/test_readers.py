"""Schedule files as other programs write them: read, or refused by what they are; our own tables read back; pipes are read once."""

from __future__ import annotations

import json
import threading
from os import mkfifo
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from random_schedules import schedules

from xstage_bench.errors import DataError
from xstage_bench.schedule.burst_files import load_bursts, save_bursts
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.files import load_schedules
from xstage_bench.schedule.tasks import TaskSchedule

TWO = [Schedule((Burst(65536), Burst(2048, 30)), 132, 4, start="free")]
ONE = {
    "producers": 132.0,
    "warps": 4,
    "start": "free",
    "bursts": [{"bytes": 6.5536e4, "gap_cycles": None}, {"bytes": 2048, "gap_cycles": 30.0}],
}
TASK = {"producers": 1, "tasks": {"producer": [0], "compute_cycles": [9.0], "bytes": [2048]}}


@pytest.mark.parametrize(
    "text",
    [
        "producers,warps,start,bytes,gap_cycles\n132.0,4.0,free,65536.0,nan\n132.0,4.0,free,2.048e3,30.0\n",
        "producers,warps,start,bytes,gap_cycles\n132,4,free,65536,<NA>\nNA,,None,2048,30\n",
        ",producers,warps,start,bytes,gap_cycles\n0,132,4,free,65536,\n1,132,4,free,2048,30\n",
        "producers\twarps\tstart\tbytes\tgap_cycles\n132\t4\tfree\t65536\t\n132\t4\tfree\t2048\t30\n",
        "sep=;\nproducers;warps;start;bytes;gap_cycles\n132;4;free;65536;\n132;4;free;2048;30\n",
        "# made by hand\n\nproducers|warps|start|bytes|gap_cycles\n132|4|free|65536|0\n# the second\n132|4|free|2048|30\n",
        json.dumps([ONE]),
        json.dumps(ONE),
    ],
)
def test_what_spreadsheets_and_pandas_write(tmp_path, text):
    (tmp_path / "s").write_text(text)
    assert load_schedules(tmp_path / "s") == TWO


def test_lists_and_commented_files_of_tasks_are_of_tasks(tmp_path):
    for text in (json.dumps([TASK]), "# tasks\nproducers;producer;compute_cycles;bytes\n1;0;9.0;2048\n"):
        (tmp_path / "t").write_text(text)
        (found,) = load_schedules(tmp_path / "t")
        assert isinstance(found, TaskSchedule)
        assert found.bytes.tolist() == [2048]


@given(some=schedules())
@settings(deadline=None, max_examples=25)
def test_our_table_through_pandas_reads_back(tmp_path_factory, some):
    folder = tmp_path_factory.mktemp("p")
    save_bursts(folder / "s.csv", [some])
    table = pd.read_csv(folder / "s.csv").astype({"bytes": float})
    for write, name in ((table.to_csv, "a.csv"), (table.to_parquet, "a.parquet"), (lambda p: table.to_csv(p, sep=";"), "b.csv")):
        write(folder / name)
        assert load_bursts(folder / name) == [some], name


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"nvbandwidth": {"testcases": []}}', "nvbandwidth"),
        ("nvbandwidth Version: v0.7\nBuilt from Git version\n", "nvbandwidth"),
        ('{\n "traceEvents": []}', "Chrome trace"),
        ('[{"name": "k", "ph": "X", "ts": 1}]', "Chrome trace"),
        ("Time (%),Total Time (ns),Instances\n1,2,3\n", "Nsight"),
        ('"ID","Process ID","Metric Name"\n', "Nsight"),
        ("\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\n", "topo -m"),
        ("# nThread 1 nGpus 8 minBytes 8\n", "nccl-tests"),
        ('<?xml version="1.0"?>\n', "XML"),
        ('{"schema_version": 1, "sm_clock_mhz": 1980, "pairs": []}', "a model of xstage"),
        ('{"schema_version": 1, "provenance": {}, "stages": []}', "an export of a model for other programs"),
        ("PK\x03\x04", "zip"),
    ],
)
def test_files_of_other_programs_are_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(DataError, match="this is") as caught:
        load_schedules(tmp_path / "x")
    assert what in caught.value.message


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(json.dumps(ONE)))
    writer.start()
    assert load_schedules(tmp_path / "pipe") == TWO
    writer.join()
