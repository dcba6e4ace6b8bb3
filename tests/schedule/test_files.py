"""Schedule files of bursts and of tasks: what is saved loads equal, and each fault gives one line that says where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_tasks, schedules

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.schedule import burst_csv
from xstage_bench.schedule.burst_csv import COLUMNS, schedules_from_csv
from xstage_bench.schedule.burst_files import load_bursts, save_bursts
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.task_csv import COLUMNS as TASK_COLUMNS
from xstage_bench.schedule.task_files import is_task_file, load_tasks, save_tasks
from xstage_bench.schedule.tasks import NONE, TaskSchedule

LOADERS = (load_bursts, load_tasks)
SOON = settings(deadline=None, max_examples=60)
ONE = {"producers": 1, "tasks": {"producer": [0], "compute_cycles": [9], "bytes": [2048]}}


@st.composite
def task_schedules(draw: st.DrawFn) -> TaskSchedule:
    s = draw(random_tasks(producers=6, tasks=12))
    label = st.text(st.characters(codec="utf-8", categories=["L", "P", "N"]), min_size=1, max_size=5)
    names = draw(st.lists(label, unique=True, min_size=1))
    return replace(
        s,
        producers=draw(st.sampled_from([s.producer_count, s.producers])),
        phase=np.array(draw(st.lists(st.integers(0, len(names) - 1), min_size=s.task_count, max_size=s.task_count))),
        phases=tuple(names),
        warps=draw(st.sampled_from([1, 2, 4])),
        source=draw(st.integers(0, 3)),
        destination=draw(st.integers(4, 7)),
        name=draw(st.sampled_from(["", "a b", 'with "quotes", and a comma'])),
    )


def labels(s: TaskSchedule) -> list[str]:
    return [s.phases[i] for i in s.phase]


def same(a: TaskSchedule, b: TaskSchedule) -> bool:
    """Equal in all that both file types keep."""
    return a.key() == b.key() and a.name == b.name and a.producers == b.producers and labels(a) == labels(b)


@given(
    some=st.lists(schedules(), min_size=1, max_size=4),
    suffix=st.sampled_from([".json", ".csv", ".CSV", ""]),
    bom=st.booleans(),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
@settings(deadline=None)
def test_saved_bursts_load_equal_with_any_line_end_and_byte_order_mark(tmp_path_factory, some, suffix, bom, line_end):
    path = tmp_path_factory.mktemp("s") / f"x{suffix}"
    some = [*some, some[0]]
    save_bursts(path, some)
    assert load_bursts(path) == some
    path.write_bytes(b"\xef\xbb\xbf" * bom + path.read_bytes().replace(b"\n", line_end))
    assert load_bursts(path) == some
    assert not is_task_file(path)


@given(some=st.lists(task_schedules(), min_size=1, max_size=3), suffix=st.sampled_from([".json", ".csv", ".CSV"]))
@SOON
def test_saved_tasks_load_equal(tmp_path_factory, some, suffix):
    path = tmp_path_factory.mktemp("t") / f"x{suffix}"
    some = [*some, some[0]]
    save_tasks(path, some)
    found = load_tasks(path)
    assert all(same(a, b) for a, b in zip(found, some, strict=True))
    assert is_task_file(path)
    if suffix == ".json":
        assert all(a.phases == b.phases for a, b in zip(found, some, strict=True))


def loads_or_says_why(load, path: Path) -> None:
    try:
        found = load(path)
    except XStageError as caught:
        error = caught
    else:
        assert found
        return
    assert isinstance(error, DataError)
    assert str(path) in error.message
    assert "\n" not in error.message
    assert error.hint


@given(data=st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789bytesproducw\n\r;-. ', max_size=200).map(str.encode))
@settings(deadline=None, max_examples=300)
def test_whatever_the_bytes_only_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(data)
    for load in LOADERS:
        loads_or_says_why(load, path)


VALUES = ["", "0", "1", "132", "-1", "512", "2048", "x", "smid:0 2", "smid:", "nan", "free", "timed", "true", "single", "relaxed"]
csv_cells = st.sampled_from([*VALUES, "st.v4", "1e3", '"', " 4 ", "٣", "9" * 19])


@given(
    header=st.lists(st.sampled_from([*COLUMNS, *TASK_COLUMNS]), max_size=9, unique=True),
    rows=st.lists(st.lists(csv_cells, max_size=9), max_size=4),
)
@pytest.mark.parametrize(
    ("load", "first"), [(load_bursts, {}), (load_tasks, {"producers": "1", "producer": "0", "compute_cycles": "5", "bytes": "2048"})]
)
@settings(deadline=None, max_examples=200)
def test_whatever_the_cells_only_our_errors(tmp_path_factory, load, first, header, rows):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    head = [*first, *(h for h in header if h not in first)]
    path.write_text("\n".join(",".join(row) for row in [head, *([*first.values(), *r] for r in rows)]))
    loads_or_says_why(load, path)


CELLS = st.sampled_from(
    ["2048", "4096.0", "2048.5", "1", "", "nan", " 2048", "0", "132", "smid:0 2", "free", "a", "b", "#a", '"a"', "9" * 16, "-1", "1e3"]
)


@given(
    names=st.lists(st.sampled_from(["schedule", "start", "warps", "gap_cycles", "start_ns", "source", ""]), max_size=4, unique=True),
    rows=st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=6),
    good=st.booleans(),
    line_end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
@settings(deadline=None, max_examples=200)
def test_columns_and_rows_are_read_alike(names, rows, good, line_end):
    plain = {"schedule": "ab", "start": ("free", ""), "warps": "12", "gap_cycles": ("7", "8.0", ""), "start_ns": ("0", ""), "source": "0"}
    lines = [["producers", "bytes", *names]]
    for row in rows:
        fine = [plain.get(name, "0")[len(cell) % len(plain.get(name, "0"))] for name, cell in zip(names, row, strict=False)]
        lines.append(["8", "4096", *fine] if good else ["8", *row[: 1 + len(names)]])
    text = line_end.join(",".join(line) for line in lines)
    found = []
    for long in (0, 1 << 40):
        with patch.object(burst_csv, "_LONG", long):
            try:
                found.append(schedules_from_csv(text))
            except DataError as error:
                found.append((error.message, error.hint))
    assert found[0] == found[1]


def written(tmp_path: Path, content: object, load=load_bursts):
    path = tmp_path / "x"
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path)


def refused(tmp_path, content, *words, load=load_bursts):
    with pytest.raises(DataError) as caught:
        written(tmp_path, content, load)
    message = caught.value.message
    assert message.startswith(str(tmp_path / "x"))
    assert message.count(str(tmp_path)) == 1
    assert "\n" not in message
    assert caught.value.hint
    for word in words:
        assert word in message, message
    return caught.value


def test_rows_are_bursts_and_ids_part_schedules(tmp_path):
    usual = [Schedule((Burst(512),), 132)]
    assert written(tmp_path, "producers,bytes\n132,512\n") == usual
    assert written(tmp_path, "producers,bytes,warps,source,destination,start,flavour,layout,gap_cycles,start_ns\n132,512,,,,,,,,") == usual
    text = "schedule,producers,start,bytes,gap_cycles\nb,8,free,512,0\na,4,,1024,0\nb,,,2048,30\n\nb,8,free,0,7\n"
    b = Schedule((Burst(512), Burst(2048, 30), Burst(0, 7)), 8, start="free")
    assert written(tmp_path, text) == [b, Schedule((Burst(1024),), 4)]
    assert written(tmp_path, 'producers , bytes\n"smid:0,2,4", 512 \n') == [Schedule((Burst(512),), (0, 2, 4))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("producers\n132\n", ["line 1", "column 'bytes' is missing"]),
        ("producers,bytes,byte\n132,512,1\n", ["line 1", "unknown column 'byte'"]),
        ("producers,bytes,bytes\n132,512,1\n", ["line 1", "'bytes' is there twice"]),
        ("producers,bytes\n132,512\n132,512,3\n", ["line 3", "3 cells, the header has 2"]),
        ("producers,bytes\n132,\n", ["line 2", "'bytes' is empty"]),
        ("producers,bytes\n132,512.5\n", ["line 2", "'bytes' is '512.5'"]),
        ("producers,bytes\n132,1_024\n", ["line 2", "'bytes' is '1_024'"]),
        ("producers,bytes\n132," + "9" * 5000 + "\n", ["line 2", "not a whole number"]),
        ("producers,bytes\n132,99999999999999\n", ["line 2", "must be 0 to"]),
        ("producers,bytes,warps\n132,512,4\n", ["line 2", "512 bytes is not a multiple of 2048"]),
        ("producers,bytes,start,gap_cycles\n132,512,free,0\n132,512,free,-5\n", ["line 3", "negative gap_cycles"]),
        ("producers,bytes,start,start_ns\n1,512,timed,9\n1,512,timed,10\n\n1,512,timed,8\n1,512,timed,3\n", ["line 5", "8 is before"]),
        ("producers,bytes\n,512\n", ["line 2", "'producers' is empty"]),
        ("producers,bytes\nsmid:,512\n", ["line 2", "'smid:'"]),
        ("producers,bytes\nall,512\n", ["line 2", "'all'"]),
        ("schedule,producers,bytes\na,1,512\nb,2,512\na,2,512\n", ["line 4", "'producers' is '2', but '1' in line 2", "'a'"]),
        ("schedule,producers,bytes\n,1,512\n", ["line 2", "'schedule' is empty"]),
        ('producers,bytes\n132,"512\n', ["line 2"]),
        ("producers,bytes\n", ["holds no schedule"]),
        ("hello\n", ["line 1", "unknown column 'hello'"]),
    ],
)
def test_faults_in_csv(tmp_path, text, words):
    refused(tmp_path, text, *words)
    refused(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), *words)


def test_the_hint_names_the_nearest(tmp_path):
    assert "'gap_cycles'" in refused(tmp_path, "producers,bytes,gap_cycle\n1,512,0\n").hint
    assert refused(tmp_path, "producers,bytes,warps\n1,5000,4\n").hint == "use 4096 or 6144"


def test_many_rows_and_the_fault_in_the_last_of_them(tmp_path):
    rows = [f"s{i // 20},132,4,free,{2048 * (i % 50)},{i % 977}" for i in range(100_000)]
    head = "schedule,producers,warps,start,bytes,gap_cycles\n"
    found = written(tmp_path, head + "\n".join(rows))
    assert len(found) == 5000
    assert found[-1].bursts[-1] == Burst(2048 * 49, 99_999 % 977)
    rows[88_888] = rows[88_888].replace("free,", "free,1")
    refused(tmp_path, head + "\n".join(rows), "line 88890", "is not a multiple of 2048")


def test_one_and_several_schedules_in_json(tmp_path):
    one = {"producers": [0, 2], "warps": 2, "start": "free", "bursts": [{"bytes": 1024}, {"bytes": 2048, "gap_cycles": 9}]}
    expected = Schedule((Burst(1024), Burst(2048, 9)), (0, 2), 2, start="free")
    assert written(tmp_path, one) == written(tmp_path, {"schema_version": 1, **one}) == [expected]
    several = {"schema_version": 1, "schedules": [{"id": "a", **one}, {**one, "producers": 5}]}
    assert written(tmp_path, several) == [expected, replace(expected, producers=5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not JSON"]),
        ('{"producers": 1, "bursts": [{"bytes": NaN}]}', ["not JSON", "NaN"]),
        ("[1, 2]", ["object", "int"]),
        ('{"bursts": [{"bytes": 512}]}', ["missing", "producers"]),
        ('{"producers": 1}', ["missing", "bursts"]),
        ('{"producers": 1, "bursts": [{}]}', ["bytes", "$.bursts[0]"]),
        ('{"producers": 1, "bursts": [{"bytes": "512"}]}', ["int", "str", "$.bursts[0].bytes"]),
        ('{"producers": 1, "bursts": [{"bytes": true}]}', ["int", "bool"]),
        ('{"producers": 1, "bursts": [{"bytes": 512}, {"bytes": -512}]}', ["burst 1", "-512"]),
        ('{"producers": 1, "bursts": [{"bytes": 512, "gap": 5}]}', ["gap"]),
        ('{"producers": 1, "bursts": [{"bytes": 512}], "warp": 2}', ["warp"]),
        ('{"producers": 1, "start": "soon", "bursts": [{"bytes": 512}]}', ["soon", "$.start"]),
        ('{"producers": "all", "bursts": [{"bytes": 512}]}', ["$.producers"]),
        ('{"schedules": []}', ["schema_version"]),
        ('{"schema_version": 1, "schedules": []}', ["no schedule"]),
        ('{"schema_version": 2, "schedules": []}', ["version 2", "up to 1"]),
        ('{"schema_version": 1, "schedules": [{"producers": 1, "id": "a", "bursts": [{"bytes": 5}]}]}', ["schedules[0] ('a')", "burst 0"]),
        ('{"producers": 1, "bursts": [{"bytes": 1' + "0" * 40 + "}]}", []),
        ("[" * 100_000, []),
        (b"", ["empty"]),
        (b"\xef\xbb\xbf \n", ["empty"]),
        (b"PAR1\x00\x01\x02", ["Parquet"]),
        (b"\x89PNG\r\n\x1a\n\x00", ["this is a picture"]),
        ("producers,bytes\n1,512\n".encode("utf-16"), ["UTF-16"]),
        ("producers,bytes\n1,512\n# é\n".encode("latin-1"), ["not UTF-8", "byte 24"]),
    ],
)
def test_faults_in_json_and_files_that_are_neither(tmp_path, text, words):
    refused(tmp_path, text, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ({**ONE, "warp": 4}, "warp"),
        ({"producers": 1, "tasks": {"producer": [0], "bytes": [0]}}, "compute_cycles"),
        ({"producers": 1, "tasks": {**ONE["tasks"], "gap": [1]}}, "gap"),
        ({"producers": 1, "tasks": {"producer": [0], "compute_cycles": [1, 2], "bytes": [0]}}, "differ in length"),
        ({"producers": 1, "tasks": {"producer": [], "compute_cycles": [], "bytes": []}}, "1 to"),
        ({"producers": 1, "tasks": {"producer": [0], "compute_cycles": [10**30], "bytes": [0]}}, "64 bits"),
        ({"schema_version": 9, "task_schedules": [ONE]}, "schema version 9"),
        ({"schema_version": 1, "task_schedules": []}, "holds no task schedule"),
        ({"schema_version": 1, "task_schedules": [ONE, {**ONE, "warps": 9, "name": "big"}]}, "task_schedules[1] ('big'): warps is 9"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,100\n", "line 2: task 0: bytes is not whole warp-stores"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,\n", "line 2: column 'bytes' is empty"),
        ("producers,producer,compute_cycles\n1,0,5\n", "column 'bytes' is missing"),
        ("producers,producer,compute_cycle,bytes\n1,0,5,0\n", "unknown column 'compute_cycle'"),
        ("producers,producer,compute_cycles,bytes,waits_for\n2,0,5,0,\n,1,5,0,7\n", "waits for event 7"),
        ("producers,producer,compute_cycles,bytes,form\n1,0,5,0,single\n1,0,5,0,ping_pong\n", "line 3: column 'form' is 'ping_pong'"),
        ("producers,producer,compute_cycles,bytes,both_ways\n1,0,5,0,yes\n", "both_ways"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,9223372036854775808\n", "column 'bytes' has entries"),
    ],
)
def test_faults_in_files_of_tasks(tmp_path: Path, content: object, words: str) -> None:
    error = refused(tmp_path, content, words, load=load_tasks)
    assert ("line 3: task 1 " in error.message) == (words == "waits for event 7")


def test_paths(tmp_path):
    for load in LOADERS:
        with pytest.raises(UsageError, match="no such file"):
            load(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="is a folder"):
        load_bursts(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        save_bursts(tmp_path / "none" / "x.json", [Schedule((Burst(512),), 1)])
    with pytest.raises(UsageError, match="no schedule"):
        save_bursts(tmp_path / "x.json", [])
    assert list(tmp_path.iterdir()) == []


def test_defaults_of_tasks(tmp_path: Path) -> None:
    (by_json,) = written(tmp_path, ONE, load_tasks)
    (by_csv,) = written(tmp_path, "producers,producer,compute_cycles,bytes\n1,0,9,2048\n", load_tasks)
    assert same(by_json, by_csv)
    assert by_json.remote_bytes.tolist() == [2048]
    assert (by_json.waits_for.tolist(), by_json.signals.tolist(), labels(by_json)) == ([NONE], [NONE], ["task"])
    for damaged in ("{", "["):
        (tmp_path / "x").write_text(damaged)
        assert not is_task_file(tmp_path / "x")
