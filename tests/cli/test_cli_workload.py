"""xstage predict --workload as a user calls it."""

from __future__ import annotations

import h200
import pytest

MODEL = h200.MODEL


def test_every_phase_in_words_and_as_json(xstage):
    words = ("--workload", "keye-vl-2", "--ep", "8", "--sp", "4", "--context", "2048")
    text = xstage("predict", MODEL, *words)
    assert text.code == 0, text.err
    for phase in ("vision", "reshard", "qkv", "select", "attention", "output", "dispatch", "experts"):
        assert f"\n{phase} " in text.out
    assert "EP 8 x SP 4 x TP 1, prefill, 2048 tokens, bf16" in text.out
    assert "assumed" in text.out
    document = xstage("predict", MODEL, *words, "--json").document()
    assert document["status"] == "predicted"
    assert document["simulated"] is False
    assert document["advised_pass_ns"] <= document["pass_ns"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a schedule file, or --workload"),
        (("--workload", "keye-vl-3"), "did you mean 'keye-vl-2'"),
        (("--workload", "keye-vl-2", "--sp", "8"), "above the 4 key-value heads"),
        (("--workload", "keye-vl-2", "--ep", "5"), "EP 5 does not divide the 128 experts"),
        (("--workload", "keye-vl-2", "--ep", "16"), "a node has"),
        (("--workload", "wan-1.3b-480p", "--sp", "8"), "does not divide the 12 heads"),
        (("--workload", "keye-vl-2", "--context", "999999"), "262144"),
        (("s.json", "--workload", "keye-vl-2"), "give a schedule file, or --workload"),
        (("s.json", "--ep", "8"), "--ep belong to a workload"),
    ],
)
def test_what_is_refused(xstage, words, message):
    done = xstage("predict", MODEL, *words)
    assert done.code == 2, done.err
    assert message in done.err
    assert "try:" in done.err
