"""Comparison: what is called same, better, worse; what is refused; and that a node compared with itself raises no alarm."""

from __future__ import annotations

import dataclasses
import runpy
from typing import Any

import numpy as np
import pytest

from xstage_bench.errors import DataError
from xstage_bench.io.assets import asset_dir
from xstage_bench.judge import compare as comparison
from xstage_bench.judge.compare import FALSE_ALARMS, PARAMETERS, Side, change_of, compare, refuse
from xstage_bench.model.document import BurstGap, Model, PairModel
from xstage_bench.model.entry import missing_entry
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.resample import Resampled, estimate
from xstage_bench.record.manifest import Manifest
from xstage_bench.schedule.device import Gpu, Node

VALUES = {"t0_cycles": 670.0, "drain_gb_per_s": 370.0, "capacity_bytes": 2.4e6}


def entry(factor: float = 1.0, error: float = 0.001, processes: int = 3, **own: Any) -> BurstGap:
    numbers = {n: Estimate(value=v * factor, standard_error=v * error, low=v * 0.9, high=v * 1.1) for n, v in VALUES.items()}
    none = missing_entry(132, 4, "st.v4", "no valid samples")
    return dataclasses.replace(none, **{"processes": processes, **numbers, **own})


def model(*entries: BurstGap, pairs: tuple[str, ...] = ("0>1",), **change: Any) -> Model:
    made = [PairModel(pair=p, flavour="st.v4", layout="contiguous", burst_gap=list(entries)) for p in pairs]
    return dataclasses.replace(Model(schema_version=1, backend="cuda", gpu="H", sm_clock_mhz=1980.0, pairs=made), **change)


def side(*entries: BurstGap, manifest: Manifest | None = None, **change: Any) -> Side:
    return Side("x", model(*entries, **change), manifest)


def manifest(name: str = "H", sms: int = 132, **change: Any) -> Manifest:
    gpus = tuple(Gpu(i, name, tuple(range(sms)), 1980.0, f"GPU-{i}") for i in range(2))
    return Manifest(backend="cuda", simulated=False, node=Node(gpus, ((0, 1), (1, 0)), 32.0), **change)


def verdicts(a: Side, b: Side) -> dict[str, str]:
    return {d.parameter: d.verdict for d in compare(a, b).differences}


@pytest.mark.parametrize(
    ("factor", "error", "t0", "rate"),
    [
        (1.0, 0.001, "same", "same"),
        (1.01, 0.001, "same", "same"),
        (1.2, 0.001, "worse", "better"),
        (0.8, 0.001, "better", "worse"),
        (0.95, 0.05, "undetermined", "undetermined"),
    ],
)
def test_more_time_is_worse_and_more_rate_is_better(factor: float, error: float, t0: str, rate: str) -> None:
    found = verdicts(side(entry()), side(entry(factor, error)))
    assert found == {"t0_cycles": t0, "drain_gb_per_s": rate, "capacity_bytes": rate}


def test_the_verdict_is_the_worst() -> None:
    slow = dataclasses.replace(entry(1.2), drain_gb_per_s=entry(0.8).drain_gb_per_s)
    assert compare(side(entry()), side(slow)).verdict == "worse"
    assert compare(side(entry()), side(entry(1.0, 0.05))).verdict == "undetermined"
    assert compare(side(entry()), side(entry())).verdict == "same"
    assert compare(side(), side()).verdict == "undetermined", "nothing was compared"


@pytest.mark.parametrize(
    "own",
    [
        {"processes": 2},
        {"drain_gb_per_s": Estimate.missing("the sweep never saturates")},
        {"drain_gb_per_s": dataclasses.replace(entry().drain_gb_per_s, status="at_bound")},
        {"drain_gb_per_s": dataclasses.replace(entry().drain_gb_per_s, standard_error=None)},
    ],
)
def test_without_an_interval_nothing_is_claimed(own: dict[str, Any]) -> None:
    for a, b in ((entry(), entry(0.5, **own)), (entry(0.5, **own), entry())):
        (found,) = (d for d in compare(side(a), side(b)).differences if d.parameter == "drain_gb_per_s")
        assert found.verdict == "undetermined"
        assert found.reason


@pytest.mark.parametrize(
    ("old", "new", "undetermined"),
    [
        ({"t0_bytes": 16384}, {"t0_bytes": 8192}, {"t0_cycles"}),  # the sweeps put T0 at different sizes
        ({}, {"t0_bytes": 16384}, {"t0_cycles", "capacity_bytes"}),  # a file of an earlier version, with other rules
        ({"t0_bytes": 16384}, {"t0_bytes": 16384}, set()),
    ],
)
def test_sweeps_that_differ_are_no_difference(old: dict[str, Any], new: dict[str, Any], undetermined: set[str]) -> None:
    found = compare(side(entry(**old)), side(entry(1.2, **new))).differences
    assert {d.parameter for d in found if d.verdict == "undetermined"} == undetermined
    assert all(d.reason for d in found if d.verdict == "undetermined")


def test_what_the_choice_of_sizes_adds_counts_only_where_the_sizes_differ() -> None:
    q = dataclasses.replace(entry().capacity_bytes, value=0.9 * VALUES["capacity_bytes"], choice_error=0.1 * VALUES["capacity_bytes"])
    few, many = entry(capacity_bytes=q, sizes=14), entry(sizes=27)
    assert verdicts(side(many), side(few))["capacity_bytes"] == "undetermined"
    assert verdicts(side(many), side(dataclasses.replace(few, sizes=27)))["capacity_bytes"] == "worse"


def test_a_quick_and_a_full_run_of_one_simulated_node_are_the_same() -> None:
    bench = runpy.run_path(str(asset_dir("cuda").parent / "tests" / "claims" / "truth_recovery.py"), run_name="truth_recovery")
    full, quick = (Side("x", bench["fitted"](bench["runs_of"]("h200-nv18-x2", q)(5), 5), None) for q in (False, True))
    assert {d.verdict for d in compare(full, quick).differences} == {"same"}


def test_entries_of_the_same_shape_are_compared() -> None:
    other = dataclasses.replace(entry(0.5), producers=64)
    assert {(d.producers, d.warps, d.verdict) for d in compare(side(entry(), other), side(other)).differences} == {(64, 4, "same")}
    assert {d.verdict for d in compare(side(entry()), side(other)).differences} == {"undetermined"}
    more = compare(side(entry()), side(entry(), pairs=("0>1", "3>2")))
    assert {(d.pair, d.baseline_pair) for d in more.differences} == {("0>1", "0>1"), ("3>2", "0>1")}, "with the reference's first"


def test_a_pair_that_was_lost_is_a_regression_and_one_not_asked_for_is_not() -> None:
    before = side(entry(), pairs=("0>1", "1>0"))
    lost = side(entry(), manifest=manifest(failed_pairs={"1>0": "stores are lost"}))
    assert {d.pair: d.verdict for d in compare(before, lost).differences} == {"0>1": "same", "1>0": "worse"}
    assert compare(before, side(entry(), manifest=manifest())).verdict == "same"


@pytest.mark.parametrize(
    ("other", "across"),
    [
        (side(entry(), backend="sim:h200-nv18-x2"), "backend"),
        (side(entry(), backend="cuda (simulated)"), "backend"),
        (side(entry(), gpu="B"), "gpu"),
        (side(entry(), schema_version=2), "schema"),
        (side(entry(), manifest=manifest("H20")), "gpu"),
        (side(entry(), manifest=manifest(sms=78)), "gpu"),
    ],
)
def test_unlike_things_are_refused_unless_told(other: Side, across: str) -> None:
    mine = side(entry(), manifest=manifest() if other.manifest else None)
    refuse(mine, mine, ())
    with pytest.raises(DataError, match=across) as error:
        refuse(mine, other, [a for a in comparison.ACROSS if a != across])
    assert f"--across {across}" in (error.value.hint or "")
    refuse(mine, other, [across])


def test_intervals_hold_together_at_the_promised_level() -> None:
    """1 000 A/A comparisons of six parameters, from three processes that differ: at most 1 % alarms by the rule's own arithmetic."""
    trials, cells, spread = 1_000, 6, 0.004
    draws = np.exp(spread * np.random.default_rng(5).standard_normal((trials, cells, 2, 3)))

    def end(processes: np.ndarray) -> BurstGap:
        number = Resampled(float(processes.mean()), np.array([processes.mean()] * 2), processes, 7)
        return entry(drain_gb_per_s=estimate(number, statistic="x"))

    def alarm(before: np.ndarray, after: np.ndarray) -> bool:
        _, low, high = change_of(end(before), end(after), PARAMETERS[1], cells, 0.0)
        return low > 0 or high < 0

    alarms = sum(any(alarm(*cell) for cell in trial) for trial in draws)
    assert alarms / trials <= FALSE_ALARMS + 3 * np.sqrt(FALSE_ALARMS / trials)


def test_another_die_is_given_more_room_than_another_run() -> None:
    def width(b: Manifest) -> float:
        done = compare(side(entry(), manifest=manifest()), side(entry(), manifest=b))
        return next(d.high - d.low for d in done.differences if d.parameter == "drain_gb_per_s")

    other = manifest()
    gpus = tuple(dataclasses.replace(g, uuid="GPU-other") for g in other.node.gpus)
    assert width(dataclasses.replace(other, node=dataclasses.replace(other.node, gpus=gpus))) > 1.3 * width(manifest())


def test_a_simulated_node_compared_with_itself_and_with_a_slow_link() -> None:
    """A small version of tests/claims/compare_false_alarms.py, which counts 1 000 pairs."""
    bench = runpy.run_path(str(asset_dir("cuda").parent / "tests" / "claims" / "compare_false_alarms.py"))
    runs = [bench["one_run"](seed) for seed in range(1, 9)]
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    assert bench["count"](pairs)[0] == 0
    slow = bench["one_run"](99, 0.85)
    assert bench["count"]([(run, slow) for run in runs])[1] == len(runs)
