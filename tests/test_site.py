"""The documentation site: every page has its place in the order, and every link between pages leads somewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "results").glob("**/README.md")),
]


@pytest.fixture(scope="module")
def conf() -> Any:
    spec = importlib.util.spec_from_file_location("conf_of_the_site", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_one_place(conf: Any) -> None:
    placed = [page for pages in conf.ORDER.values() for page in pages]
    assert sorted(placed) == sorted({str(p.relative_to(ROOT).with_suffix("")) for p in PAGES} - {"README"} | {"CHANGELOG"})
    assert list(conf.ORDER) == ["Tutorial", "How-to", "Reference", "Explanation", "Findings"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path, conf: Any) -> None:
    """In the repository, and after what the site changes."""
    source = [page.read_text(encoding="utf-8")]
    conf._read(SimpleNamespace(), str(page.relative_to(ROOT).with_suffix("")), source)
    for text in (page.read_text(encoding="utf-8"), source[0]):
        for link in re.findall(r"\]\(((?!\w+:)[^)#\s]+)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
            assert (page.parent / link).exists(), link


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module)
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "load_model" in (tmp_path / "docs" / "api.html").read_text()
    assert (tmp_path / "searchindex.js").stat().st_size > 10_000
