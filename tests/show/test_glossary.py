"""`xstage explain`: every column and key that a verb or file writes has its line, and every table's heading."""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.cli.predict import COLUMNS as BURST_SHOWN
from xstage_bench.cli.predict import TASK_COLUMNS as TASK_SHOWN
from xstage_bench.errors import UsageError
from xstage_bench.measure.replay_document import summary_rows
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.tasks.predict import COLUMNS as TASK_FOUND
from xstage_bench.record.columns import PRODUCERS, SAMPLES, TRACES
from xstage_bench.schedule.burst_csv import COLUMNS as BURST_CSV
from xstage_bench.schedule.task_csv import COLUMNS as TASK_CSV
from xstage_bench.show.explain import explain, formula_of, glossary
from xstage_bench.show.schemas import schemas
from xstage_bench.workloads.predicted import COLUMNS as PHASES

ROOT = Path(__file__).parents[2]
WORDS = {e.word for e in glossary()}
#: Constants of the instrument: docs/node-model.md has them, and `issue` says where to look.
INSIDE = set(IssueLaw.__dataclass_fields__) | {"store_bytes"}


def keys_of(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from keys_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from keys_of(part)


def headings(path: Path) -> Iterator[str]:
    """Words of a literal list that is the first argument of `table`, there or in an assignment of the same file."""
    tree = ast.parse(path.read_text())
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "table" and node.args:
            head = node.args[0]
            for found in [head] if isinstance(head, ast.List | ast.Tuple) else assigned.get(getattr(head, "id", ""), []):
                if isinstance(found, ast.List | ast.Tuple):
                    yield from (e.value for e in found.elts if isinstance(e, ast.Constant) and e.value)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_every_key_of_a_document(name: str) -> None:
    assert set(keys_of(schemas()[name])) - INSIDE - WORDS == set()


def test_every_column_of_a_table_or_file() -> None:
    recorded = {c.name for table in (SAMPLES, PRODUCERS, TRACES) for c in table}
    row = {"schedule": "", "total_us": {"value": 1.0}, "no_store_us": {"value": 1.0}}
    replay = set(summary_rows({"rows": [row], "compute": "mma", "repetitions": 1, "processes": 1})[0])
    assert {*recorded, *replay, *BURST_SHOWN, *TASK_SHOWN, *TASK_FOUND, *BURST_CSV, *TASK_CSV, *PHASES} - WORDS == set()


def test_every_heading() -> None:
    found = {word for path in (ROOT / "xstage_bench" / "cli").glob("*.py") for word in headings(path)}
    assert "slowdown" in found
    assert found - WORDS == set()


def test_words_are_found_and_near_ones_named() -> None:
    assert explain("T0")[0].section == "words"
    assert explain("BACKLOG_BYTES")[0].word == "backlog_bytes"
    assert {e.section for e in explain("stalled")} == {"words", "columns"}
    with pytest.raises(UsageError, match="backlog_byte") as refused:
        explain("backlog_byte")
    assert refused.value.hint == "xstage explain backlog_bytes"


def test_the_verb() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "xstage_bench", "explain", *words], capture_output=True, text=True, cwd=ROOT)

    assert "drain rate" in run("R").stdout.lower()
    everything = json.loads(run("--json").stdout)["entries"]
    assert len(everything) == len(glossary())
    unknown = run("nonsense-word")
    assert unknown.returncode == 2
    assert "try:" in unknown.stderr


def test_a_word_of_the_field_has_its_formula_a_usual_value_and_its_page() -> None:
    for word in tomllib.loads((ROOT / "xstage_bench/show/glossary.toml").read_text())["formulas"]:
        found = formula_of(word)
        assert found is not None
        assert "words" in [e.section for e in explain(word)], word
        assert (ROOT / found.page).is_file()
    rate, missing = formula_of("R"), formula_of("gap_cycles")
    assert rate is not None
    assert 300 < float(str(rate.usual).partition(" ")[0]) < 450, rate.usual
    assert missing is None
