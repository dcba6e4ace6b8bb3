"""A pair that lies, hangs or dies: named, without a number, the others measured, exit 1; what was measured stays readable."""

from __future__ import annotations

import json

import pytest

from xstage_bench.record.reader import load_run

#: The real command line over a simulated node with faults: only the opening of the device is replaced.
DRIVER = """
import sys
import xstage_bench.measure.bursts as bursts
from xstage_bench.device.sim import SimDevice
from xstage_bench.device.sim.faults import Faults
faults = Faults({faults})
bursts.open_device = lambda choice, *, seed, process: SimDevice(seed=seed, process=process, faults=faults)
from xstage_bench.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def with_faults(python_c, tmp_path):
    def call(faults, verb):
        words = ("--backend", "sim", "--quick", "--only", "isolated", "--json", "--out", tmp_path / "run")
        done = python_c(DRIVER.format(faults=faults), verb, *words)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout), done.stderr, tmp_path / "run"

    return call


@pytest.mark.parametrize(
    ("verb", "faults", "words"),
    [("profile", "dropped=((0, 1),)", "expected 0x"), ("run", "hanging=((0, 1),)", "no progress within the time-out")],
)
def test_the_other_pair_is_finished(with_faults, verb, faults, words):
    document, said, folder = with_faults(faults, verb)
    (line,) = [line for line in said.splitlines() if line.startswith("xstage: ")]
    assert line.startswith("xstage: pair 0>1: ")
    assert words in line
    assert set(document["failed_pairs"]) == {"0>1"}
    if verb == "profile":
        assert {row["pair"] for row in document["headline"]} == {"1>0"}
    assert json.loads((folder / "manifest.json").read_text())["complete"] is True


def test_nothing_works_and_nothing_is_made_up(with_faults):
    document, _, folder = with_faults("dropped=((0, 1), (1, 0))", "profile")
    assert document["headline"] == []
    assert set(document["failed_pairs"]) == {"0>1", "1>0"}
    assert not (folder / "model.json").exists()


def test_an_error_in_the_middle_keeps_what_was_measured(with_faults, xstage):
    """The second pair fails after some of its executions: they stay in the record, and no number is made of them."""
    document, _, folder = with_faults("error_after=500", "run")
    assert set(document["failed_pairs"]) == {"1>0"}
    samples = load_run(folder).samples()
    assert set(samples.loc[samples["kind"] == "measure", "source"]) == {0, 1}
    fit = xstage("fit", folder, "--resamples", 20, "--out", "-")
    assert fit.code == 0, fit.err
    assert [pair["pair"] for pair in fit.document()["pairs"]] == ["0>1"]
