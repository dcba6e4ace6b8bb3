"""The machinery of ``make claims``, on a table and pages of its own: what is wrong, missed or stale is found; what is written is right.

The numbers themselves are recomputed by ``make claims`` alone; here only the table's form and the pages' marks are looked at.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check_claims
import numpy as np
import pytest

from xstage_bench.io.identity import Kernel, kernel_of

TABLE = """
[run]
path = "results/run"
kernels = ["burst.cu"]
[run.claims]
rate = { of = "number", given = { name = "rate" }, form = "{:.1f} GB/s", bar = { least = 300 } }
both = { of = "both", form = "{:.1%} | {:_.0f}" }
[other]
path = "results/other"
document = "found.json.gz"
kernels = ["moe.cu"]
[other.claims]
words = { of = "words", form = "seen on {}", document = "manifest.json", kernels = ["burst.cu"] }
"""
PAGE = """# Title

R is <!-- claim:run.rate -->369.5 GB/s<!-- /claim -->.

| a | <!-- claim:run.both -->2.1 % | 1 060<!-- /claim --> |

Once <!-- claim:other.words -->seen on Monday<!-- /claim -->.
"""


def number(folder: Path, name: str) -> float:
    return float(json.loads((folder / "numbers.json").read_text())[name])


FUNCTIONS = SimpleNamespace(number=number, both=lambda folder: (0.0211, 1060.2), words=lambda folder: "Monday")


class Tree:
    """A tree of two recordings and two pages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("run", "other"):
            (root / "results" / name).mkdir(parents=True)
            self.kernels(name, [kernel_of("burst.cu", "sm_90")])
        (root / "results/run/numbers.json").write_text('{"rate": 369.53}')
        (root / "docs").mkdir()
        (root / "claims.toml").write_text(TABLE)
        (root / "README.md").write_text("# Nothing is quoted here\n")
        self.page = root / "docs" / "page.md"
        self.page.write_text(PAGE)
        self.said: list[str] = []

    def kernels(self, name: str, kernels: list[Kernel]) -> None:
        """Let a recording name these."""
        document = {"kernels": [asdict(k) for k in kernels]} if kernels else {}
        (self.root / "results" / name / "manifest.json").write_text(json.dumps(document))

    def check(self, *, write: bool = False) -> int:
        """Run it; what it says is kept."""
        self.said = []
        claims = check_claims.load_claims(self.root / "claims.toml", self.root, FUNCTIONS)
        return check_claims.check(claims, self.root, write=write, say=self.said.append)

    def edit(self, old: str, new: str) -> None:
        """Change the page."""
        text = self.page.read_text()
        assert old in text
        self.page.write_text(text.replace(old, new))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_right_numbers_pass_and_another_is_wrong_until_it_is_written(tree: Tree) -> None:
    assert tree.check() == 0
    assert tree.said[-1] == "3 claims: 3 ok, 0 stale, 0 wrong; 0 marks of pages wrong"
    tree.edit("369.5", "372.0")
    assert tree.check() == 1
    assert any("docs/page.md says '372.0 GB/s'" in line for line in tree.said)
    for _ in range(2):
        assert tree.check(write=True) == 0
        assert tree.page.read_text() == PAGE


def test_where_rounding_turns_either_text_is_right(tree: Tree) -> None:
    (tree.root / "results/run/numbers.json").write_text('{"rate": 369.5500001}')
    for shown, status in (("369.4", 1), ("369.5", 0), ("369.6", 0), ("369.7", 1), ("370", 1)):
        tree.page.write_text(PAGE.replace("369.5", shown))
        assert tree.check() == status
    tree.page.write_text(PAGE.replace("1 060", "1 061"))
    assert tree.check() == 1


def test_a_bar_is_kept_whatever_the_page_says(tree: Tree) -> None:
    (tree.root / "results/run/numbers.json").write_text('{"rate": 299.0}')
    assert tree.check(write=True) == 1
    assert any("outside the bar" in line for line in tree.said)


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        ([], "before kernels had identities"),
        ([replace(kernel_of("burst.cu", "sm_90"), identity="00")], "recorded with another burst.cu"),
        ([kernel_of("burst.cu", "sm_90"), replace(kernel_of("burst.cu", "sm_80"), identity="00")], "recorded with another burst.cu"),
        ([kernel_of("moe.cu", "sm_90a")], "names no burst.cu"),
    ],
)
def test_a_stale_recording_must_be_marked(tree: Tree, kernels: list[Kernel], reason: str) -> None:
    tree.kernels("run", kernels)
    assert tree.check() == 1
    assert any("does not name its stale recordings" in line for line in tree.said)
    assert tree.check(write=True) == 0
    (line,) = [line for line in tree.page.read_text().splitlines() if "Stale" in line]
    assert ("`results/run`" in line, "results/other" in line, reason in line) == (True, False, True)
    assert tree.check() == 0
    assert "1 ok, 2 stale, 0 wrong" in tree.said[-1]
    tree.kernels("run", [kernel_of("burst.cu", "sm_90")])  # recorded anew: the line must go
    assert tree.check() == 1
    assert tree.check(write=True) == 0
    assert "Stale" not in tree.page.read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("claim:run.rate", "claim:run.speed", "quotes 'run.speed', which is no claim"),
        ("<!-- claim:run.rate -->369.5 GB/s<!-- /claim -->", "369.5 GB/s", "no page quotes it"),
        ("GB/s<!-- /claim -->", "GB/s", "not in pairs"),
        ("R is <!--", "<!--", "is not read as Markdown"),
    ],
)
def test_marks_that_are_wrong(tree: Tree, old: str, new: str, said: str) -> None:
    tree.edit(old, new)
    assert tree.check() == 1
    assert any(said in line for line in tree.said)


def test_kernels_are_read_from_any_document(tmp_path: Path) -> None:
    kernel = kernel_of("pacing.cu", "sm_90", {"XSTAGE_COMPUTE": "1"})
    np.savez(tmp_path / "a.npz", kernels=np.array(json.dumps([asdict(kernel)])), more=np.zeros(3))
    np.savez(tmp_path / "b.npz", more=np.zeros(3))
    (tmp_path / "c.json").write_text(json.dumps({"kernels": [asdict(kernel)]}))
    assert [check_claims.kernels_in(tmp_path / name) for name in ("a.npz", "b.npz", "c.json")] == [[kernel], [], [kernel]]


def test_the_table_of_this_tree_fits_its_pages() -> None:
    if not (check_claims.ROOT / "results" / "h200-x2").is_dir():
        pytest.skip("results/h200-x2 is not in this tree (an sdist leaves the large runs out)")
    claims: dict[str, Any] = {claim.name: claim for claim in check_claims.load_claims()}
    assert all(claim.recording.path.exists() for claim in claims.values())
    quoted = {m["name"] for page in check_claims.pages() for m in check_claims.MARK.finditer(page.read_text())}
    assert quoted == set(claims)
    assert len(claims) >= 40
