"""``xstage compare`` as a user calls it."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def changed(small_run, tmp_path):
    """Return the small run's model with one number of pair 0>1 multiplied, as a file."""

    def make(factor, name="drain_gb_per_s"):
        document = json.loads((small_run / "model.json").read_text())
        for pair in document["pairs"]:
            for entry in pair["burst_gap"]:
                for key in ("value", "low", "high", "standard_error"):
                    entry[name][key] = None if entry[name][key] is None else entry[name][key] * factor
        (tmp_path / "model.json").write_text(json.dumps(document))
        return tmp_path / "model.json"

    return make


def test_a_run_with_itself(xstage, small_run):
    done = xstage("compare", small_run, small_run, "--json")
    document = done.document()
    assert done.code == 0
    assert document["verdict"] == "same"
    assert document["baseline"]["simulated"] is True
    assert {d["pair"] for d in document["differences"]} == {"0>1"}


def test_a_slower_link_is_a_regression_and_exit_5(xstage, small_run, changed):
    done = xstage("compare", small_run, changed(0.7), "--across", "gpu")
    assert done.code == 5
    assert "-30.00 %" in done.out
    assert done.out.rstrip().endswith("worse")
    assert xstage("compare", changed(0.7), small_run, "--across", "gpu").code == 0, "the other way round it is better"


def test_undetermined_is_exit_0_and_with_strict_4(xstage, small_run):
    words = ("compare", small_run, small_run, "--margin", "0.01")
    done = xstage(*words)
    assert (done.code, done.out.rstrip().splitlines()[-1]) == (0, "undetermined")
    assert xstage(*words, "--strict").code == 4


def test_simulated_and_measured_are_not_mixed_unless_told(xstage, small_run):
    words = ("compare", small_run, "--reference", "h200-nv18")
    done = xstage(*words)
    assert done.code == 1
    assert "backend" in done.err
    told = xstage(*words, "--across", "backend", "--across", "gpu")
    assert told.code in (0, 5)
    assert "MIXED" in told.err
    assert "(measured) -> " in told.out
    assert "(SIMULATED)" in told.out
