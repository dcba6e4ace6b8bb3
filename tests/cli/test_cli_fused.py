"""``xstage fused`` where nothing can be measured, and with words that cannot be meant."""

from __future__ import annotations

import json

import pytest

from xstage_bench.machine.topology import read_topology


def test_without_a_pair_of_gpus_it_says_so_and_writes_nothing(xstage, tmp_path):
    if read_topology().usable_pairs():
        pytest.skip("this machine has GPUs to measure")
    done = xstage("fused", "ulysses", "--shape", "wan-14b", "--out", tmp_path / "u.json", "--json")
    assert done.code == 3
    assert json.loads(done.out)["exit_code"] == 3
    assert not (tmp_path / "u.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ulyses"], "did you mean 'ulysses'?"),
        (["ulysses", "--shape", "wan-14b-48p"], "did you mean"),
        (["ulysses", "--shape", "flux.1", "--sp", "5"], "24 heads cannot be dealt to 5 ranks"),
        (["ulysses", "--sp", "1"], "2<=x<=16"),
        (["ulysses", "--seq", "0"], "1<=x"),
        (["ulysses", "--budget", "nan"], "positive"),
        (["ulysses", "--out", "-", "--json"], "stdout"),
        (["ulysses", "--recorded", "no-such.json"], "no-such.json"),
        (["ulysses", "--recorded", "x.json", "--sp", "2"], "leave out"),
        (["ulysses", "--recorded", "x.json", "--pairs"], "leave out"),
    ],
)
def test_what_cannot_be_meant(xstage, words, said):
    done = xstage("fused", *words)
    assert done.code == 2
    assert said in done.err
