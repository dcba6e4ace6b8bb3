"""The public API: these names and fields; a change here is a breaking one. Signatures and examples: docs/api.md, made from the code."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pytest

import xstage_bench
from xstage_bench import types

ROOT = Path(__file__).parent.parent
RUN = h200.RUN

FUNCTIONS = {"advise", "load_model", "load_schedules", "load_stamps", "predict", "save_schedules", "stage"}
#: Fields of the public dataclasses in order; those with a default are marked.
CLASSES = {
    "Job": "bytes tile_ns tiles quiet_tile_ns= quiet_tiles= waves= producers= warps= with_stores_ns= both_ways= pair= flavour=",
    "Burst": "bytes gap_cycles= start_ns=",
    "PredictedSchedule": "pair model sm_clock_mhz t0_cycles issue_cycles issue_max_cycles issue_low_cycles issue_high_cycles stall_cycles "
    "backlog_bytes start_ns end_ns visible_ns regime in_calibrated_range total_ns notes= holdout=",
    "TaskSchedule": "producers producer compute_cycles bytes remote_bytes waits_for signals phase= phases= warps= form= publish= source= "
    "destination= both_ways= flavour= name=",
    "TaskTrace": "schedule smids start_ns compute_end_ns store_end_ns signal_end_ns total_ns visible_ns sm_clock_mhz status= detail=",
    "Schedule": "bursts producers warps= source= destination= start= flavour= layout= completion= warps_meet=",
    "Stage": "pair flavour layout producers warps warp_store_bytes sm_clock_mhz bytes t0_cycles drain_gb_per_s capacity_bytes limited_by "
    "issue_base_cycles issue_cycles_per_store rate_gb_per_s stalled_gb_per_s stalled_capacity_bytes median_error p90_error",
    "Trace": "schedule smids issue_cycles gap_cycles start_ns end_ns drain_cycles sm_clock_mhz status= detail= timeline_cycles= recorded= "
    "issued_cycles= reusable_cycles= completed_cycles=",
}


def public(name: str) -> Any:
    """A name of the package, or a type of `xstage_bench.types`."""
    return getattr(xstage_bench if name in xstage_bench.__all__ else types, name)


def test_ten_names_and_the_types() -> None:
    assert len(xstage_bench.__all__) == 10
    assert FUNCTIONS | {"Schedule", "Burst", "TaskSchedule"} == set(xstage_bench.__all__) <= set(dir(xstage_bench))
    assert set(CLASSES) <= {*xstage_bench.__all__, *types.__all__}
    for name in (*xstage_bench.__all__, *types.__all__):
        assert public(name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'Predictor'"):
        _ = xstage_bench.Predictor


@pytest.mark.parametrize("name", ["Job", "Model", "XStageError", "load_tasks", "save_tasks", "predict_all", "include_dir"])
def test_a_name_of_before_is_understood_and_says_the_new_one(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"xstage_bench\.{name} goes with version 0\.2; use "):
        assert getattr(xstage_bench, name)


@pytest.mark.parametrize("name", list(CLASSES))
def test_these_fields(name: str) -> None:
    cls = public(name)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    found = inspect.signature(cls).parameters
    assert " ".join(f"{f.name}{'' if found[f.name].default is inspect.Parameter.empty else '='}" for f in fields(cls)) == CLASSES[name]


def test_importing_it_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import xstage_bench; print(' '.join(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert not {m.partition(".")[0] for m in loaded} & {"numpy", "pandas", "scipy", "msgspec", "click", "matplotlib"}
    assert {m for m in loaded if m.startswith("xstage_bench.")} == {"xstage_bench.version"}


def test_predict_takes_bursts_and_tasks() -> None:
    model = xstage_bench.load_model(RUN)
    schedule = xstage_bench.Schedule((xstage_bench.Burst(32768),), 132, 4)
    one, many = xstage_bench.predict(model, schedule), xstage_bench.predict(model, [schedule, schedule])
    assert isinstance(one, types.PredictedSchedule)
    np.testing.assert_allclose([p.total_ns for p in many], one.total_ns)
    np.testing.assert_allclose(xstage_bench.predict(model, schedule, sm_clock_mhz=990.0).sm_clock_mhz, 990)
    tasks = xstage_bench.TaskSchedule(
        producers=132,
        producer=np.arange(132),
        compute_cycles=np.full(132, 9000),
        bytes=np.full(132, 32768),
        remote_bytes=np.full(132, 32768),
        waits_for=np.full(132, -1),
        signals=np.full(132, -1),
    )
    found = xstage_bench.predict(model, tasks)
    assert isinstance(found, types.TaskPrediction)
    assert found.total_ns > found.without_stores_ns > 4500
    job = types.Job(bytes=32768, tile_ns=4500, tiles=4, quiet_tile_ns=9000, quiet_tiles=4, waves=2)
    advice = xstage_bench.advise(model, job)
    assert isinstance(advice, types.JobAdvice)
    assert isinstance(advice.tasks, types.TaskAdvice)
    assert advice.tasks.gain >= 1
    with pytest.raises(types.XStageError, match="133 producers asked for"):
        xstage_bench.predict(model, xstage_bench.Schedule((xstage_bench.Burst(512),), 133))
