"""Schedule files: what is saved loads equal, and each fault of a user's file gives one line that says where and what to type."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.schedule.burst_csv import COLUMNS
from xstage_bench.schedule.burst_files import load_bursts, save_bursts
from xstage_bench.schedule.bursts import START_RULES, Burst, Schedule


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


@given(some=st.lists(schedules(), min_size=1, max_size=5), suffix=st.sampled_from([".json", ".csv", ".CSV", ""]))
@settings(deadline=None)
def test_what_is_saved_loads_equal(tmp_path_factory, some, suffix):
    path = tmp_path_factory.mktemp("s") / f"x{suffix}"
    some = [*some, some[0]]
    save_bursts(path, some)
    assert load_bursts(path) == some


@given(some=st.lists(schedules(), min_size=1, max_size=3), suffix=st.sampled_from([".json", ".csv"]), bom=st.booleans())
@settings(deadline=None)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_and_byte_order_marks(tmp_path_factory, some, suffix, bom, line_end):
    path = tmp_path_factory.mktemp("s") / f"x{suffix}"
    save_bursts(path, some)
    path.write_bytes(b"\xef\xbb\xbf" * bom + path.read_bytes().replace(b"\n", line_end))
    assert load_bursts(path) == some


@given(data=st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789bytesproducw\n\r;-. ', max_size=200).map(str.encode))
@settings(deadline=None, max_examples=400)
def test_whatever_the_bytes_only_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(data)
    loads_or_says_why(path)


csv_cells = st.sampled_from(
    ["", "1", "132", "-1", "512", "2048", "x", "smid:0 2", "smid:", "nan", "free", "timed", "st.v4", "1e3", '"', " 4 ", "٣"]
)


@given(header=st.lists(st.sampled_from(COLUMNS), max_size=8), rows=st.lists(st.lists(csv_cells, max_size=8), max_size=4))
@settings(deadline=None, max_examples=300)
def test_whatever_the_cells_only_our_errors(tmp_path_factory, header, rows):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_text("\n".join(",".join(row) for row in [header, *rows]))
    loads_or_says_why(path)


def loads_or_says_why(path):
    try:
        found = load_bursts(path)
    except XStageError as caught:
        error = caught
    else:
        assert found
        return
    assert isinstance(error, DataError)
    assert str(path) in error.message
    assert "\n" not in error.message
    assert error.hint


def load(tmp_path, content, name="x"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_bursts(path)


def refused(tmp_path, content, *words):
    with pytest.raises(DataError) as caught:
        load(tmp_path, content)
    message = caught.value.message
    assert message.startswith(str(tmp_path / "x"))
    assert message.count(str(tmp_path)) == 1
    assert "\n" not in message
    assert caught.value.hint
    for word in words:
        assert word in message, message
    return caught.value


class TestCsv:
    def test_defaults(self, tmp_path):
        assert load(tmp_path, "producers,bytes\n132,512\n") == [Schedule((Burst(512),), 132)]
        assert load(tmp_path, "producers,bytes,warps,source,destination,start,flavour,layout,gap_cycles,start_ns\n132,512,,,,,,,,") == [
            Schedule((Burst(512),), 132)
        ]

    def test_rows_are_bursts_and_ids_part_schedules(self, tmp_path):
        text = "schedule,producers,start,bytes,gap_cycles\nb,8,free,512,0\na,4,,1024,0\nb,,,2048,30\n\nb,8,free,0,7\n"
        b = Schedule((Burst(512), Burst(2048, 30), Burst(0, 7)), 8, start="free")
        assert load(tmp_path, text) == [b, Schedule((Burst(1024),), 4)]

    def test_spaces_and_quotes(self, tmp_path):
        assert load(tmp_path, 'producers , bytes\n"smid:0,2,4", 512 \n') == [Schedule((Burst(512),), (0, 2, 4))]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("producers\n132\n", ["line 1", "column 'bytes' is missing"]),
            ("bytes\n512\n", ["line 1", "column 'producers' is missing"]),
            ("producers,bytes,byte\n132,512,1\n", ["line 1", "unknown column 'byte'"]),
            ("producers,bytes,bytes\n132,512,1\n", ["line 1", "'bytes' is there twice"]),
            ("producers;bytes\n132;512\n", ["line 1", "not separated by commas"]),
            ("producers,bytes\n132\n", ["line 2", "1 cells, the header has 2"]),
            ("producers,bytes\n132,512\n132,512,3\n", ["line 3", "3 cells, the header has 2"]),
            ("producers,bytes\n132,-512\n", ["line 2", "bytes is -512"]),
            ("producers,bytes\n132,\n", ["line 2", "'bytes' is empty"]),
            ("producers,bytes\n132,NaN\n", ["line 2", "'bytes' is 'NaN'"]),
            ("producers,bytes\n132,512.0\n", ["line 2", "'bytes' is '512.0'"]),
            ("producers,bytes\n132,1_024\n", ["line 2", "'bytes' is '1_024'"]),
            ("producers,bytes\n132," + "9" * 5000 + "\n", ["line 2", "not a whole number"]),
            ("producers,bytes\n132,99999999999999\n", ["line 2", "must be 0 to"]),
            ("producers,bytes\n132,513\n", ["line 2", "513 bytes is not a multiple of 512"]),
            ("producers,bytes,warps\n132,512,4\n", ["line 2", "512 bytes is not a multiple of 2048"]),
            ("producers,bytes,start,gap_cycles\n132,512,free,0\n132,512,free,-5\n", ["line 3", "negative gap_cycles"]),
            ("producers,bytes,start,start_ns\n1,512,timed,9\n1,512,timed,10\n\n1,512,timed,8\n1,512,timed,3\n", ["line 5", "8 is before"]),
            ("producers,bytes,flavour\n132,512,st.v9\n", ["line 2", "unknown flavour 'st.v9'"]),
            ("producers,bytes,layout\n132,512,zigzag\n", ["line 2", "unknown layout 'zigzag'"]),
            ("producers,bytes,start\n132,512,soon\n", ["line 2", "unknown start rule 'soon'"]),
            ("producers,bytes,warps\n132,512,99\n", ["line 2", "warps is 99"]),
            ("producers,bytes,warps\n132,512,two\n", ["line 2", "'warps' is 'two'"]),
            ("producers,bytes,source\n132,512,-1\n", ["line 2", "must not be negative"]),
            ("producers,bytes\n0,512\n", ["line 2", "producers is 0"]),
            ("producers,bytes\n,512\n", ["line 2", "'producers' is empty"]),
            ("producers,bytes\nsmid:3 1,512\n", ["line 2", "ascending"]),
            ("producers,bytes\nsmid:,512\n", ["line 2", "'smid:'"]),
            ("producers,bytes\nall,512\n", ["line 2", "'all'"]),
            ("producers,bytes\n132,512\n64,512\n", ["line 3", "'producers' is '64', but '132' in line 2"]),
            ("schedule,producers,bytes\na,1,512\nb,2,512\na,2,512\n", ["line 4", "'producers' is '2', but '1' in line 2", "'a'"]),
            ("schedule,producers,bytes\n,1,512\n", ["line 2", "'schedule' is empty"]),
            ('producers,bytes\n132,"512\n', ["line 2"]),
            ("producers,bytes\n", ["holds no schedule"]),
            ("hello\n", ["line 1", "unknown column 'hello'"]),
        ],
    )
    def test_faults(self, tmp_path, text, words):
        refused(tmp_path, text, *words)
        refused(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), *words)

    def test_the_hint_names_the_nearest(self, tmp_path):
        assert "'gap_cycles'" in refused(tmp_path, "producers,bytes,gap_cycle\n1,512,0\n").hint
        assert refused(tmp_path, "producers,bytes,warps\n1,5000,4\n").hint == "use 4096 or 6144"

    def test_many_rows(self, tmp_path):
        path = tmp_path / "many.csv"
        head = "schedule,producers,warps,start,bytes,gap_cycles\n"
        path.write_text(head + "".join(f"s{i // 20},132,4,free,{2048 * (i % 50)},{i % 977}\n" for i in range(100_000)))
        found = load_bursts(path)
        assert len(found) == 5000
        assert found[-1].bursts[-1] == Burst(2048 * 49, 99_999 % 977)

    def test_the_fault_in_the_last_of_many_rows_is_found(self, tmp_path):
        rows = [f"132,free,{512 * (i % 9)},{i}" for i in range(100_000)]
        rows[88_888] = "132,free,100,5"
        refused(tmp_path, "producers,start,bytes,gap_cycles\n" + "\n".join(rows), "line 88890", "100 bytes")


class TestJson:
    def test_one_and_several(self, tmp_path):
        one = {"producers": [0, 2], "warps": 2, "start": "free", "bursts": [{"bytes": 1024}, {"bytes": 2048, "gap_cycles": 9}]}
        expected = Schedule((Burst(1024), Burst(2048, 9)), (0, 2), 2, start="free")
        assert load(tmp_path, json.dumps(one)) == [expected]
        assert load(tmp_path, json.dumps({"schema_version": 1, **one})) == [expected]
        assert load(tmp_path, json.dumps({"schema_version": 1, "schedules": [{"id": "a", **one}, {**one, "producers": 5}]})) == [
            expected,
            replace(expected, producers=5),
        ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", ["not JSON"]),
            ('{"producers": 1, "bursts": [{"bytes": NaN}]}', ["not JSON", "NaN"]),
            ('{"producers": Infinity, "bursts": []}', ["not JSON", "Infinity"]),
            ("[1, 2]", ["object", "array"]),
            ("{}", ["bursts"]),
            ('{"bursts": [{"bytes": 512}]}', ["missing", "producers"]),
            ('{"producers": 1}', ["missing", "bursts"]),
            ('{"producers": 1, "bursts": []}', ["at least one burst"]),
            ('{"producers": 1, "bursts": [{}]}', ["bytes", "$.bursts[0]"]),
            ('{"producers": 1, "bursts": [{"bytes": "512"}]}', ["int", "str", "$.bursts[0].bytes"]),
            ('{"producers": 1, "bursts": [{"bytes": true}]}', ["int", "bool"]),
            ('{"producers": 1, "bursts": [{"bytes": 512.5}]}', ["int", "float"]),
            ('{"producers": 1, "bursts": [{"bytes": null}]}', ["int", "null"]),
            ('{"producers": 1, "bursts": [{"bytes": 512}, {"bytes": -512}]}', ["burst 1", "-512"]),
            ('{"producers": 1, "bursts": [{"bytes": 512, "gap": 5}]}', ["gap"]),
            ('{"producers": 1, "bursts": [{"bytes": 512}], "warp": 2}', ["warp"]),
            ('{"producers": 1, "flavour": "st.v9", "bursts": [{"bytes": 512}]}', ["unknown flavour 'st.v9'"]),
            ('{"producers": 1, "start": "soon", "bursts": [{"bytes": 512}]}', ["soon", "$.start"]),
            ('{"producers": "all", "bursts": [{"bytes": 512}]}', ["$.producers"]),
            ('{"schedules": []}', ["schema_version"]),
            ('{"schema_version": 1, "schedules": []}', ["no schedule"]),
            ('{"schema_version": 2, "schedules": []}', ["version 2", "up to 1"]),
            (
                '{"schema_version": 1, "schedules": [{"producers": 1, "id": "a", "bursts": [{"bytes": 5}]}]}',
                ["schedules[0] ('a')", "burst 0"],
            ),
            ('{"producers": 1, "bursts": [{"bytes": 1' + "0" * 40 + "}]}", []),
            ("[" * 100_000, []),
        ],
    )
    def test_faults(self, tmp_path, text, words):
        refused(tmp_path, text, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b" \r\n\t", ["empty"]),
        (b"\xef\xbb\xbf", ["empty"]),
        (b"\xef\xbb\xbf \n", ["empty"]),
        (b"PAR1\x00\x01\x02", ["binary"]),
        (b"\x89PNG\r\n\x1a\n\x00", ["not UTF-8"]),
        ("producers,bytes\n1,512\n".encode("utf-16"), ["UTF-16"]),
        ("producers,bytes\n1,512\n# é\n".encode("latin-1"), ["not UTF-8", "byte 24"]),
    ],
)
def test_files_that_are_none(tmp_path, content, words):
    refused(tmp_path, content, *words)


def test_paths(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_bursts(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="is a folder"):
        load_bursts(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        save_bursts(tmp_path / "none" / "x.json", [Schedule((Burst(512),), 1)])
    with pytest.raises(UsageError, match="no schedule"):
        save_bursts(tmp_path / "x.json", [])
    assert list(tmp_path.iterdir()) == []
