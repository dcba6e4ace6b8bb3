"""The page of a document of ``xstage measure``: one schema, every row, what failed, and documents of before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.errors import DataError
from xstage_bench.io.json_file import write_json
from xstage_bench.measure.scenes import measure_scenes
from xstage_bench.measure.survey import SurveyDocument, read_survey
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.scenes import Scene
from xstage_bench.show.survey_page import MOST_ROWS, cell, render_survey, tables, write_survey_page


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scene = Scene((Schedule((Burst(32768),), 8, 4), Schedule((Burst(32768),), 8, 4, 1, 0)), name="both <ways>")
    choice = BackendChoice("sim:h200-nv18-x2", "a test", True)
    found = measure_scenes(choice, lambda node: [scene], repetitions=4, processes=2, argv=["xstage", "measure", "scenes"])
    path = tmp_path_factory.mktemp("survey") / "scenes.json"
    write_json(path, found)
    return path


def test_a_document_is_a_manifest_with_rows(document: Path) -> None:
    found = msgspec.convert(read_survey(document), SurveyDocument)
    assert (found.kind, found.simulated, found.complete, found.processes) == ("scenes", True, True, 2)
    assert found.node.gpus[0].sm_count == 132
    assert found.counts["executions"] == 4
    assert found.rows[0]["name"] == "both <ways>"


def test_the_page_shows_every_row_and_says_simulated(document: Path) -> None:
    page = write_survey_page(document).read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "SIMULATED" in page
    assert "both &lt;ways&gt;" in page
    assert "<caption>schedules</caption>" in page
    assert "xstage measure scenes" in page
    assert "http" not in page.replace("http-equiv", "")
    found: dict[str, Any] = {**read_survey(document), "failed_pairs": {"0>1": "it hung"}, "complete": False}
    page = render_survey(found, "x.json")
    assert page.index("0&gt;1: it hung") < page.index('id="rows"')
    assert "was interrupted" in page


def test_a_document_of_before_is_shown_too() -> None:
    rows = [{"schedule": "a", "total_us": None}]
    old = {"schema_version": 1, "driver": "580", "failed": {"1>0": "no peer access"}, "compute": "mma", "rows": rows}
    page = render_survey(old, "replay.json")
    assert "<h1>Replay</h1>" in page
    assert "no peer access" in page
    with pytest.raises(DataError, match="holds no rows"):
        render_survey({"schema_version": 1}, "model.json")


def test_values_as_text() -> None:
    values = [
        None,
        True,
        1234.56,
        [1, 2],
        {"a": 1.5},
        {"value": 370.2, "low": 369.0, "high": 371.5},
        {"value": None, "low": None, "high": None},
    ]
    assert [cell(v) for v in values] == ["–", "yes", "1\u2009235", "1, 2", "a 1.5", "370.2 [369, 371.5]", "–"]


def test_parts_are_tables_and_curves_stay_in_the_file() -> None:
    rows = [{"part": "curve", "pair": "0>1", "at_ns": list(range(50))}, {"part": "flag", "pair": "0>1", "lags": [1, 2]}]
    found = tables([*rows, *({"part": "flag", "pair": str(i)} for i in range(MOST_ROWS))])
    assert [(t.title, list(t.columns)) for t in found] == [("curve", ["pair"]), ("flag", ["pair", "lags"])]
    assert len(found[1].rows) == MOST_ROWS
    assert str(MOST_ROWS + 1) in found[1].note
