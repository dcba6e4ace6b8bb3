"""``xstage measure copies`` and ``visibility --only``: what they refuse, on a machine without a GPU."""

from __future__ import annotations

import pytest

WAIVED, USAGE = 3, 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("measure", "copies", "--out", "nowhere/copies.json"), USAGE, "no such folder"),
        (("measure", "copies", "--pairs", "one"), USAGE, "one"),
        (("measure", "visibility", "--only", "glimpse"), USAGE, "unknown part 'glimpse'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(xstage, words, code, said):
    done = xstage(*words)
    assert done.code == code, done.err
    assert said in done.err


def test_no_simulator_answers_for_a_copy_engine(xstage):
    pytest.importorskip("pynvml")
    done = xstage("measure", "copies", "--processes", "1")
    if done.code == 0:
        pytest.skip("this machine has GPUs")
    assert done.code == WAIVED, done.err
    assert "GB/s" not in done.out
