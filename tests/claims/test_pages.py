"""Every finding has its recording's tables: what ``page.py write`` would put there stands there. Links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tables
from check_claims import ROOT

RESULTS = ROOT / "results"
PAGES = sorted(path for path in RESULTS.rglob("page.py"))


@pytest.mark.parametrize("page", PAGES, ids=[str(p.parent.relative_to(RESULTS)) for p in PAGES])
def test_a_page_has_the_tables_of_its_recording(page: Path) -> None:
    made = tables.load(page).tables(page.parent)
    readme = page.with_name("README.md")
    assert tables.put(readme, made) == readme.read_text()
    assert "when" not in made or made["when"].startswith(("Measured on ", "Predicted with "))


@pytest.mark.parametrize("page", sorted(RESULTS.rglob("README.md")), ids=lambda p: str(p.parent.relative_to(RESULTS)))
def test_links_lead_somewhere_and_prose_is_short(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
    prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ", "<!--")))
    assert len(prose.split()) <= 1800


def test_every_finding_is_in_the_index() -> None:
    index = (RESULTS / "README.md").read_text()
    for readme in RESULTS.glob("*/*/README.md"):
        name = str(readme.relative_to(RESULTS))
        assert name in index or name.startswith("reference/"), name
