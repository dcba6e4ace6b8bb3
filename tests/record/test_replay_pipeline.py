"""The whole pipeline over a replay: plan, run, record and fit give what they gave over the device that was recorded."""

import shutil
from dataclasses import replace

import pandas as pd
import pytest

from xstage_bench.device.backend import resolve_backend
from xstage_bench.io.identity import Kernel
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options
from xstage_bench.model.run_fit import fit_run
from xstage_bench.record.manifest import load_manifest, save_manifest


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    options = Options(resolve_backend("sim"), only=("isolated", "holdout"), quick=True, pairs=((0, 1),), processes=2, repetitions=4)
    first = record_run(options, base / "first", ["xstage", "run"])
    again = record_run(replace(options, backend=resolve_backend(f"replay:{base / 'first'}")), base / "again", ["xstage", "run"])
    return first, again


def test_tables_are_the_same(runs):
    first, again = runs
    assert len(first.samples()) > 1000
    assert len(first.producers()) > 1000
    for table in ("samples", "producers", "traces"):
        pd.testing.assert_frame_equal(getattr(again, table)(), getattr(first, table)(), check_exact=True)


def test_the_replay_of_a_simulation_says_that_it_is_simulated(runs):
    first, again = runs
    assert again.manifest.simulated
    assert again.manifest.backend == "replay:first"
    assert again.manifest.counts == first.manifest.counts
    assert again.manifest.node == first.manifest.node


def test_the_fit_is_the_same(runs):
    models = [fit_run(run, resamples=20) for run in runs]
    assert models[0].pairs
    assert models[0].backend == runs[0].manifest.backend
    assert replace(models[1], backend=models[0].backend) == models[0]


def test_a_replay_names_the_kernels_of_what_it_replays(runs, tmp_path):
    kernel = Kernel(source="burst.cu", arch="sm_90", compiler=None, identity="aa")
    recorded = tmp_path / "recorded"
    shutil.copytree(runs[0].folder, recorded)
    save_manifest(recorded, replace(load_manifest(recorded), kernels=[kernel]))
    options = Options(resolve_backend(f"replay:{recorded}"), only=("isolated",), quick=True, pairs=((0, 1),), processes=2, repetitions=4)
    assert record_run(options, tmp_path / "again", ["xstage", "run"]).manifest.kernels == [kernel]
    assert runs[0].manifest.kernels == []
