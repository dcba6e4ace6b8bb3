"""Bad input to every verb: the right exit code, one clear line and a hint, nothing half-written, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CSV = "producers,bytes,warps\n"
SPOILED_RUNS = {
    "absent": (2, "no such"),
    "an empty folder": (1, "not a run folder"),
    "a file": (1, "is a file"),
    "manifest empty": (1, "empty"),
    "manifest truncated": (1, "manifest.json"),
    "manifest with NaN": (1, "NaN"),
    "manifest of another schema": (1, "manifest.json"),
    "manifest newer": (1, "schema version 999"),
    "manifest a folder": (1, "manifest.json"),
    "part empty": (1, "part-0000.parquet"),
    "part truncated": (1, "part-0000.parquet"),
    "part is text": (1, "part-0000.parquet"),
    "part foreign": (1, "part-0000.parquet"),
    "part a folder": (1, "part-0000.parquet"),
}
READERS = {"fit": (), "validate": (), "report": (), "export": ("--format", "csv")}


def spoil(run: Path, how: str) -> Path:
    manifest, part = run / "manifest.json", run / "samples" / "part-0000.parquet"
    text = manifest.read_text()
    assert part.exists()
    if how == "absent":
        return run / "nowhere"
    if how == "an empty folder":
        (run.parent / "empty").mkdir()
        return run.parent / "empty"
    if how == "a file":
        return manifest
    if how.startswith("manifest"):
        document = json.loads(text)
        contents = {
            "manifest empty": "",
            "manifest truncated": text[: len(text) // 2],
            "manifest with NaN": json.dumps({**document, "wall_s": float("nan")}),
            "manifest of another schema": json.dumps({"benchmark": "other", "schema_version": 1}),
            "manifest newer": json.dumps({**document, "schema_version": 999}),
        }
        manifest.unlink()
        manifest.mkdir() if how == "manifest a folder" else manifest.write_text(contents[how])
        return run
    data = part.read_bytes()
    part.unlink()
    if how == "part foreign":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"name": ["a"], "value": [1.0]}), part)
    elif how == "part a folder":
        part.mkdir()
    else:
        part.write_bytes({"part empty": b"", "part truncated": data[: len(data) // 2], "part is text": b"hello\n" * 50}[how])
    return run


def tree(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_one_clear_line(done, code: int, words: str) -> None:
    assert done.code == code, (done.code, done.err)
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    lines = [line for line in done.err.splitlines() if line and not line.startswith(("SIMULATED: ", "measuring into "))]
    assert len(lines) == 2, done.err
    assert lines[0].startswith("xstage: ")
    assert lines[1].startswith("  try: ")
    assert words in lines[0], lines[0]
    assert done.out == ""


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("how", SPOILED_RUNS)
def test_a_run_that_is_none(xstage, run_copy, how, verb):
    code, words = SPOILED_RUNS[how]
    target = spoil(run_copy, how)
    before = tree(run_copy.parent)
    done = xstage(verb, target, *READERS[verb])
    assert_one_clear_line(done, code, words)
    assert tree(run_copy.parent) == before


def model_file(tmp_path: Path, run: Path, how: str) -> Path:
    text = (run / "model.json").read_text()
    path = tmp_path / "model.json"
    if how == "absent":
        return path
    if how == "a run without a model":
        (tmp_path / "unfitted").mkdir()
        (tmp_path / "unfitted" / "manifest.json").write_text((run / "manifest.json").read_text())
        return tmp_path / "unfitted"
    document = json.loads(text)
    path.write_text(
        {
            "empty": "",
            "truncated": text[:-200],
            "another schema": json.dumps({"schema_version": 1, "pairs": 3}),
            "newer": json.dumps({**document, "schema_version": 99}),
            "NaN": text.replace('"sm_clock_mhz": ', '"sm_clock_mhz": NaN, "x": ', 1),
            "binary": "\0\1\2PAR1",
        }[how]
    )
    return path


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("absent", 2, "no such file"),
        ("a run without a model", 2, "holds no model.json"),
        ("empty", 1, "empty"),
        ("truncated", 1, "model.json"),
        ("another schema", 1, "model.json"),
        ("newer", 1, "schema version 99"),
        ("NaN", 1, "NaN"),
        ("binary", 1, "model.json"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "validate", "report"])
def test_a_model_that_is_none(xstage, small_run, tmp_path, verb, how, code, words):
    path = model_file(tmp_path, small_run, how)
    schedule = tmp_path / "s.csv"
    schedule.write_text(CSV + "132,65536,4\n")
    out = tmp_path / "out.json"
    words_of = {"predict": ("predict", path, schedule)}
    done = xstage(*words_of.get(verb, (verb, small_run, "--model", path, "--out", out)))
    assert_one_clear_line(done, code, words)
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
        (b"producers,bytes,warps\n132,65537,4\n", 1, "not a multiple of 2048"),
        (b"producers,bytes,warps,flavour\n132,65536,4,st.v9\n", 1, "unknown flavour 'st.v9'"),
        (b"producers,bytes,warps\n132,nan,4\n", 1, "nan"),
        (b"producers,bytes,warps\n-1,65536,4\n", 1, "producers is -1"),
        (b"producers,bytes,warps\n132,65536\n", 1, "line 2"),
        (b'{"producers": 132, "bursts": [{"bytes": 65536}', 1, "s.csv"),
        (b'{"producers": 132, "bursts": []}', 1, "at least one burst"),
        (b'{"producers": 132, "bursts": [{"bytes": NaN}]}', 1, "s.csv"),
        (b'{"bursts": [{"bytes": 65536}]}', 1, "producers"),
        (b"producers,bytes,warps\n500,65536,4\n", 2, "500 producers"),
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
    calls = {
        "predict": ("predict", small_run, path),
        "plan": ("plan", "--backend", "sim", "--schedule", path),
        "run": ("run", "--backend", "sim", "--schedule", path, "--out", out),
    }
    done = xstage(*calls[verb])
    assert_one_clear_line(done, code, words)
    assert tree(tmp_path) == before
    assert not out.exists()


PROBES = {
    "syntax.py": ("PROBE = (", 1, "syntax.py"),
    "nothing.py": ("x = 1\n", 1, "does not define PROBE"),
    "raises.py": ("raise RuntimeError('boom')\n", 1, "boom"),
    "taken.py": (
        "from xstage_bench.measure.probe import Probe\nPROBE = Probe('timer', 'mine', lambda sweep: [])\n",
        2,
        "'timer' is defined twice",
    ),
    "toomany.py": (
        "from xstage_bench.measure.probe import Probe\nfrom xstage_bench.schedule.bursts import Burst, Schedule\n"
        "PROBE = Probe('toomany', 't', lambda s: [Schedule((Burst(2048),), 500, 4, s.source, s.destination)])\n",
        2,
        "500 producers",
    ),
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_of_the_users_that_is_none(xstage, tmp_path, name):
    text, code, words = PROBES[name]
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / name).write_text(text)
    out = tmp_path / "out"
    done = xstage("run", "--backend", "sim", "--quick", "--probe-path", tmp_path / "probes", "--out", out)
    assert_one_clear_line(done, code, words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--budget", "nan"), 2, "nan"),
        (("--budget", "-3"), 2, "-3"),
        (("--budget", "inf"), 2, "inf"),
        (("--budget", "soon"), 2, "soon"),
        (("--seed", "-1"), 2, "-1"),
        (("--seed", "1.5"), 2, "1.5"),
        (("--pairs", "0"), 2, "SOURCE:DESTINATION"),
        (("--pairs", "0:1,x:0"), 2, "'x:0'"),
        (("--pairs", "0:9"), 2, "0>9"),
        (("--pairs", "1:1"), 2, "1>1"),
        (("--only", "nonesuch"), 2, "nonesuch"),
        (("--probe-path", "no/such/folder"), 2, "no/such/folder"),
        (("--backend", "gpu"), 2, "unknown backend 'gpu'"),
        (("--backend", "sim:nonesuch"), 2, "nonesuch"),
        (("--backend", "replay:no/such/run"), 2, "no/such/run"),
        (("--colour", "red"), 2, "--colour"),
        (("surplus",), 2, "surplus"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run", "profile"])
def test_options_that_cannot_be_meant(xstage, tmp_path, verb, options, code, words):
    out = tmp_path / "out"
    backend = () if "--backend" in options else ("--backend", "sim")
    done = xstage(verb, "--quick", *backend, *options, *(() if verb == "plan" else ("--out", out)), cwd=tmp_path)
    assert_one_clear_line(done, code, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pofile",), "did you mean 'profile'"),
        (("fit",), "Missing argument"),
        (("predict", "one"), "give a schedule file"),
        (("export", ".", "--format", "xml"), "xml"),
        (("fit", ".", "--resamples", "3"), "3"),
        (("topo", "--backend", "gpu"), "unknown backend 'gpu'"),
        (("probes", "--probe-path", "nowhere"), "nowhere"),
        (("run", "--backend", "sim", "--resume"), "which run"),
        (("run", "--backend", "sim", "--resume", "--out", "nowhere"), "nowhere"),
        (("run", "--backend", "sim", "--out", "-"), "stdout"),
        (("doctor", "surplus"), "surplus"),
    ],
)
def test_calls_that_cannot_be_meant(xstage, tmp_path, words, said):
    assert_one_clear_line(xstage(*words, cwd=tmp_path), 2, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["run", "profile"])
def test_a_folder_is_never_overwritten(xstage, run_copy, tmp_path, verb):
    before = tree(tmp_path)
    done = xstage(verb, "--backend", "sim", "--quick", "--only", "timer", "--out", run_copy)
    assert_one_clear_line(done, 2, "not empty")
    done = xstage(verb, "--backend", "sim", "--quick", "--only", "timer", "--out", run_copy / "manifest.json")
    assert_one_clear_line(done, 2, "manifest.json")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("verb", ["fit", "report", "export"])
@pytest.mark.parametrize("where", ["no/such/folder/file", "."])
def test_an_output_that_cannot_be_written(xstage, run_copy, tmp_path, verb, where):
    before = tree(tmp_path)
    done = xstage(verb, run_copy, "--out", tmp_path / where)
    assert_one_clear_line(done, 2, str(tmp_path))
    assert tree(tmp_path) == before


def test_a_failure_with_json_is_one_object(xstage, tmp_path, strictly):
    for words in (("fit", tmp_path / "nowhere"), ("fit",), ("nonesuch",)):
        done = xstage(*words, "--json")
        document = strictly(done.out)
        assert (done.code, document["exit_code"]) == (2, 2)
        assert document["error"]
        assert document["hint"]


def test_json_and_another_document_exclude_each_other(xstage, small_run):
    for words in (("report", small_run), ("export", small_run, "--format", "csv")):
        done = xstage(*words, "--out", "-", "--json")
        assert done.code == 2
        assert done.document()["exit_code"] == 2


def test_debug_shows_the_traceback(xstage, tmp_path):
    done = xstage("fit", tmp_path / "nowhere", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
