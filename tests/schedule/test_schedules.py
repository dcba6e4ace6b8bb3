"""Schedules of bursts and of tasks and their files: what is refused says why, keys name what is measured, what is saved loads equal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tasks import random_tasks

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.schedule.burst_csv import COLUMNS
from xstage_bench.schedule.burst_files import load_bursts, save_bursts
from xstage_bench.schedule.bursts import MAX_BURST_BYTES, START_RULES, Burst, Schedule
from xstage_bench.schedule.task_csv import COLUMNS as TASK_COLUMNS
from xstage_bench.schedule.task_files import is_task_file, load_tasks, save_tasks
from xstage_bench.schedule.tasks import NONE, TaskSchedule, stuck_task

LOADERS = (load_bursts, load_tasks)
SOON = settings(deadline=None, max_examples=60)
ONE = {"producers": 1, "tasks": {"producer": [0], "compute_cycles": [9], "bytes": [2048]}}


@st.composite
def schedules(draw):
    warps = draw(st.integers(1, 16))
    stores = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6))
    starts = sorted(draw(st.lists(st.integers(0, 10**9), min_size=len(stores), max_size=len(stores))))
    smids = st.lists(st.integers(0, 131), min_size=1, max_size=6, unique=True).map(lambda x: tuple(sorted(x)))
    start = draw(st.sampled_from(START_RULES))
    return Schedule(
        tuple(Burst(512 * warps * n, draw(st.integers(0, 10**6)), s) for n, s in zip(stores, starts, strict=True)),
        draw(st.one_of(st.integers(1, 132), smids)),
        warps,
        draw(st.integers(0, 7)),
        draw(st.integers(0, 7)),
        start,
        warps_meet=start == "isolated" or draw(st.booleans()),
    )


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
        ("producers;bytes\n132;512\n", ["line 1", "not separated by commas"]),
        ("producers,bytes\n132,512\n132,512,3\n", ["line 3", "3 cells, the header has 2"]),
        ("producers,bytes\n132,\n", ["line 2", "'bytes' is empty"]),
        ("producers,bytes\n132,512.0\n", ["line 2", "'bytes' is '512.0'"]),
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
        ("[1, 2]", ["object", "array"]),
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
        (b"PAR1\x00\x01\x02", ["binary"]),
        (b"\x89PNG\r\n\x1a\n\x00", ["not UTF-8"]),
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


def test_keys_do_not_change_between_versions():
    """A replay finds what was recorded by its key, so another key makes every recorded run unreadable."""
    assert Schedule((Burst(512),), 1).key() == "998f9ae717dec5db"
    assert Schedule((Burst(1024, 7, 5), Burst(2048, 9, 11)), (0, 2), 2, 1, 0, "free").key() == "9afdeca4a1ca31b2"


@given(schedules(), st.integers(1, 10**6))
def test_key_ignores_what_is_not_measured(s, other):
    assert re.fullmatch("[0-9a-f]{16}", s.key())
    np.testing.assert_array_equal(s.stores_per_warp() * s.warps * s.warp_store_bytes, [b.bytes for b in s.bursts])
    first = replace(s.bursts[0], gap_cycles=s.bursts[0].gap_cycles + other)
    assert replace(s, bursts=(first, *s.bursts[1:])).key() == s.key()
    if s.start != "free":
        assert replace(s, bursts=tuple(replace(b, gap_cycles=other) for b in s.bursts)).key() == s.key()
    if s.start != "timed":
        assert replace(s, bursts=tuple(replace(b, start_ns=other) for b in s.bursts)).key() == s.key()


@given(schedules(), st.integers(1, 100))
def test_key_changes_with_what_is_measured(s, more):
    unit = s.warps * s.warp_store_bytes
    last = s.bursts[-1]
    others = [
        replace(s, bursts=(*s.bursts[:-1], replace(last, bytes=last.bytes + more * unit))),
        replace(s, bursts=(*s.bursts, Burst(unit, start_ns=last.start_ns))),
        replace(s, source=s.source + more),
        replace(s, destination=s.destination + more),
        replace(s, producers=s.producer_count + more),
        replace(s, start="timed" if s.start != "timed" else "isolated", warps_meet=True),
    ]
    if s.start == "isolated":
        with pytest.raises(UsageError, match="isolated bursts start with all warps together"):
            replace(s, warps_meet=False)
    else:
        others.append(replace(s, warps_meet=not s.warps_meet))
    if s.start == "free" and len(s.bursts) > 1:
        others.append(replace(s, bursts=(*s.bursts[:-1], replace(last, gap_cycles=last.gap_cycles + more))))
    if s.start == "timed":
        others.append(replace(s, bursts=(*s.bursts[:-1], replace(last, start_ns=last.start_ns + more))))
    keys = [o.key() for o in others]
    assert s.key() not in keys
    assert len(set(keys)) == len(keys)


@given(st.integers(1, 200), st.lists(st.integers(0, 300), min_size=1, unique=True).map(sorted))
def test_a_count_spreads_evenly_or_is_refused(count, available):
    s = Schedule((Burst(512),), count)
    if count > len(available):
        with pytest.raises(UsageError, match=f"has {len(available)} SMs"):
            s.smids(available)
        return
    smids = s.smids(available)
    assert len(set(smids.tolist())) == count
    assert set(smids.tolist()) <= set(available)
    index = np.searchsorted(available, smids)
    gaps = np.diff([*index, index[0] + len(available)])
    assert gaps.max() - gaps.min() <= 1
    named = replace(s, producers=tuple(available))
    assert named.smids(range(301)).tolist() == available
    with pytest.raises(UsageError, match=f"smid {available[-1]}"):
        named.smids([x for x in range(301) if x != available[-1]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bursts": ()}, "at least one burst"),
        ({"bursts": (Burst(-512),)}, "burst 0: bytes is -512"),
        ({"bursts": (Burst(512), Burst(MAX_BURST_BYTES + 512))}, "burst 1: bytes"),
        ({"bursts": (Burst(512, -1),)}, "negative gap_cycles"),
        ({"bursts": (Burst(512, 0, -1),)}, "negative gap_cycles or start_ns"),
        ({"start": "timed", "bursts": (Burst(512, 0, 5), Burst(512, 0, 4))}, "burst 1: start_ns 4 is before"),
        ({"producers": 0}, "producers is 0"),
        ({"producers": ()}, "smids must be"),
        ({"producers": (3, 3)}, "distinct"),
        ({"producers": (3, 1)}, "ascending"),
        ({"producers": (-1, 1)}, "smids must be"),
        ({"warps": 0}, "warps is 0"),
        ({"warps": 17}, "warps is 17"),
        ({"source": -1}, "must not be negative"),
        ({"start": "asap"}, "unknown start rule 'asap'"),
        ({"flavour": "st.v3"}, "unknown flavour 'st.v3'"),
        ({"layout": "strided"}, "unknown layout 'strided'"),
    ],
)
def test_refusals_name_the_fault(change, words):
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        replace(Schedule((Burst(512 * 16),), 4), **change)
    assert caught.value.hint


@given(st.integers(1, 16), st.integers(1, 10**6))
def test_a_wrong_size_is_refused_with_the_nearest_right_ones(warps, size):
    unit = 512 * warps
    if size % unit == 0:
        size += 1
    with pytest.raises(UsageError, match=f"{size} bytes is not a multiple of {unit}") as caught:
        Schedule((Burst(size),), 1, warps)
    low, high = map(int, re.findall(r"\d+", caught.value.hint))
    assert low < size < high == low + unit
    for right in (low, high):
        Schedule((Burst(right),), 1, warps)


def tasks(producer: list[int], waits: list[int], signals: list[int], **more: object) -> TaskSchedule:
    n = len(producer)
    given = {"compute_cycles": [1000] * n, "bytes": [8192] * n, "remote_bytes": [7168] * n, **more}
    return TaskSchedule(producers=max(producer) + 1, producer=producer, waits_for=waits, signals=signals, **given)  # type: ignore[arg-type]


def test_a_wave_counts_its_signals_and_the_key_is_of_what_is_executed() -> None:
    s = tasks([0, 0, 1, 1], [NONE, 0, NONE, 0], [0, NONE, 0, NONE])
    assert s.signals_of_event.tolist() == [2]
    assert s.first.tolist() == [0, 2, 4]
    assert s.volume_bytes == 4 * 7168
    assert s.without_stores().bytes.sum() == 0
    assert s.local().volume_bytes == 0
    assert not s.compute_cycles.flags.writeable

    s = tasks([0, 1], [NONE, 0], [0, NONE])
    assert s.key() == replace(s, name="other", phases=("a", "b"), phase=np.array([0, 1])).key()
    assert s.key() != replace(s, publish="relaxed").key()
    assert s.key() != s.local().key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": [100, 8192]}, "whole warp-stores"),
        ({"remote_bytes": [9000, 0]}, "out of range"),
        ({"remote_bytes": [100, 0]}, "whole warp-stores"),
        ({"compute_cycles": [-1, 0]}, "compute_cycles"),
        ({"compute_cycles": [0.5, 0]}, "whole numbers"),
        ({"waits_for": [NONE, 3]}, "no task signals"),
        ({"waits_for": [-2, 0]}, "below -1"),
        ({"producer": [1, 0]}, "ascending"),
        ({"signals": [0, NONE, NONE]}, "differ in length"),
        ({"warps": 9}, "warps"),
        ({"form": "solo"}, "form"),
        ({"publish": "none"}, "publish"),
        ({"flavour": "st.v5"}, "flavour"),
        ({"both_ways": True, "destination": 0}, "both_ways"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    s = tasks([0, 1], [NONE, 0], [0, NONE])
    with pytest.raises(UsageError, match=message):
        replace(s, **change)  # type: ignore[arg-type]


def test_waits_that_never_end_are_refused() -> None:
    with pytest.raises(UsageError, match=r"task 0 \(producer 0, its task 0\) waits for event 0"):
        tasks([0, 0], [0, NONE], [NONE, 0])

    with pytest.raises(UsageError, match="themselves wait"):
        tasks([0, 0, 1, 1], [1, NONE, 0, NONE], [NONE, 0, NONE, 1])


@settings(max_examples=60, deadline=None)
@given(s=random_tasks(producers=4, tasks=24), data=st.data())
def test_lists_cut_from_one_order_always_finish_and_a_swap_is_judged_as_execution_judges_it(s: TaskSchedule, data: st.DataObject) -> None:
    """Each event is signalled earlier in one common order than it is waited for, so no deal to producers can dead-lock."""
    assert stuck_task(s) is None
    swap = np.arange(s.task_count)
    pair = [data.draw(st.integers(0, s.task_count - 1)) for _ in range(2)]
    swap[pair] = swap[pair[::-1]]
    if finishes(s.producer.tolist(), s.waits_for[swap].tolist(), s.signals[swap].tolist()):
        assert stuck_task(replace(s, waits_for=s.waits_for[swap], signals=s.signals[swap])) is None
    else:
        with pytest.raises(UsageError, match="wait"):
            replace(s, waits_for=s.waits_for[swap], signals=s.signals[swap])


def finishes(producer: list[int], waits: list[int], signals: list[int]) -> bool:
    """Execute slowly: one task at a time, any that can."""
    left = [[i for i in range(len(producer)) if producer[i] == p] for p in range(max(producer) + 1)]
    done: set[int] = set()
    while any(left):
        able = [t for t in left if t and (waits[t[0]] < 0 or {i for i in range(len(signals)) if signals[i] == waits[t[0]]} <= done)]
        if not able:
            return False
        done.add(able[0].pop(0))
    return True
