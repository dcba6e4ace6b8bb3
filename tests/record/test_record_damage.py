"""Damaged, foreign and newer files: each one clear error, each with a hint, never a traceback."""

import json
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_fake import make_run

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.json_file import encode_json, read_json, write_compact, write_json
from xstage_bench.record.manifest import Manifest
from xstage_bench.record.reader import load_run, schedules_of


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "run"
    make_run(folder)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "run")


def check(caught, path, *words):
    error = caught.value
    assert str(path) in error.message
    assert "\n" not in error.message
    assert error.hint
    for word in words:
        assert word in error.message


def test_a_file_or_another_folder_is_no_run(tmp_path):
    (tmp_path / "f.json").write_text("{}")
    for path, error, words in (
        (tmp_path / "f.json", DataError, "not a run folder"),
        (tmp_path, DataError, "not a run folder"),
        (tmp_path / "none", UsageError, "no such"),
    ):
        with pytest.raises(error) as caught:
            load_run(path)
        check(caught, path, words)


def edit(folder, **changes):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b" \n", ["empty"]),
        (b"{", ["not JSON"]),
        (b'{"options": {"a": ' + b"[" * 100_000, ["recursion"]),
        (b"PAR1\x00\xff\xfe", ["not JSON"]),
        (b"[]", ["object", "array"]),
        (b"{}", ["backend"]),
        (b'{"backend": NaN}', ["NaN"]),
        (b'{"backend": "sim", "simulated": true, "wall_s": Infinity}', ["NaN and Infinity are not JSON"]),
    ],
)
def test_manifest_that_is_none(folder, content, words):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_run(folder)
    check(caught, folder / "manifest.json", *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": "7"}, ["int", "str", "seed"]),
        ({"wall_s": "N/A"}, ["float", "wall_s"]),
        ({"node": {}}, ["gpus"]),
        ({"schema_version": 2}, ["version 2", "up to 1"]),
        ({"schema_version": 99, "node": "of the future"}, ["version 99"]),
        ({"schema_version": 0}, ["version 0"]),
    ],
)
def test_manifest_of_another_schema(folder, change, words):
    edit(folder, **change)
    with pytest.raises(DataError) as caught:
        load_run(folder)
    check(caught, folder / "manifest.json", *words)


def test_keys_and_columns_of_a_later_minor_change_are_read_over_and_pairs_without_gpus_are_not(folder):
    edit(folder, added_later={"a": 1})
    path = sorted((folder / "samples").iterdir())[0]
    table = pq.read_table(path)
    pq.write_table(table.append_column("added_later", pa.array([1] * len(table))), path)
    assert load_run(folder).manifest.backend == "fake"
    assert "added_later" not in load_run(folder).samples()
    node = json.loads((folder / "manifest.json").read_text())["node"]
    edit(folder, node={**node, "pairs": [[0, 5]]})
    with pytest.raises(DataError, match="does not list"):
        load_run(folder)


def cut(share):
    return lambda path: path.write_bytes(path.read_bytes()[:share])


def flip(path):
    # Past the magic, inside the first column's compressed data.
    data = bytearray(path.read_bytes())
    data[30:60] = bytes(30)
    path.write_bytes(data)


def source_column(value, kind=None):
    def damage(path):
        table = pq.read_table(path)
        column = pa.array([value] * len(table), kind)
        pq.write_table(table.set_column(table.column_names.index("source"), "source", column), path)

    return damage


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGES = [
    (lambda p: p.write_bytes(b""), "empty"),
    (lambda p: p.write_bytes(b"a,b\n1,2\n" * 9), "Parquet"),
    (cut(500), "Parquet"),
    (cut(-1), "Parquet"),
    (flip, "Parquet"),
    (lambda p: pd.DataFrame({"ticker": ["A"], "price": [1.0]}).to_parquet(p), "'schedule' is missing"),
    (lambda p: pq.write_table(pq.read_table(p).drop_columns(["source"]), p), "'source' is missing"),
    (source_column("zero"), "'source' is"),
    (source_column(1 << 40), "'source' is"),
    (source_column(None, pa.int16()), "nulls"),
    (folder_instead, "Parquet"),
]


@pytest.mark.parametrize(("damage", "word"), DAMAGES)
@pytest.mark.parametrize("table", ["samples", "producers", "traces"])
def test_a_damaged_part_is_named(folder, table, damage, word):
    path = folder / "traces.parquet" if table == "traces" else sorted((folder / table).iterdir())[1]
    damage(path)
    with pytest.raises(DataError) as caught:
        getattr(load_run(folder), table)()
    check(caught, path, word)


def test_other_files_in_a_run_are_left_alone(folder):
    rows = len(load_run(folder).samples())
    (folder / "samples" / "notes.txt").write_text("x")
    (folder / "samples" / "part-backup.parquet").write_text("x")
    (folder / "samples" / ".part-0009.parquet.123.tmp").write_text("x")
    assert len(load_run(folder).samples()) == rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bytes": 513}, "multiple"),
        ({"flavour": "st.v99"}, "unknown flavour"),
        ({"warps": 0}, "warps"),
        ({"producer_set": "smid:a,b"}, "invalid literal"),
        ({"start": "whenever"}, "start rule"),
        ({"bytes": 0}, "another one"),
        ({"bursts": 100}, "missing"),
    ],
)
def test_rows_that_describe_no_schedule(sound, change, words):
    samples = load_run(sound).samples()
    key = samples["schedule"].iloc[-1]
    rows = samples["schedule"] == key
    for name, value in change.items():
        samples.loc[rows, name] = value
    with pytest.raises(DataError, match=words) as caught:
        schedules_of(samples)
    assert key in caught.value.message


def test_json_is_strict_both_ways(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": float("nan"), "b": [float("-inf"), 1.5], "c": None, "d": (1, "é")})
    assert read_json(path, dict) == {"a": None, "b": [None, 1.5], "c": None, "d": [1, "é"]}
    path.write_bytes(b"\xef\xbb\xbf" + encode_json({"a": 1}))
    assert read_json(path, dict[str, int]) == {"a": 1}


def test_json_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_json(tmp_path / "none.json", Manifest)
    with pytest.raises(DataError, match="is a folder"):
        read_json(tmp_path, Manifest)
    with pytest.raises(UsageError, match="no such folder"):
        write_json(tmp_path / "none" / "x.json", {})
    (tmp_path / "d").mkdir()
    with pytest.raises(XStageError, match="directory"):
        write_json(tmp_path / "d", {})
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_compressed_json_is_written_read_and_found_damaged(tmp_path):
    path = tmp_path / "x.json.gz"
    write_compact(path, {"a": [1, None]})
    first = path.read_bytes()
    assert first[:2] == b"\x1f\x8b"
    write_compact(path, {"a": [1, None]})
    assert path.read_bytes() == first, "no time of writing in it"
    assert read_json(path, dict) == {"a": [1, None]}
    for damaged in (b'{"a": 1}', first[:-6], first[:12] + b"\xff" * 8 + first[20:], b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            read_json(path, dict)
        check(caught, path)
