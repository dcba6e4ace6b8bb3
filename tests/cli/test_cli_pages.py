"""The pages of `profile` and `fleet` in a real headless Chromium: nothing is asked for, nothing complains, all can be read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import browser
import pytest

CONTRAST = """
(() => {
  const parse = (c) => c.match(/[0-9.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
    return [255, 255, 255];
  };
  let worst = 21, who = '';
  for (const e of document.querySelectorAll('h1,h2,h3,p,th,td,li,dt,dd,a,caption,figcaption')) {
    if (!e.textContent.trim() || e.className === 'skip') continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst) { worst = ratio; who = e.tagName + ' ' + e.className + ' ' + e.textContent.trim().slice(0, 40); }
  }
  return [worst, who];
})()
"""
PROBED = """
({
  wide: document.documentElement.scrollWidth, window: window.innerWidth, title: document.title, language: document.documentElement.lang,
  images: [...document.images].map((i) => [i.alt, i.naturalWidth, i.getBoundingClientRect().right]),
  tables: [...document.querySelectorAll('table')].map(
    (t) => [!!t.caption, t.querySelectorAll('th[scope=col]').length, t.querySelectorAll('th:not([scope])').length]),
  regions: [...document.querySelectorAll('.table')].map(
    (r) => [r.tabIndex, r.getAttribute('aria-label'), r.getBoundingClientRect().right]),
  links: [...document.querySelectorAll('a[href^="#"]')].map((a) => !!document.querySelector(a.getAttribute('href'))),
  reports: [...document.querySelectorAll('a:not([href^="#"])')].map((a) => a.getAttribute('href')),
  scripts: document.scripts.length, first: document.querySelector('main h2').textContent,
  background: getComputedStyle(document.body).backgroundColor,
})
"""


@pytest.fixture(scope="module")
def chromium() -> Any:
    path = browser.find()
    if path is None:
        pytest.skip("no Chromium here: make browser, or set CHROMIUM to one")
    with browser.browser(path) as running:
        yield running


@pytest.fixture(scope="module")
def pages(profiled: Any, xstage: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in ("a", "b", "c", "d"):
        shutil.copytree(profiled[1], folder / name)
    assert xstage("fleet", folder).code == 0
    return {"report": profiled[1] / "report.html", "fleet": folder / "fleet.html"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["report", "fleet"])
def test_a_page_in_a_real_browser(chromium: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    page = chromium.open(pages[name], width=width, scheme=scheme)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("data:image/", "file:///"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1
    facts = page.value(PROBED)
    assert facts["wide"] <= facts["window"] == width, "nothing but tables scrolls sideways, and these in their own frame"
    assert facts["scripts"] in (0, 2), "what it predicts with, and how, both in the page"
    assert facts["language"] == "en"
    assert facts["first"] == "Verdict"
    assert facts["images"]
    for alternative, loaded, right in facts["images"]:
        assert len(alternative) > 20
        assert loaded > 100
        assert right <= width
    for captioned, columns, unscoped in facts["tables"]:
        assert captioned
        assert columns > 0
        assert unscoped == 0
    for focus, named, right in facts["regions"]:
        assert focus == 0, "a table that scrolls can be reached by keyboard"
        assert named
        assert right <= width
    assert all(facts["links"])
    assert sorted(facts["reports"]) == ([] if name == "report" else [f"{node}/report.html" for node in "abcd"])
    assert (facts["background"] == "rgb(255, 255, 255)") == (scheme == "light")
    worst, who = page.value(CONTRAST)
    assert worst >= 4.5, who


def test_a_screen_reader_finds_headings_tables_and_figures(chromium: Any, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["report"], width=1440)
    chromium.call("Accessibility.enable", page.session)
    nodes = chromium.call("Accessibility.getFullAXTree", page.session)["nodes"]
    by_role: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            by_role.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert {"banner", "main", "navigation", "heading", "table", "image"} <= set(by_role), set(by_role)
    for role in ("heading", "table", "image", "region", "navigation", "link"):
        assert all(by_role[role]), role


def test_print_hides_navigation_and_keeps_the_verdict(chromium: Any, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["report"], width=800, medium="print")
    assert page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.value("document.querySelector('#verdict').getBoundingClientRect().height") > 0


def test_the_keyboard_reaches_the_verdict_first(chromium: Any, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["report"], width=1440)
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", page.session, type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.value("document.activeElement.textContent") == "Skip to the verdict"
    assert page.value("document.activeElement.getBoundingClientRect().left") >= 0, "it shows when it has the focus"
