"""What-if in the report: the browser's model gives Python's numbers; what it says, how it is told to, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest

from xstage_bench.model.document import Model, load_model, load_validation
from xstage_bench.model.predict import predict_all
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.bursts import START_RULES, Burst, Schedule
from xstage_bench.show import report
from xstage_bench.show.verdict import answer, author_table, matrix
from xstage_bench.show.whatif import script, whatif_data

RECORDED = Path(__file__).parents[2] / "results" / "h200-x2" / "profile"
EVERY = """(given) => { const p = given.pairs[0], m = NodeModel.make({...p, table: given.tables[p.table], ...given.maps[p.map]});
  return given.schedules.map((s) => m.predict(s).map((b) => [b.t0, b.issue, b.slowest, b.left, b.start * 1e3 / m.clock + m.lag])); }"""
#: Nine of axe-core's rules that a page of forms, tables and images can break, and the two of the phone: names and values on one line.
SOUND = """(() => { const out = [], named = (e) => e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim();
  for (const e of document.querySelectorAll('input,select,button,a[href],summary'))
    if (!named(e)) out.push('no name: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('[role=img],img')) if (!(e.alt || e.getAttribute('aria-label'))) out.push('no text: ' + e.id);
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  if (new Set(ids).size < ids.length) out.push('ids');
  for (const e of document.querySelectorAll('[aria-labelledby]'))
    if (!document.getElementById(e.getAttribute('aria-labelledby'))) out.push('label');
  for (const e of document.querySelectorAll('a[href^="#"]')) if (!document.querySelector(e.getAttribute('href'))) out.push('link');
  if (document.querySelectorAll('main,h1').length !== 2) out.push('landmarks');
  for (const e of document.querySelectorAll('th:not([scope])')) out.push('scope');
  if ([...document.querySelectorAll('[tabindex]')].some((e) => e.tabIndex > 0)) out.push('tab order');
  if (!document.documentElement.lang || !document.title) out.push('language or title');
  for (const row of document.querySelectorAll('.bars .row')) {
    const [a, , b] = [...row.children].map((e) => e.getBoundingClientRect());
    if (Math.abs(a.top - b.top) > 4 || b.left < a.right || b.right > innerWidth) out.push('bar: ' + row.textContent); }
  return out; })()"""


@pytest.fixture(scope="module")
def recorded() -> Model:
    return load_model(RECORDED / "model.json")


@pytest.fixture(scope="module")
def eight(recorded: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of eight GPUs with two pairs' models, one pair slow; without figures."""
    run, page = load_run(RECORDED), tmp_path_factory.mktemp("eight") / "report.html"
    node = dataclasses.replace(run.manifest.node, gpus=tuple(dataclasses.replace(run.manifest.node.gpus[0], index=i) for i in range(8)))
    models = [p for p in recorded.pairs if not p.is_local]
    pairs = [dataclasses.replace(models[a % 2], pair=f"{a}>{b}") for a in range(8) for b in range(8) if a != b]
    slow = [dataclasses.replace(d, makespan=d.makespan.scaled(0.8)) for d in pairs[7].drain]
    pairs[7] = dataclasses.replace(pairs[7], drain=slow)
    run = dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, node=node))
    page.write_text(
        report.render_report(
            run,
            dataclasses.replace(recorded, pairs=pairs),
            dataclasses.replace(load_validation(RECORDED / "validation.json"), fitted=None),
            drawn=[],
        )
    )
    return page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = browser.find()
    if path is None:
        pytest.skip("no Chromium here: make browser, or set CHROMIUM to one")
    with browser.browser(path) as running:
        yield running


def _schedules(count: int) -> list[Schedule]:
    rng, out = np.random.default_rng(5), []
    for i in range(count):
        warps, bursts = int(rng.integers(1, 17)), int(rng.integers(1, 10))
        starts = np.sort(rng.integers(0, int(10 ** rng.uniform(2, 5.3)), bursts))
        stores = rng.integers(0, 2 + 2 * int(np.exp(rng.uniform(0, 5.5)) / warps), bursts)
        gaps = (10 ** rng.uniform(0, 5, bursts)).astype(int)
        bursts_of = tuple(Burst(512 * warps * int(n), int(g), int(s)) for n, g, s in zip(stores, gaps, starts, strict=True))
        out.append(Schedule(bursts_of, int(rng.integers(1, 133)), warps, start=START_RULES[i % 3]))  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("engine", ["chromium", "node"])
def test_the_browser_predicts_what_python_predicts(recorded: Model, request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> None:
    schedules = _schedules(500)
    given = whatif_data(recorded, [p for p in recorded.pairs if p.pair == "0>1"])
    given["schedules"] = [
        {"producers": s.producers, "warps": s.warps, "start": s.start,
         "bursts": [{"bytes": b.bytes, "gap": b.gap_cycles, "start_ns": b.start_ns} for b in s.bursts]} for s in schedules
    ]  # fmt: skip
    if engine == "chromium":
        page = tmp_path / "page.html"
        page.write_text(f"<script>{script('node.js')}</script>")
        found = request.getfixturevalue("chromium").open(page, width=800).value(f"({EVERY})({json.dumps(given)})")
    elif node := shutil.which("node"):
        program = f"{script('node.js')}console.log(JSON.stringify(({EVERY})(JSON.parse(require('fs').readFileSync(0)))))"
        found = json.loads(
            subprocess.run([node, "-e", program], input=json.dumps(given), capture_output=True, text=True, check=True).stdout
        )
    else:
        pytest.skip("no node here")
    predicted = predict_all(recorded, schedules)
    assert 0.2 < np.mean([r == "stalled" for p in predicted for r in p.regime]) < 0.8
    for p, rows in zip(predicted, found, strict=True):
        wanted = np.stack([p.t0_cycles, p.issue_cycles, p.issue_max_cycles, p.backlog_bytes, p.start_ns], axis=1)
        np.testing.assert_allclose(rows, wanted, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_eight_gpus_are_answered_on_one_screen(chromium: Any, eight: Path, width: int, scheme: str) -> None:
    page = chromium.open(eight, width=width, scheme=scheme)
    assert page.complaints == []
    assert [u for u in page.requests if not u.startswith("data:")] == [eight.resolve().as_uri()[:200]]
    assert page.value(SOUND) == []
    assert page.value("document.documentElement.scrollWidth") == width or page.value("document.documentElement.scrollWidth") <= page.value(
        "innerWidth"
    )
    assert page.value("document.querySelector('.answer').textContent").count("1 → 0") == 1, "the worst pair is named"
    assert "misses unseen bursts by" in page.value("document.querySelector('.quality').textContent")
    if width == 1440:
        answered = ".answer,.quality,.matrix,.next,#w-answer,#w-sms,#w-kib,#w-onset"
        bottom = page.value(f"Math.max(...[...document.querySelectorAll('{answered}')].map((e) => e.getBoundingClientRect().bottom))")
        assert bottom <= 900
        assert page.value("document.documentElement.scrollHeight") < 3600, "with as much again for the figures it is below 6000"
        assert eight.stat().st_size < 600_000


def test_what_if_is_asked_by_its_controls_the_matrix_the_address_and_the_map(chromium: Any, eight: Path) -> None:
    page = chromium.open(eight, width=1440)
    said = "document.querySelector('#w-answer').textContent"
    put = "(n, v) => { const e = document.querySelector('#w-' + n); e.value = v; e.dispatchEvent(new Event('input')); }"
    assert page.value(f"({put})('sms', 64), ({put})('kib', 2), ({put})('gap', 50), {said}").startswith("Free: ")
    assert page.value(f"({put})('kib', 128), {said}").startswith("Stalls: ")
    page.value("document.querySelector('.matrix a[data-pair=\"2>5\"]').click()")
    assert page.value("location.hash").startswith("#pair=2%3E5&sms=64&warps=4&kib=128&gap=50")
    page.value("document.querySelector('#w-onset').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
    assert page.value("document.querySelector('#w-kib').value") == "130"
    page.value("location.hash = '#pair=3>1&sms=10&warps=1&kib=1&gap=9&bursts=3'")
    assert page.value("new Promise((r) => setTimeout(() => r(document.querySelector('#w-sms').value), 50))") == "10"
    page.value(f"({put})('kib', 4096)")
    assert "Outside" in page.value("document.querySelector('#w-range').textContent")
    order = "[...document.querySelectorAll('table.sortable tbody tr')].map((r) => parseFloat(r.cells[1].textContent))"
    page.value("document.querySelectorAll('table.sortable thead button')[1].click()")
    rates = page.value(order)
    assert rates == sorted(rates)
    assert rates[0] < 0.9 * rates[1]


def test_the_answer_names_what_is_wrong(recorded: Model) -> None:
    manifest = load_run(RECORDED).manifest
    assert answer(recorded, dataclasses.replace(manifest, failed_pairs={"0>1": "hangs"}), []).why == "pair 0 → 1 failed: hangs"
    assert answer(recorded, manifest, []).status == "undetermined"
    assert answer(dataclasses.replace(recorded, pairs=[]), manifest, []).why == "no pair has a drain rate"
    table, cells = author_table(recorded, manifest), matrix(recorded, manifest)
    assert table is not None
    assert [row[0].partition(":")[0] for row in table.rows] == ["worst", "best"]
    assert cells is not None
    assert [c["kind"] for row in cells["rows"] for c in row["cells"]] == ["own", "usual", "usual", "own"]
