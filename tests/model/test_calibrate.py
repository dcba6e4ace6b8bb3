"""What enters a fit and what does not, and what is said when the data does not determine a number."""

import runpy
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from made_rows import rows_of

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model
from xstage_bench.schedule.bursts import Burst, Schedule

BENCH = runpy.run_path(str(Path(__file__).parents[1] / "claims" / "truth_recovery.py"), run_name="truth_recovery")
Truth, make_samples = BENCH["Truth"], BENCH["make_samples"]
CLOCK = BENCH["SM_CLOCK_MHZ"]


def fit(samples, **options) -> Model:
    return calibrate(samples, backend="made", gpu="none", sm_clock_mhz=CLOCK, **options)


def made(*truths, seed=0) -> pd.DataFrame:
    parts = [make_samples(t, np.random.default_rng([seed, i])) for i, t in enumerate(truths)]
    for i, part in enumerate(parts):
        part["schedule"] = part["schedule"].str.replace("^.", str(i), regex=True)
    return pd.concat(parts, ignore_index=True)


def periodic(truth, stores, gaps_cycles, bursts=16) -> pd.DataFrame:
    """Free-running bursts that follow max(T0, V/R - G), but for the first."""
    parts = []
    for n in stores:
        size = truth.warps * 512 * n
        for gap in gaps_cycles:
            t0 = truth.base_cycles + truth.cycles_per_store * n
            steady = max(t0, truth.producers * size / truth.drain_gb_per_s * CLOCK / 1e3 - gap)
            train = Schedule((Burst(size, gap),) * bursts, truth.producers, truth.warps, start="free")
            for process, repetition in product(range(3), range(4)):
                issue = np.full(bursts, steady * (1 + 0.001 * process + 0.0005 * repetition))
                issue[0] = t0
                start = np.concatenate([[0], np.cumsum(issue + gap)[:-1]]) * 1e3 / CLOCK
                parts.append(rows_of(train, "periodic", issue, start, process=process, repetition=repetition, clock=CLOCK))
    return pd.concat(parts, ignore_index=True)


def test_held_out_rows_are_never_used():
    samples = made(Truth())
    clean = fit(samples)
    poison = samples.assign(
        probe="holdout", issue_mean_cycles=1e9, issue_max_cycles=1e9, schedule=samples["schedule"].str.replace("^.", "f", regex=True)
    )
    periodic_poison = periodic(Truth(), (8, 64), (0, 128_000)).assign(probe="holdout")
    assert fit(pd.concat([samples, poison, periodic_poison], ignore_index=True)) == clean


@pytest.mark.parametrize(("column", "value"), [("kind", "warmup"), ("kind", "sentinel"), ("status", "throttled"), ("status", "corrupt")])
def test_only_valid_measured_rows_enter(column, value):
    samples = made(Truth())
    bad = samples.assign(issue_mean_cycles=1e9, issue_max_cycles=1e9, repetition=samples["repetition"] + 100, **{column: value})
    both, clean = fit(pd.concat([samples, bad], ignore_index=True)), fit(samples)
    assert both.pairs == clean.pairs
    assert any("not valid" in n for n in both.notes) == (column == "status")


def test_all_throttled_is_no_valid_samples_and_never_nan():
    model = fit(made(Truth()).assign(status="throttled"))
    entry = model.pairs[0].burst_gap[0]
    for number in (entry.t0_cycles, entry.drain_gb_per_s, entry.capacity_bytes, entry.knee_bytes):
        assert (number.status, number.value, number.reason) == ("not_identified", None, "no valid samples")
    text = msgspec.json.encode(model)
    assert b"NaN" not in text
    assert msgspec.json.decode(text, type=Model) == model


def test_the_same_samples_and_seed_give_the_same_model_in_any_order_of_rows():
    samples = made(Truth(), Truth(warps=4, cycles_per_store=31.0))
    model = fit(samples)
    assert fit(samples.sample(frac=1.0, random_state=5).reset_index(drop=True)) == model
    assert model.pairs[0].find(132, 1) == fit(made(Truth())).pairs[0].find(132, 1), "whatever else is in the run"
    assert fit(samples, seed=1).pairs[0].burst_gap[0].t0_cycles.value == model.pairs[0].burst_gap[0].t0_cycles.value


def test_the_three_numbers_and_what_follows_from_them():
    truth = Truth(process_spread=0.001, repetition_spread=0.001, spike_probability=0.0)
    entry = fit(made(truth)).pairs[0].burst_gap[0]
    t0 = truth.base_cycles + truth.cycles_per_store * 64
    volume = 132 * 32768
    assert (entry.bytes, entry.t0_bytes) == (32768, 32 * 512), "T0 at the largest size below the knee, 38.9 warp-stores"
    numbers = (entry.t0_cycles, entry.drain_gb_per_s, entry.capacity_bytes, entry.capacity_bytes_per_producer)
    assert [number.value for number in numbers] == pytest.approx([t0 - 19.7 * 32, 372, truth.capacity_bytes, 18_700], rel=0.005)
    assert entry.recovery_gap_cycles.value == pytest.approx(volume / 372 * CLOCK / 1e3 - t0, rel=0.01)
    assert entry.peak_backlog_bytes.value == pytest.approx(volume - 372 * t0 * 1e3 / CLOCK, rel=0.01)
    assert entry.knee_bytes.value == pytest.approx((18_700 + 372 * 75e3 / CLOCK / 132) / (1 - 372 * 19.7e3 / CLOCK / 132 / 512), rel=0.01)
    assert (entry.sizes, entry.processes, entry.repetitions) == (20, 3, 21)


def test_a_sweep_that_never_saturates_has_no_capacity():
    never = Truth(producers=8, capacity_bytes=1e12)
    entry = fit(made(never)).pairs[0].burst_gap[0]
    assert entry.t0_cycles.status == "ok"
    for name in ("capacity_bytes", "capacity_bytes_per_producer", "knee_bytes", "drain_gb_per_s", "peak_backlog_bytes"):
        number = getattr(entry, name)
        assert (number.status, "never saturates" in number.reason) == ("not_identified", True), name


def test_r_of_other_warps_stands_in_unless_it_is_contradicted():
    # One warp never stalls at 8 SMs. R of 8 SMs with 4 warps may stand in when it is no slower than what one warp was seen to issue.
    slow = Truth(producers=8, capacity_bytes=1e12, cycles_per_store=30.0)
    four = Truth(producers=8, warps=4, cycles_per_store=27.0, drain_gb_per_s=320.0, capacity_bytes=8 * 20_000.0)
    entry = fit(made(slow, four)).pairs[0].find(8, 1)
    assert entry.drain_gb_per_s.value == pytest.approx(320, rel=0.02)
    assert "of all warps" in entry.drain_gb_per_s.reason
    fast = Truth(producers=8, capacity_bytes=1e12, cycles_per_store=19.7)
    entry = fit(made(fast, four)).pairs[0].find(8, 1)
    assert entry.drain_gb_per_s.status == "not_identified"
    assert "without a stall" in entry.drain_gb_per_s.reason


def test_the_local_control_is_a_pair_of_its_own():
    local = made(Truth(drain_gb_per_s=4000.0)).assign(probe="local", destination=0)
    model = fit(pd.concat([made(Truth()), local], ignore_index=True))
    assert [p.pair for p in model.pairs] == ["0>0", "0>1"]
    assert model.pairs[0].burst_gap[0].drain_gb_per_s.value == pytest.approx(4000, rel=0.05)
    assert model.pairs[1] == fit(made(Truth())).pairs[0]


def test_periodic_bursts_give_r_at_gap_zero_the_plateau_and_the_recipe():
    truth = Truth(process_spread=0.001, repetition_spread=0.001, spike_probability=0.0)
    rows = periodic(truth, (8, 16, 32, 64), (0, 2000, 64_000))
    pair = fit(pd.concat([made(truth), rows], ignore_index=True)).pairs[0]
    assert pair.drain[0].zero_gap.value == pytest.approx(372, rel=0.005)
    assert [(p.bytes, p.gap_cycles) for p in pair.plateaus] == [(n * 512, 64_000) for n in (8, 16, 32, 64)]
    assert pair.plateaus[0].issue_cycles.value == pytest.approx(75 + 19.7 * 8, rel=0.005)
    recipe = pair.burst_gap[0].recipe
    assert recipe.bytes == 32 * 512
    assert recipe.t0_cycles.value == pytest.approx(75 + 19.7 * 32, rel=0.005)
    assert recipe.capacity_bytes.value == pytest.approx(truth.capacity_bytes, rel=0.01)
    assert pair.calibrated_range.gap_cycles == (0, 64_000)


def test_a_gap_shorter_than_the_drain_is_no_plateau():
    truth = Truth()
    pair = fit(pd.concat([made(truth), periodic(truth, (64,), (0, 2000))], ignore_index=True)).pairs[0]
    assert pair.plateaus[0].issue_cycles.status == "not_identified"
    assert "shorter than V/R" in pair.plateaus[0].issue_cycles.reason


def test_sustained_bursts_give_r_of_sm_counts_that_have_no_sweep():
    truth = Truth(producers=4, warps=4, drain_gb_per_s=190.0, capacity_bytes=1.0, repetition_spread=0.001, process_spread=0.001)
    sustained = make_samples(truth, np.random.default_rng(0), stores=(1024,)).assign(probe="sustained", schedule="5" * 16)
    pair = fit(pd.concat([made(Truth()), sustained], ignore_index=True)).pairs[0]
    assert [d.producers for d in pair.drain] == [4, 132]
    assert pair.drain[0].sustained.value == pytest.approx(190, rel=0.01)
    assert pair.drain[0].makespan.status == "not_identified"
    assert pair.drain[1].makespan.value == pytest.approx(372, rel=0.03)


def test_empty_bursts_measure_the_instrument():
    empty = make_samples(Truth(), np.random.default_rng(0), stores=(1,)).assign(
        probe="timer", bytes=0, issue_mean_cycles=9.0, drain_mean_cycles=640.0, schedule="6" * 16
    )
    empty["makespan_ns"] = np.arange(len(empty)) % 5 * 32.0 + 64
    samples = pd.concat([made(Truth()), empty], ignore_index=True)
    model = fit(samples)
    timer = model.timer
    assert [x.value for x in (timer.clock_read_cycles, timer.empty_fence_cycles, timer.globaltimer_tick_ns)] == [9, 640, 32]
    assert model.pairs == fit(made(Truth())).pairs
    assert fit(made(Truth())).timer is None


def test_bad_calls():
    samples = made(Truth())
    with pytest.raises(UsageError, match="sm_clock_mhz"):
        calibrate(samples, backend="x", gpu="y", sm_clock_mhz=0)
    with pytest.raises(UsageError, match="resamples"):
        fit(samples, resamples=3)
    with pytest.raises(DataError, match="issue_max_cycles"):
        fit(samples.drop(columns="issue_max_cycles"))
    with pytest.raises(DataError, match="no sample"):
        fit(samples.iloc[:0])


def test_a_few_sizes_are_enough_for_a_line_and_one_is_not():
    samples = made(Truth())
    line = fit(samples[samples["bytes"] <= 4 * 512]).pairs[0].burst_gap[0]
    assert line.t0_cycles.status == "ok"
    assert line.capacity_bytes.status == "not_identified"
    point = fit(samples[samples["bytes"] == 512]).pairs[0].burst_gap[0]
    assert point.t0_cycles.status == "not_identified"
    assert "fewer than 2" in point.t0_cycles.reason
