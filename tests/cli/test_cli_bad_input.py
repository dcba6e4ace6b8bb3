"""Bad input to every verb: the right exit code, one clear line and a hint, nothing half-written, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CSV = b"producers,bytes,warps\n"
MANIFEST, PART = "manifest.json", "samples/part-0000.parquet"
SPOILED_RUNS = [
    ("absent", 2, "no such"),
    ("an empty folder", 1, "not a run folder"),
    ("a file", 1, "is a file"),
    *((f"{MANIFEST} {how}", 1, MANIFEST) for how in ("truncated", "another schema", "a folder")),
    *((f"{MANIFEST} {how}", 1, words) for how, words in (("empty", "empty"), ("NaN", "NaN"), ("newer", "schema version 999"))),
    *((f"{PART} {how}", 1, "part-0000.parquet") for how in ("empty", "truncated", "text", "foreign", "a folder")),
]
READERS = {"fit": (), "validate": (), "report": (), "export": ("--format", "csv")}


def damage(path: Path, how: str) -> None:
    """Put something else where a file was."""
    kept = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "foreign":
        pq.write_table(pa.table({"name": ["a"], "value": [1.0]}), path)
    elif how in ("newer", "NaN"):
        path.write_text(json.dumps({**json.loads(kept), **({"schema_version": 999} if how == "newer" else {"sm_clock_mhz": float("nan")})}))
    else:
        other = {"empty": b"", "text": b"hello\n" * 50, "binary": b"\0\1\2PAR1", "another schema": b'{"schema_version": 1, "pairs": 3}'}
        path.write_bytes(kept[: len(kept) // 2] if how == "truncated" else other[how])


def spoil(run: Path, how: str) -> Path:
    """Damage a run; return what is to be named in the call."""
    if how == "an empty folder":
        (run.parent / "empty").mkdir()
    elif " " in how and how != "a file":
        name, _, damaged = how.partition(" ")
        damage(run / name, damaged)
    return {"absent": run / "nowhere", "an empty folder": run.parent / "empty", "a file": run / MANIFEST}.get(how, run)


def tree(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize(("how", "code", "words"), SPOILED_RUNS)
def test_a_run_that_is_none(xstage, run_copy, how, code, words, verb):
    target = spoil(run_copy, how)
    before = tree(run_copy.parent)
    if (verb, how) == ("report", "a file"):  # which may be a document of a measurement
        words = "holds no rows"
    xstage(verb, target, *READERS[verb]).refused(code, words)
    assert tree(run_copy.parent) == before


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("absent", 2, "no such file"),
        ("a run without a model", 2, "holds no model.json"),
        ("empty", 1, "empty"),
        *((how, 1, "model.json") for how in ("truncated", "another schema", "binary")),
        ("newer", 1, "schema version 999"),
        ("NaN", 1, "NaN"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "validate", "report"])
def test_a_model_that_is_none(xstage, small_run, run_copy, tmp_path, verb, how, code, words):
    path, schedule, out = run_copy / "model.json", tmp_path / "s.csv", tmp_path / "out.json"
    if how in ("absent", "a run without a model"):
        path.unlink()
        path = path if how == "absent" else run_copy
    else:
        damage(path, how)
    schedule.write_bytes(CSV + b"132,65536,4\n")
    done = xstage(*(("predict", path, schedule) if verb == "predict" else (verb, small_run, "--model", path, "--out", out)))
    done.refused(code, words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 2, "no such file"),
        ("folder", 2, "folder"),
        (b"", 1, "empty"),
        (b"\xef\xbb\xbf\r\n", 1, "empty"),
        (b"\x7fELF\0\0\xff", 1, "s.csv"),
        (b"bytes,warps\n65536,4\n", 1, "'producers' is missing"),
        (b"producers,bytes,warps,colour\n1,2,3,4\n", 1, "colour"),
        (b"producers,bytes,warps,gap_cycles,start\n132,65536,4,0,free\n132,65536,4,-5,free\n", 1, "line 3"),
        (CSV + b"132,65537,4\n", 1, "not a multiple of 2048"),
        (b"producers,bytes,warps,flavour\n132,65536,4,st.v9\n", 1, "unknown flavour 'st.v9'"),
        (CSV + b"132,nan,4\n", 1, "nan"),
        (CSV + b"-1,65536,4\n", 1, "producers is -1"),
        (CSV + b"132,65536\n", 1, "line 2"),
        (b'{"producers": 132, "bursts": [{"bytes": 65536}', 1, "s.csv"),
        (b'{"producers": 132, "bursts": []}', 1, "at least one burst"),
        (b'{"producers": 132, "bursts": [{"bytes": NaN}]}', 1, "s.csv"),
        (b'{"bursts": [{"bytes": 65536}]}', 1, "producers"),
        (CSV + b"500,65536,4\n", 2, "500 producers"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "plan", "run"])
def test_a_schedule_that_is_none(xstage, small_run, tmp_path, verb, content, code, words):
    path, out = tmp_path / "s.csv", tmp_path / "out"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    before = tree(tmp_path)
    rest = {"predict": (small_run, path), "plan": ("--backend", "sim", "--schedule", path)}
    rest["run"] = (*rest["plan"], "--out", out)
    xstage(verb, *rest[verb]).refused(code, words)
    assert tree(tmp_path) == before
    assert not out.exists()


IMPORTS = "from xstage_bench.measure.probe import Probe\nfrom xstage_bench.schedule.bursts import Burst, Schedule\n"
TOO_MANY = "PROBE = Probe('toomany', 't', lambda s: [Schedule((Burst(2048),), 500, 4, s.source, s.destination)])\n"


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("syntax.py", "PROBE = (", 1, "syntax.py"),
        ("nothing.py", "x = 1\n", 1, "does not define PROBE"),
        ("raises.py", "raise RuntimeError('boom')\n", 1, "boom"),
        ("taken.py", IMPORTS + "PROBE = Probe('timer', 'mine', lambda sweep: [])\n", 2, "'timer' is defined twice"),
        ("toomany.py", IMPORTS + TOO_MANY, 2, "500 producers"),
    ],
)
def test_a_probe_of_the_users_that_is_none(xstage, tmp_path, name, text, code, words):
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / name).write_text(text)
    out = tmp_path / "out"
    xstage("run", "--backend", "sim", "--quick", "--probe-path", tmp_path / "probes", "--out", out).refused(code, words)
    assert not out.exists()


@pytest.mark.parametrize("verb", ["run", "profile"])
def test_a_folder_is_never_overwritten(xstage, run_copy, tmp_path, verb):
    before = tree(tmp_path)
    for target, words in ((run_copy, "not empty"), (run_copy / MANIFEST, MANIFEST)):
        xstage(verb, "--backend", "sim", "--quick", "--only", "timer", "--out", target).refused(2, words)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("verb", ["fit", "report", "export"])
@pytest.mark.parametrize("where", ["no/such/folder/file", "."])
def test_an_output_that_cannot_be_written(xstage, run_copy, tmp_path, verb, where):
    before = tree(tmp_path)
    xstage(verb, run_copy, "--out", tmp_path / where).refused(2, str(tmp_path))
    assert tree(tmp_path) == before


def test_a_failure_with_json_is_one_object(xstage, small_run, tmp_path):
    """Also where two documents are asked for on stdout."""
    for words in (("fit", tmp_path / "nowhere"), ("fit",), ("nonesuch",)):
        document = (done := xstage(*words, "--json")).document()
        assert (done.code, document["exit_code"]) == (2, 2)
        assert document["error"]
        assert document["hint"]
    for words in (("report", small_run), ("export", small_run, "--format", "csv"), ("fused", "ulysses"), ("measure", "visibility")):
        done = xstage(*words, "--out", "-", "--json")
        assert (done.code, done.document()["exit_code"]) == (2, 2)
        assert "stdout" in done.err + done.out


def test_debug_shows_the_traceback(xstage, tmp_path):
    done = xstage("fit", tmp_path / "nowhere", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
