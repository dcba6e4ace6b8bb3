"""The pictures of docs/concepts.md: what the page reads off them is so in the simulator, and the files are those that the script draws."""

from __future__ import annotations

import re
from pathlib import Path

import concept_pictures as pictures
import numpy as np
import pytest

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def test_a_burst_that_fits_is_issued_at_once_and_one_that_does_not_waits_for_the_link():
    fits, over = (pictures.burst_course(pictures.PRESET, kib) for kib in (12, 40))
    assert fits.issue_ns < 0.1 * fits.empty_ns
    assert over.issue_ns > 20 * fits.issue_ns
    for course in (fits, over):
        assert np.all(course.issued_bytes >= course.drained_bytes - 512)
        assert course.issued_bytes[-1] == pytest.approx(course.drained_bytes[-1], rel=1e-3)
    held = (over.issued_bytes - over.drained_bytes)[(over.time_ns > 1000) & (over.time_ns < 5000)]
    assert held == pytest.approx(np.full(held.shape, held.mean()), rel=0.06), "while all stall the stage holds what it can"


def test_work_in_the_gap_costs_nothing_until_the_stall_is_gone():
    shown = pictures.periods(pictures.PRESET, pictures.KIB, pictures.GAPS_CYCLES)
    rows = slice(pictures.FIRST, pictures.LAST)
    period = [float(np.mean(np.diff(start[pictures.FIRST : pictures.LAST + 1]))) for start, _ in shown]
    issue = [float(np.mean((end - start)[rows])) for start, end in shown]
    assert period[1:3] == pytest.approx([period[0]] * 2, rel=0.02)
    assert period[3] < 1.1 * period[0] < period[4]
    assert issue[0] > issue[1] > issue[2] > 5 * issue[3]
    assert issue[3] == pytest.approx(issue[4], rel=0.05)


def drawn(name):
    """Draw without the ids: they are hashes of floats, and the layout's solver sums in an order of its own."""
    return re.sub(r"\b[pm][0-9a-f]{10}\b", "", pictures.svg(name).decode())


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_page_shows_each_picture_and_the_picture_says_what_it_is(name):
    page = (IMAGES.parent / "concepts.md").read_text()
    assert re.search(rf"!\[[^\]]*(?:simulated|schematic)[^\]]*\]\(images/{name}\.svg\)", page)
    assert drawn(name) == drawn(name)
    assert (IMAGES / f"{name}.svg").stat().st_size < 120_000
