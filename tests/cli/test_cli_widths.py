"""What each verb says in 40, 80 and 120 columns: no line is wider, no word is cut, and each names what comes next."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.cli import run as call
from xstage_bench.cli.fitted_text import columns_of, laid, painted, wrapped
from xstage_bench.cli.following import FOLLOWING
from xstage_bench.cli.group import VERBS
from xstage_bench.cli.verdict_text import verdict_text
from xstage_bench.model.document import load_model
from xstage_bench.model.run_fit import find_validation
from xstage_bench.record.reader import load_run

BURSTS = {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 32768}, {"bytes": 32768, "gap_cycles": 9000}]}
LIMITS = '[[rule]]\nmetric = "drain_gb_per_s"\nleast = 9999\n'
CALLS = {
    "doctor": "doctor", "topo": "topo", "probes": "probes", "plan": "plan --backend sim --quick --only timer", "explain": "explain drain",
    "run": "run --backend sim --quick --only timer --pairs 0:1 --seed 1 --out new", "fit": "fit run --resamples 20 --out m.json",
    "validate": "validate run --out v.json", "predict": "predict run bursts.json", "check": "check run -v", "compare": "compare run run",
    "advise": "advise run --bytes 16384 --tile-ns 4500 --tiles 2", "report": "report run --out r.html", "fleet": "fleet .",
    "export": "export run --format csv --out x.csv", "nodes": "nodes",
    "diagnose": "diagnose run --local-us 210 --remote-us 290 --bytes 33554432 --tiles 1024 --sms 132",
    "measure": "measure scenes --pattern incast --destination 1 --backend sim --quick", "help": "--help",
}  # fmt: skip
#: What takes seconds is called once, in the fewest columns.
SLOW = {"run", "fit", "validate", "advise", "report", "plan", "measure", "compare", "fleet"}
#: What is measured on GPUs alone, or needs a kernel's stamps.
ELSEWHERE = {"profile", "fused", "import"}


@pytest.fixture
def desk(profiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(profiled[1], tmp_path / "run")
    (tmp_path / "bursts.json").write_text(json.dumps(BURSTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["xstage"])
    return tmp_path


@pytest.mark.parametrize("verb", CALLS)
def test_no_line_is_wider_and_no_word_is_cut(desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, verb: str) -> None:
    monkeypatch.setattr("xstage_bench.show.report.write_report", lambda *drawn: None)  # its figures take seconds and say nothing here
    said: dict[int, tuple[str, str]] = {}
    for columns in (40,) if verb in SLOW else (40, 80, 120, 4000):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert call(CALLS[verb].split()) in (0, 3, 4), capfd.readouterr().err
        said[columns] = capfd.readouterr()
        for line in "\n".join(said[columns]).splitlines():
            assert len(line) <= columns or len(line.split()) == 1, line
        assert verb == "help" or "next: xstage" in said[columns][1]
    if verb not in SLOW | {"help"}:
        whole = set(said[4000][0].split())
        assert all(set(out.split()) == whole for out, _ in said.values())


def test_every_verb_is_looked_at_and_names_the_next() -> None:
    assert set(CALLS) | ELSEWHERE == set(VERBS) | {"help"}
    assert set(VERBS) <= set(FOLLOWING)
    assert all(line.split()[1] in VERBS for lines in FOLLOWING.values() for line in lines)


@pytest.mark.parametrize(("copies", "most"), [(2, 8), (56, 12)])
def test_the_end_of_a_profile_is_short(profiled: Any, monkeypatch: pytest.MonkeyPatch, copies: int, most: int) -> None:
    """With the lines of count, report and next command that stand around it."""
    from dataclasses import replace

    monkeypatch.setenv("COLUMNS", "80")
    model = load_model(profiled[1] / "model.json")
    (pair,) = (p for p in model.pairs if p.pair == "0>1")
    many = replace(model, pairs=[pair, *(replace(pair, pair=f"{k}>9") for k in range(1, copies))])
    text = verdict_text(many, find_validation(load_run(profiled[1])))
    assert len(text.splitlines()) + 4 <= most
    assert all(len(line) <= 80 for line in text.splitlines())
    assert ("worst" in text) == (copies > 3)


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    text = "fail  links  ok  all\nSIMULATED: warn: x\nnothing is ok here"
    coloured = painted(text, Terminal())  # type: ignore[arg-type]
    assert coloured == "\x1b[31mfail\x1b[0m  links  \x1b[32mok\x1b[0m  all\nSIMULATED: \x1b[33mwarn\x1b[0m: x\nnothing is ok here"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted(text, Terminal()) == text  # type: ignore[arg-type]
    assert painted(text, None) == text
    assert columns_of(None) is None
    assert wrapped(text * 9, None) == text * 9


def test_a_table_that_is_too_wide_comes_in_pieces_that_repeat_the_first_column() -> None:
    head, rows = ["pair", *(f"column{k}" for k in range(5))], [[f"{a}>1", *("123456",) * 5] for a in range(2)]
    pieces = laid(head, rows, [False] + [True] * 5, 26).split("\n\n")
    assert [piece.split() for piece in pieces[0].splitlines()] == [
        ["pair", "column0", "column1"],
        *(["0>1", "123456", "123456"], ["1>1", "123456", "123456"]),
    ]
    assert len(pieces) == 3
    assert all(piece.startswith("pair  column") for piece in pieces)
