"""Task schedule files: what is saved loads equal, and each fault gives one line that says where and what to type."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.schedule.task_csv import COLUMNS as CSV_COLUMNS
from xstage_bench.schedule.task_files import is_task_file, load_tasks, save_tasks
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule

ONE = {"producers": 1, "tasks": {"producer": [0], "compute_cycles": [9], "bytes": [2048]}}


@st.composite
def task_schedules(draw: st.DrawFn) -> TaskSchedule:
    warps, k, n = draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.integers(1, 12))
    stores = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))) * warps
    local = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    # Event e is signalled by producer 0's tasks below the half and waited for above it: it can always finish.
    producer = np.sort(np.array(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))))
    half = n // 2
    signals = np.array([draw(st.integers(-1, 3)) if i < half else NONE for i in range(n)])
    waits = np.array([draw(st.sampled_from([NONE, *signals[:half].tolist()])) if i >= half else NONE for i in range(n)])
    label = st.text(st.characters(codec="utf-8", categories=["L", "P", "N"]), min_size=1, max_size=5)
    names = draw(st.lists(label, unique=True, min_size=1))
    smids = st.lists(st.integers(0, 131), min_size=k, max_size=k, unique=True).map(lambda x: tuple(sorted(x)))
    return TaskSchedule(
        producers=draw(st.one_of(st.just(k), smids)),
        producer=producer,
        compute_cycles=np.array(draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n))),
        bytes=stores * 512,
        remote_bytes=np.maximum(stores - local, 0) * 512,
        waits_for=waits,
        signals=signals,
        phase=np.array([draw(st.integers(0, len(names) - 1)) for _ in range(n)]),
        phases=tuple(names),
        warps=warps,
        form=draw(st.sampled_from(FORMS)),
        publish=draw(st.sampled_from(PUBLISHES)),
        source=draw(st.integers(0, 3)),
        destination=draw(st.integers(4, 7)),
        both_ways=draw(st.booleans()),
        name=draw(st.sampled_from(["", "a b", 'with "quotes", and a comma'])),
    )


def labels(s: TaskSchedule) -> list[str]:
    return [s.phases[i] for i in s.phase]


def same(a: TaskSchedule, b: TaskSchedule) -> bool:
    """Equal in all that both file types keep."""
    return a.key() == b.key() and a.name == b.name and a.producers == b.producers and labels(a) == labels(b)


@given(some=st.lists(task_schedules(), min_size=1, max_size=3), suffix=st.sampled_from([".json", ".csv", ".CSV"]))
@settings(deadline=None, max_examples=60)
def test_what_is_saved_loads_equal(tmp_path_factory: pytest.TempPathFactory, some: list[TaskSchedule], suffix: str) -> None:
    path = tmp_path_factory.mktemp("t") / f"x{suffix}"
    some = [*some, some[0]]
    save_tasks(path, some)
    found = load_tasks(path)
    assert len(found) == len(some)
    assert all(same(a, b) for a, b in zip(found, some, strict=True))
    assert is_task_file(path)
    if suffix == ".json":
        assert all(a.phases == b.phases for a, b in zip(found, some, strict=True))


@given(data=st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789bytesproducw\n\r;-. ', max_size=200).map(str.encode))
@settings(deadline=None, max_examples=200)
def test_whatever_the_bytes_only_our_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "tasks-fuzz"
    path.write_bytes(data)
    loads_or_says_why(path)


cells = st.sampled_from(
    ["", "0", "1", "132", "-1", "2048", "x", "smid:0 2", "nan", "true", "single", "relaxed", "st.v4", "1e3", '"', "9" * 19]
)


@given(header=st.lists(st.sampled_from(CSV_COLUMNS), max_size=9, unique=True), rows=st.lists(st.lists(cells, max_size=9), max_size=4))
@settings(deadline=None, max_examples=200)
def test_whatever_the_cells_only_our_errors(tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "tasks-fuzz.csv"
    needed = ["producers", "producer", "compute_cycles", "bytes"]
    head = [*needed, *(h for h in header if h not in needed)]
    path.write_text("\n".join(",".join(row) for row in [head, *(["1", "0", "5", "2048", *r][: len(head)] for r in rows)]))
    loads_or_says_why(path)


def loads_or_says_why(path: Path) -> None:
    try:
        found = load_tasks(path)
    except XStageError as error:
        said = error
    else:
        assert found
        return
    assert isinstance(said, DataError)
    assert str(path) in said.message
    assert said.hint


def load(tmp_path: Path, content: object) -> list[TaskSchedule]:
    path = tmp_path / "t"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_tasks(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ({**ONE, "warp": 4}, "warp"),
        ({**ONE, "form": "solo"}, "form"),
        ({"producers": 1, "tasks": {"producer": [0], "bytes": [0]}}, "compute_cycles"),
        ({"producers": 1, "tasks": {**ONE["tasks"], "gap": [1]}}, "gap"),  # type: ignore[dict-item]
        ({"producers": 1, "tasks": {"producer": [0], "compute_cycles": [1, 2], "bytes": [0]}}, "differ in length"),
        ({"producers": 1, "tasks": {"producer": [], "compute_cycles": [], "bytes": []}}, "1 to"),
        ({"schema_version": 9, "task_schedules": [ONE]}, "schema version 9"),
        ({"schema_version": 1, "task_schedules": []}, "holds no task schedule"),
        ({"schema_version": 1, "task_schedules": [ONE, {**ONE, "warps": 9, "name": "big"}]}, r"task_schedules\[1\] \('big'\): warps is 9"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,100\n", "line 2: task 0: bytes is not whole warp-stores"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,\n", "line 2: column 'bytes' is empty"),
        ("producers,producer,compute_cycles\n1,0,5\n", "column 'bytes' is missing"),
        ("producers,producer,compute_cycle,bytes\n1,0,5,0\n", "unknown column 'compute_cycle'"),
        ("producers,producer,compute_cycles,bytes,waits_for\n2,0,5,0,\n,1,5,0,7\n", "line 3: task 1 .* waits for event 7"),
        ("producers,producer,compute_cycles,bytes,form\n1,0,5,0,single\n1,0,5,0,ping_pong\n", "line 3: column 'form' is 'ping_pong'"),
        ("producers,producer,compute_cycles,bytes,both_ways\n1,0,5,0,yes\n", "both_ways"),
        ("producers,producer,compute_cycles,bytes\n1,0,5,9223372036854775808\n", "column 'bytes' has entries"),
        ({"producers": 1, "tasks": {"producer": [0], "compute_cycles": [10**30], "bytes": [0]}}, "64 bits"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        load(tmp_path, content)
    assert refused.value.hint


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_tasks(tmp_path / "none")


def test_defaults(tmp_path: Path) -> None:
    by_json = load(tmp_path, ONE)[0]
    by_csv = load(tmp_path, "producers,producer,compute_cycles,bytes\n1,0,9,2048\n")[0]
    assert same(by_json, by_csv)
    assert by_json.remote_bytes.tolist() == [2048]
    assert (by_json.waits_for.tolist(), by_json.signals.tolist(), labels(by_json)) == ([NONE], [NONE], ["task"])


def test_a_file_of_bursts_is_none_of_tasks(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    for text in ('{"producers": 1, "bursts": [{"bytes": 512}]}', "producers,bytes\n1,512\n", "{", "["):
        path.write_text(text)
        assert not is_task_file(path)


def test_a_name_does_not_change_what_is_executed() -> None:
    s = TaskSchedule(1, [0], [5], [0], [0], [NONE], [NONE])  # type: ignore[arg-type]
    assert replace(s, name="x").key() == s.key()
