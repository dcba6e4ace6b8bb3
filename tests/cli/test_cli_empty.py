"""Nothing to judge is not success: every verb that finds nothing says so and ends with an error, as does one without room to load."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
from pathlib import Path

import pytest

from xstage_bench.cli.memory import LEAST_TO_FIT, require_room

TILES = Path(__file__).parents[1] / "data" / "tiles.npz"


@pytest.fixture
def emptied(run_copy: Path) -> Path:
    """A fitted run whose samples are gone, and whose model has no pair."""
    shutil.rmtree(run_copy / "samples")
    path = run_copy / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pairs": [], "timer": None}))
    return run_copy


def test_a_run_of_held_out_rows_alone_is_not_fitted(xstage, tmp_path):
    assert xstage("import", TILES, "--out", tmp_path / "mine").code == 0
    done = xstage("fit", tmp_path / "mine")
    done.refused(1, "holds nothing that a fit may use")
    assert "xstage validate" in done.err
    assert not (tmp_path / "mine" / "model.json").exists()


def test_a_profile_that_fits_nothing_is_no_success(xstage, tmp_path):
    words = ("--quick", "--pairs", "0:1", "--only", "holdout_tiny", "--out", tmp_path / "run")
    done = xstage("profile", "--backend", "sim", *words)
    assert (done.code, done.out) == (1, "")
    assert "holds nothing that a fit may use" in done.err.splitlines()[-2]
    assert not (tmp_path / "run" / "model.json").exists()
    assert (tmp_path / "run" / "samples").is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "{run}"), "holds no samples"),
        (("report", "{run}"), "holds nothing that a fit may use"),
        (("export", "{run}", "--format", "csv"), "holds no row of the table samples"),
        (("export", "{run}", "--table", "producers"), "holds no row of the table producers"),
        (("export", "{run}", "--table", "model"), "no issue time was identified"),
        (("validate", "{run}"), "the run holds no sample"),
        (("compare", "{run}", "{run}"), "nothing to compare"),
        (("compare", "{run}", "--reference", "h200-nv18", "--across", "backend", "--across", "gpu"), "nothing to compare"),
    ],
)
def test_nothing_is_no_success(xstage, emptied, words, said):
    done = xstage(*(word.format(run=emptied) for word in words))
    assert done.code == 1, done
    assert said in done.err
    assert "\n  try: " in done.err


def test_check_fails_a_run_without_samples_and_names_what_is_lost(xstage, emptied):
    done = xstage("check", emptied, "--json")
    found = {f["check"]: f["status"] for f in done.document()["findings"]}
    assert done.code == 4
    assert found["samples"] == found["samples/part-0000.parquet"] == "fail"


def test_what_was_not_held_out_is_not_validated(xstage, small_run, tmp_path):
    xstage("validate", small_run, "--out", tmp_path / "v.json").refused(1, "nothing was judged")


@pytest.mark.parametrize(
    ("gigabytes", "words", "refused"),
    [
        (1.5, "fit RUN", True),
        (0.3, "compare A B", True),
        (1.5, "compare A B", False),
        (0.3, "fit --help", False),
        (4, "--json fit RUN", False),
    ],
)
def test_too_little_address_space_is_an_error_before_anything_is_loaded(monkeypatch, gigabytes, words, refused):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (int(gigabytes * 1e9), resource.RLIM_INFINITY))
    expected = pytest.raises(MemoryError, match="GB of address space, and the limit is") if refused else contextlib.nullcontext()
    with expected:
        require_room(words.split())


def test_a_fit_without_room_ends_at_once(python_c, small_run):
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LEAST_TO_FIT // 2},) * 2)"
    code += "\nfrom xstage_bench.cli import main; main()"
    done = python_c(code, "fit", small_run)
    assert done.returncode == 1
    assert "out of memory" in done.stderr
