"""A Stage says what `predict` says, in closed form; and its C++ twin says the same."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.model.document import Model, load_model
from xstage_bench.model.predict import predict
from xstage_bench.model.stage import Stage, stage_at, stages
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.show.export import export_model
from xstage_bench.show.export.document import exported_model

RECORDED = h200.MODEL


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(RECORDED)


@pytest.fixture(scope="module")
def every(model: Model) -> list[Stage]:
    return stages(model)


def test_every_fitted_cell_is_a_stage(model: Model, every: list[Stage]) -> None:
    assert len(every) == sum(len(p.burst_gap) for p in model.pairs) == 124
    assert stage_at(model, 132, 4) in every


def test_issue_time_is_that_of_predict(model: Model, every: list[Stage]) -> None:
    for stage in every:
        source, _, destination = stage.pair.partition(">")
        sizes = [n * stage.step_bytes for n in (1, 7, 30, 200)]
        schedule = Schedule(tuple(Burst(b) for b in sizes), stage.producers, stage.warps, int(source), int(destination))
        found = predict(model, schedule, form="burst_gap")
        if stage.stalled_gb_per_s is not None:
            np.testing.assert_allclose([stage.issue_cycles(b) for b in sizes], found.issue_cycles, rtol=1e-9)
            assert tuple("stalled" if stage.would_stall(b) else "free" for b in sizes) == found.regime
        np.testing.assert_allclose([stage.free_cycles(b) for b in sizes], found.t0_cycles, rtol=1e-9)


def test_what_model_json_says_of_the_reference_burst(model: Model) -> None:
    for pair in model.pairs:
        for entry in pair.burst_gap:
            stage = stage_at(model, entry.producers, entry.warps, pair=pair.pair)
            assert stage.free_cycles(entry.bytes) == pytest.approx(entry.t0_cycles.value)
            if entry.recovery_gap_cycles.value is not None:
                assert stage.recovery_gap_cycles(entry.bytes) == pytest.approx(entry.recovery_gap_cycles.value, rel=1e-6)
            if entry.knee_bytes.value is not None:
                size = stage.largest_free_burst_bytes()
                assert entry.knee_bytes.value - stage.step_bytes < size <= entry.knee_bytes.value


def test_a_stage_between_fitted_ones(model: Model) -> None:
    low, mid, high = (stage_at(model, k, 4) for k in (96, 110, 132))
    assert mid.producers == 110
    assert low.rate_gb_per_s <= mid.rate_gb_per_s <= high.rate_gb_per_s
    assert low.capacity_bytes.value < mid.capacity_bytes.value < high.capacity_bytes.value  # type: ignore[operator]
    assert mid.capacity_bytes.low < mid.capacity_bytes.value < mid.capacity_bytes.high  # type: ignore[operator]
    narrow = stage_at(model, 132, 3)
    assert (narrow.warps, narrow.bytes % narrow.step_bytes) == (3, 0)
    assert narrow.t0_cycles.value == pytest.approx(narrow.free_cycles(narrow.bytes))
    with pytest.raises(UsageError, match="has no pair 5>6"):
        stage_at(model, 1, 1, pair="5>6")


@cache
def stage_of_recorded(k: int, w: int) -> Stage:
    return stage_at(load_model(RECORDED), k, w)


@given(st.sampled_from([16, 48, 132]), st.sampled_from([1, 4, 16]), st.integers(1, 300), st.floats(0, 3e6), st.floats(0, 1e5))
@settings(max_examples=100, deadline=None)
def test_the_closed_forms_agree_with_each_other(k: int, w: int, n: int, backlog: float, gap: float) -> None:
    stage = stage_of_recorded(k, w)
    size = n * stage.step_bytes
    largest = stage.largest_free_burst_bytes(backlog)
    if size <= largest:
        assert stage.stall_cycles(size, backlog) <= 1e-6
    else:
        assert stage.stall_cycles(size, backlog) > 0
    steady = stage.largest_steady_burst_bytes(gap)
    assert steady <= stage.largest_free_burst_bytes()  # type: ignore[operator]
    assert stage.recovery_gap_cycles(steady) <= gap + 1e-6
    recovery = stage.recovery_gap_cycles(size)
    assert stage.period_cycles(size, recovery) == pytest.approx(stage.free_cycles(size) + recovery)
    assert stage.backlog_after(backlog, size, 1e9) == 0


MAIN = """
#include <cstdio>
#include <initializer_list>
#include "model.cuh"
int main() {
  using namespace xstage;
  constexpr int sizes[] = {512, 2048, 16384, 65536, 1048576};
  for (const Stage &s : pair_0_1_st_v4::stages)
    for (int m : {0, 100})
      for (int size : sizes)
        for (float q : {0.0f, 1e6f, 2.4e6f}) {
          const Stage t = m ? with_producers(s, m) : s;
          const float b = (float)(size / step_bytes(t) * step_bytes(t));
          printf("%.9g %.9g %.9g %.9g %d %.9g %.9g %d %d %.9g\\n", b, q, free_cycles(t, b), issue_cycles(t, b, q), would_stall(t, b, q),
                 recovery_gap_cycles(t, b), period_cycles(t, b, 1000.0f), largest_free_burst_bytes(t, q),
                 largest_steady_burst_bytes(t, 1000.0f), backlog_after(t, q, b, 777.0f));
        }
  constexpr Stage slow = at_clock(pair_0_1_st_v4::stage(132, 4), 990.0f);
  static_assert(recovery_gap_cycles(slow, 32768) < 0.6f * recovery_gap_cycles(pair_0_1_st_v4::stage(132, 4), 32768), "a faster link");
  constexpr Stage moved = pair_0_1_st_v4::stage(100, 3);
  static_assert(moved.producers == 100 && moved.warps == 4, "the nearest, moved");
}
"""


def test_the_cpp_twin_gives_the_same_numbers(model: Model, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the CPU here")
    (tmp_path / "model.cuh").write_text(export_model(exported_model(RECORDED), "cuh"))
    (tmp_path / "main.cpp").write_text(MAIN)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
    subprocess.run([compiler, *flags, "-o", tmp_path / "main", tmp_path / "main.cpp"], check=True)
    lines = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.split("\n")
    found = iter(np.array([line.split() for line in lines if line], dtype=np.float64))
    compared = 0
    for fitted in (s for s in stages(model) if s.pair == "0>1"):
        for stage in (fitted, fitted.with_producers(100)):
            for size in (512, 2048, 16384, 65536, 1048576):
                for q in (0.0, 1e6, 2.4e6):
                    b, backlog, free, issue, stalls, gap, period, largest, steady, left = next(found)
                    assert (b, backlog) == (size // stage.step_bytes * stage.step_bytes, q)
                    assert free == pytest.approx(stage.free_cycles(b), rel=1e-5)
                    assert issue == pytest.approx(stage.issue_cycles(b, q), rel=2e-5, abs=0.05)
                    assert gap == pytest.approx(stage.recovery_gap_cycles(b), rel=2e-5, abs=0.1)
                    assert period == pytest.approx(stage.period_cycles(b, 1000), rel=2e-5)
                    assert left == pytest.approx(stage.backlog_after(q, b, 777), rel=2e-5, abs=8)
                    ratio = stage.issue_cycles(b, q) / max(1.1 * stage.free_cycles(b), 1e-9)
                    if abs(ratio - 1) > 1e-4:
                        assert stalls == stage.would_stall(b, q)
                    for mine, theirs in ((stage.largest_free_burst_bytes(q), largest), (stage.largest_steady_burst_bytes(1000), steady)):
                        assert abs((2**31 - 1 if mine is None else mine) - theirs) <= stage.step_bytes
                    compared += 1
    assert compared == 50 * 2 * 5 * 3
