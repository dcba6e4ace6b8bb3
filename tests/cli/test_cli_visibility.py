"""``xstage measure visibility`` where nothing can be measured, and with words that cannot be meant."""

from __future__ import annotations

import json

import pytest

from xstage_bench.machine.topology import read_topology


def test_without_a_pair_of_gpus_it_says_so_and_writes_nothing(xstage, tmp_path):
    if read_topology().usable_pairs():
        pytest.skip("this machine has GPUs to measure")
    done = xstage("measure", "visibility", "--out", tmp_path / "v.json", "--json")
    assert done.code == 3
    assert json.loads(done.out)["exit_code"] == 3
    assert not (tmp_path / "v.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--pairs", "zero"], "SOURCE:DESTINATION"), (["--processes", "0"], "processes"), (["--out", "-", "--json"], "stdout")],
)
def test_what_cannot_be_meant(xstage, words, said):
    done = xstage("measure", "visibility", *words)
    assert done.code == 2
    assert said in done.err
