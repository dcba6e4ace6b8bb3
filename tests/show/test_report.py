"""The report: one sound HTML file that loads nothing, says what was simulated, failed or dropped, and escapes what it is given."""

import dataclasses
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xstage_bench.errors import UsageError
from xstage_bench.model.document import IsolatedLaw, IssueTimeError, ModelScore, PeriodicLaw, TimedStall, TotalTimeError, Validation
from xstage_bench.model.estimate import Estimate
from xstage_bench.show import report
from xstage_bench.show.figures import read_once
from xstage_bench.show.report_tables import estimate, number, percent, status_table

VOID = {"meta", "img", "br", "link", "hr", "input"}
VALIDATION = Validation(
    schema_version=1,
    backend="sim:h200-nv18-x2",
    models=[
        ModelScore(
            model="burst_gap", pair="0>1", flavour="st.v4", statistic="issue_mean", n_schedules=40, n_bursts=321,
            issue_time=IssueTimeError(median_error=0.2345, p90_error=0.91, p95_error=None),
            total_time=TotalTimeError(median_error=0.08, p95_error=0.51), regime_balanced_accuracy=None, interval_coverage_90=None,
            interval_score=None, reasons={"interval_coverage_90": "no interval"},
        )
    ],
    isolated_law=[IsolatedLaw(pair="0>1", producers=132, warps=4, n_points=20, median_error=0.031, p95_error=0.12)],
    periodic_law=[PeriodicLaw(pair="0>1", producers=132, n_points=50, median_error=0.04, p90_error=0.07)],
    timed_stall=[TimedStall(pair="0>1", producers=132, n_stalled=9, n_free=8, balanced_accuracy=0.985)],
)  # fmt: skip


@pytest.fixture(scope="module")
def small(quick_run: tuple[Any, Any]) -> tuple[Any, Any]:
    return read_once(quick_run[0]), quick_run[1]


@pytest.fixture(scope="module")
def html(small: tuple[Any, Any]) -> str:
    return report.render_report(*small, VALIDATION)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests look at the words only."""
    monkeypatch.setattr(report, "render_figures", lambda *a, **k: [])


def changed(run: Any, name: str | None = None, samples: Any = None, **change: Any) -> Any:
    table = run.samples() if samples is None else samples
    manifest = dataclasses.replace(run.manifest, **change)
    tables = {"samples": lambda: table, "producers": run.producers, "traces": run.traces}
    return SimpleNamespace(folder=run.folder, name=name or run.name, manifest=manifest, **tables)


class Page(HTMLParser):
    """Checks nesting while it reads; keeps tags with attributes, and the text that a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & {*self.open}:
            self.text += data


def test_page_is_sound_html_with_ordered_headings_and_unique_ids(html: str) -> None:
    page = Page(html)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert html.startswith("<!DOCTYPE html>")
    assert not re.search(r"\b(nan|None|null|inf|NaN|N/A)\b", page.text), "no missing value as text"


def test_page_loads_nothing_and_runs_only_its_own(html: str) -> None:
    page = Page(html)
    assert not {t for t, _ in page.tags} & {"link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "data", "action"):
                assert value.startswith("data:image/" if tag != "a" else "#"), (tag, value[:60])
    assert not re.search(r"https?:|url\(|@import", html)
    assert len(html.encode()) < 3_000_000


def test_page_shows_each_figure_with_its_reading(html: str) -> None:
    page = Page(html)
    images = [a for t, a in page.tags if t == "img"]
    shown, absent = len(images), page.text.count("Not drawn:")
    assert (shown + absent, shown >= 8) == (9, True)
    assert all(a["alt"] for a in images)
    assert page.text.count("How to read it.") == shown
    assert "could not be drawn" not in page.text


def test_page_shows_the_models_numbers_beside_line_rate(small: tuple[Any, Any], html: str) -> None:
    run, model = small
    pair = model.find("0>1")
    rate = max(pair.drain, key=lambda d: d.producers).makespan
    line = run.manifest.node.line_rate_gb_per_s
    text = Page(html).text
    assert estimate(rate) in text
    assert percent(rate.value / line, 0) in text
    assert f"line rate ({line:.0f} GB/s)" in text
    for words in ("23.4 %", "98.5 %", "burst_gap", "NVIDIA H200", run.manifest.created):
        assert words in text


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "a & b"])
def test_what_a_run_names_is_escaped(small: tuple[Any, Any], no_figures: None, evil: str) -> None:
    run, model = small
    gpu = dataclasses.replace(run.manifest.node.gpus[0], name=evil, uuid=evil)
    node = dataclasses.replace(run.manifest.node, gpus=(gpu, *run.manifest.node.gpus[1:]))
    words = {"failed_pairs": {"1>0": evil}, "notes": [evil], "argv": [evil], "versions": {evil: evil}, "cuda_sources": evil}
    bad = changed(run, name=evil, node=node, **words)
    page = Page(report.render_report(bad, model, None))
    assert [t for t, _ in page.tags if t in ("script", "img")] == ["script", "script"], "the page's own, and what they predict with"
    assert page.text.count(evil) >= 6, "each is shown as it is, as text"


def test_failed_pair_has_a_reason_and_no_number(small: tuple[Any, Any], no_figures: None) -> None:
    run, model = small
    text = Page(report.render_report(changed(run, failed_pairs={"0>1": "offset 64: expected 7, found 0"}), model, VALIDATION)).text
    assert "Pair 0 → 1 failed and has no numbers: offset 64: expected 7, found 0" in text
    assert "remote stores of" not in text


def test_dropped_samples_are_counted(small: tuple[Any, Any], no_figures: None) -> None:
    run, model = small
    samples = run.samples().copy()
    samples["status"] = samples["status"].astype(str)
    at = samples.index[samples["status"] == "ok"][:7]
    samples.loc[at, "status"] = "throttled"
    table = status_table(samples)
    total = dict(zip(table.columns, table.rows[-1], strict=True))
    counts = samples["status"].value_counts()
    assert {k: int(v.replace("\u2009", "")) for k, v in total.items() if k in counts.index} == counts.to_dict()
    assert "throttled" in Page(report.render_report(changed(run, samples=samples), model, VALIDATION)).text


def test_warnings_stand_at_the_top(small: tuple[Any, Any], no_figures: None) -> None:
    run, model = small
    bad = changed(run, complete=False, link_error_deltas={"GPU-1": {"replay": 3, "recovery": 0, "crc": None}})
    empty = dataclasses.replace(model, pairs=[])
    text = Page(report.render_report(bad, empty, None)).text
    head = text[: text.index("Figures", text.index("Provenance"))]  # the first Figures is in the table of contents
    for words in ("incomplete", "replay by 3", "No drain rate could be determined", "There is no validation"):
        assert words in head


def test_file_is_written_whole_or_not_at_all(small: tuple[Any, Any], no_figures: None, tmp_path: Path) -> None:
    run, model = small
    out = tmp_path / "report.html"
    report.write_report(run, model, VALIDATION, out)
    assert out.read_text(encoding="utf-8") == report.render_report(run, model, VALIDATION)
    assert "<title>SIMULATED: " in out.read_text()
    assert "SIMULATED" not in report.render_report(changed(run, simulated=False, backend="cuda"), model, VALIDATION)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(UsageError):
        report.write_report(run, model, VALIDATION, tmp_path / "missing" / "report.html")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(372.4, 3, "372"), (18567.0, 3, "18\u2009600"), (2.456, 3, "2.46"), (0.0, 3, "0"), (0.01234, 3, "0.0123"), (12345, 9, "12\u2009345"),
     (None, 3, "–"), (float("nan"), 3, "–"), (1999.6, 4, "2\u2009000")],
)  # fmt: skip
def test_number(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_estimate_shows_interval_or_its_absence() -> None:
    e = Estimate(value=372.0, standard_error=1.0, low=370.0, high=374.0)
    assert estimate(e) == "372 [370, 374]"
    assert estimate(Estimate.missing("never saturates")) == "not identified"
    bound = dataclasses.replace(e, low=None, high=None, status="at_bound")
    assert estimate(bound) == "372 (at bound)"
