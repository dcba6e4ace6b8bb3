"""`check RUN`: each way in which a run can be worth less than it seems is found, and a sound run is left alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.io.identity import kernel_of
from xstage_bench.judge.check import criticise
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options
from xstage_bench.model.document import Model
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.run_fit import fit_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    options = Options(BackendChoice("sim:h200-nv18-x2", "test", True), pairs=((0, 1),), only=("isolated", "periodic"), quick=True)
    run = record_run(options, tmp_path_factory.mktemp("critique") / "run", ["xstage", "run"])
    return run, fit_run(run, resamples=20)


def with_samples(run: Any, samples: pd.DataFrame, **change: Any) -> Any:
    manifest = dataclasses.replace(run.manifest, **change)
    return SimpleNamespace(folder=run.folder, manifest=manifest, samples=lambda: samples)


def bad(run: Any, model: Model | None) -> dict[str, Any]:
    """Findings that are not ok, by check; each says what to do."""
    found = {f.check: f for f in criticise(run, model) if f.status != "ok"}
    assert all(f.hint for f in found.values()), found
    return found


def test_a_sound_run_is_left_alone(sound: tuple[Any, Model]) -> None:
    assert bad(*sound) == {}
    assert any("SIMULATED" in f.detail for f in criticise(*sound))


def test_it_says_which_kernels_measured_and_whether_they_are_those_here(sound: tuple[Any, Model]) -> None:
    run, model = sound
    mine = [kernel_of("burst.cu", "sm_90", {"XSTAGE_TIMELINE": n}) for n in "12"]
    other = dataclasses.replace(kernel_of("verify.cu", "sm_90"), identity="00")

    def said(**change: Any) -> list[Any]:
        return [f for f in criticise(with_samples(run, run.samples(), **change), model) if f.check == "kernels"]

    (found,) = said(kernels=[*mine, other])
    assert found.status == "ok"
    assert f"burst.cu {mine[0].identity[:8]} and 1 more variants (sm_90, {mine[0].compiler}); verify.cu 00 (" in found.detail
    assert found.detail.endswith("not the source of this installation")
    assert "not the source" not in said(kernels=mine)[0].detail
    assert "unknown" in said(simulated=False)[0].detail
    assert said() == []  # nothing was compiled for a simulated run


def test_without_a_model_that_is_said(sound: tuple[Any, Model]) -> None:
    assert set(bad(sound[0], None)) == {"model"}


def isolated(samples: pd.DataFrame) -> Any:
    return (samples["probe"] == "isolated") & (samples["kind"] == "measure")


def spread_within(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples["issue_mean_cycles"] *= np.exp(0.08 * rng.standard_normal(len(samples)))


def spread_between(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples["issue_mean_cycles"] *= samples["process"].map({0: 0.92, 1: 1.0, 2: 1.08}).to_numpy()


def drift(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    place = samples.groupby("process")["order"].rank(pct=True)
    samples["issue_mean_cycles"] *= np.where(samples["kind"] == "sentinel", 1 + 0.03 * place, 1.0)


def great_drift(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    place = samples.groupby("process")["order"].rank(pct=True)
    samples["issue_mean_cycles"] *= np.where(samples["kind"] == "sentinel", 1 - 0.2 * place, 1.0)


def clocks(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples["sm_clock_mhz"] *= rng.uniform(0.95, 1.0, len(samples))


def throttled(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples.loc[rng.random(len(samples)) < 0.1, "status"] = "throttled"


def all_throttled(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples["status"] = "throttled"


def wakes_up(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    late = samples.index[isolated(samples)][::50]
    samples.loc[late, "issue_mean_cycles"] += 120 * 1980.0


def silent(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples.loc[samples["probe"] == "periodic", "gap_cycles"] = 60e6 * 1.98


def second_knee(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    beyond = np.maximum(samples["bytes"] - 200_000, 0).to_numpy()
    samples["issue_mean_cycles"] += np.where(isolated(samples) & (samples["producers"] == 132), 0.4 * beyond, 0.0)


def one_process(samples: pd.DataFrame, rng: np.random.Generator) -> None:
    samples["process"] = 0


def few(samples: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return samples[(samples["kind"] != "measure") | (samples["repetition"] % 3 == 0)]


@pytest.mark.parametrize(
    ("damage", "check", "status", "words"),
    [
        (spread_within, "spread within a process", "warn", "differ by"),
        (spread_between, "spread between processes", "warn", "fresh processes differ by 8"),
        (drift, "drift", "warn", "+2."),
        (great_drift, "drift", "fail", "-1"),
        (clocks, "SM clock", "warn", "apart by"),
        (throttled, "pair 0>1 samples", "warn", "throttled"),
        (all_throttled, "pair 0>1 samples", "fail", "no valid one of"),
        (wakes_up, "link sleep", "warn", "late by more than 30 us"),
        (silent, "link sleep", "warn", "a gap of 60 ms"),
        (second_knee, "second knee", "warn", "in the largest bursts"),
        (one_process, "repetitions", "warn", "1 process"),
        (few, "repetitions", "warn", "too few samples"),
    ],
)
def test_what_spoils_a_run_is_named(sound: tuple[Any, Model], damage: Any, check: str, status: str, words: str) -> None:
    run, model = sound
    samples = run.samples()
    left = damage(samples, np.random.default_rng(1))
    samples = samples if left is None else left
    found = bad(with_samples(run, samples), model)
    assert check in found, found
    assert found[check].status == status
    assert words in found[check].detail


def test_the_record_itself_is_read(sound: tuple[Any, Model]) -> None:
    run, model = sound
    deltas = {"GPU-1": {"replay": 3, "recovery": 0, "crc": None, "links": {"4": {"replay": 3}}}}
    hot = {"gpus": [{"index": 0, "clock_event_reasons": ["gpu_idle", "hw_thermal_slowdown"]}]}
    changed = with_samples(
        run, run.samples(), complete=False, failed_pairs={"1>0": "lost"}, link_error_deltas=deltas, environment_after=hot
    )
    found = bad(changed, model)
    assert {k: f.status for k, f in found.items()} == {
        "complete": "warn", "pair 1>0": "fail", "link errors": "warn", "GPU 0 clocks": "warn",
    }  # fmt: skip
    assert "3 replay during the run, links 4" in found["link errors"].detail


def test_numbers_without_or_with_wide_intervals_are_named(sound: tuple[Any, Model]) -> None:
    run, model = sound
    pair = next(p for p in model.pairs if not p.is_local)
    wide = Estimate(value=100.0, standard_error=5.0, low=85.0, high=115.0)
    entries = [
        dataclasses.replace(e, capacity_bytes=Estimate.missing("the sweep never saturates"), drain_gb_per_s=wide) for e in pair.burst_gap
    ]
    found = bad(run, dataclasses.replace(model, pairs=[dataclasses.replace(pair, burst_gap=entries)]))
    assert set(found) == {"pair 0>1 Q", "pair 0>1 R"}
    assert "never saturates" in found["pair 0>1 Q"].detail
    assert "+-15.00 %" in found["pair 0>1 R"].detail
    assert "too few samples" in (found["pair 0>1 R"].hint or "")


def test_a_run_without_a_row_fails(sound: tuple[Any, Model]) -> None:
    run, model = sound
    found = bad(with_samples(run, run.samples().iloc[:0]), model)
    assert found["samples"].status == "fail"
