"""The documentation site: the pages of the repository as they are, in an order to read them in. ``make docs`` builds it, offline."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from xstage_bench.version import __version__  # noqa: E402

project, release, author = "xstage-bench", __version__, "the authors of xstage-bench"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"xstage-bench {__version__}"
root_doc = "README"
#: The source is the whole repository, so that a link between pages is the same on the site and in a checkout.
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "results/README.md", "results/**/README.md"]
exclude_patterns = ["**/.*", "build", "dist", ".venv*", "venv"]
myst_heading_anchors = 4
autodoc_typehints = "none"
#: `tests/test_site.py` names every link that leads nowhere; what is left are links to folders and to files beside the pages.
suppress_warnings = ["myst.xref_missing", "myst.header", "misc.highlighting_failure"]

ORDER: dict[str, list[str]] = {
    "Tutorial": ["docs/start"],
    "How-to": ["docs/measure", "docs/predict", "docs/advise", "docs/own-kernel", "docs/operate", "docs/simulator", "docs/extend"],
    "Reference": ["docs/cli", "docs/files", "docs/api", "CONTRIBUTING", "CHANGELOG"],
    "Explanation": ["docs/concepts", "docs/burst-gap", "docs/node-model", "docs/method", "docs/kernels"],
    "Findings": ["results/README", *sorted(str(p.with_suffix("").relative_to(ROOT)) for p in ROOT.glob("results/*/**/README.md"))],
}
_API = "\n\n## From the code\n\n```{eval-rst}\n.. automodule:: xstage_bench\n   :members:\n   :imported-members:\n   :no-index:\n```\n"


def _read(app: Any, name: str, source: list[str]) -> None:
    """Add to a page what only the site has: the order of the pages, and the docstrings."""
    if name == "README":
        for caption, pages in ORDER.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
    if name == "docs/api":
        source[0] += _API
    # A folder has a page of its own where it has a README.
    here = (ROOT / name).parent
    source[0] = re.sub(
        r"\]\(((?!https?:)[\w./-]+)\)",
        lambda found: f"]({found[1].rstrip('/')}/README.md)" if (here / found[1] / "README.md").is_file() else found[0],
        source[0],
    )


def setup(app: Any) -> None:
    """Connect what Sphinx calls for each page."""
    app.connect("source-read", _read)
