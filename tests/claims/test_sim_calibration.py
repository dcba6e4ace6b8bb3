"""The H200 preset against recorded H200 data: the bar of docs/simulator.md, on a systematic thinning of the recording."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from calibrate_simulator import schedule_of

from xstage_bench.device.sim import SimDevice
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

KEYS = ["mode", "target", "sms", "warps", "stores", "gap_cycles", "period_ns"]
REPETITIONS = 3


@pytest.fixture(scope="module")
def compared() -> pd.DataFrame:
    """Recorded rows with `simulated` (median over repetitions of the mean over producers) and `error` beside them."""
    data = pd.read_csv(asset_dir("results") / "reference" / "h200-clean" / "clean-thinned.csv.gz")
    data = data[data["mode"].isin(["isolated", "timed"])].copy()
    groups = list(data.groupby(KEYS, sort=False))
    schedules = [schedule_of(*key, bursts=len(rows)) for key, rows in groups]
    asked = [Execution(s, r) for s in schedules for r in range(REPETITIONS)]
    means = {d: iter(SimDevice(seed=11).measure([e for e in asked if e.schedule.destination == d])) for d in (0, 1)}
    data["simulated"] = np.nan
    for (_, rows), s in zip(groups, schedules, strict=True):
        issue = [next(means[s.destination]).issue_cycles.mean(axis=1) for _ in range(REPETITIONS)]
        data.loc[rows.index, "simulated"] = np.median(issue, axis=0)[rows["burst"].to_numpy()]
    data["error"] = np.abs(data["simulated"] / data["issue_mean"] - 1)
    return data


def test_the_copy_is_representative(compared: pd.DataFrame) -> None:
    isolated, timed = compared[compared["mode"] == "isolated"], compared[compared["mode"] == "timed"]
    assert len(isolated) == 3512
    assert set(timed["sms"]) == {8, 16, 32, 64, 132}
    assert set(timed["warps"]) == {1, 4}
    assert timed.groupby(KEYS).size().eq(32).all()
    # More than a third of the timed schedules stall somewhere: the bar is not met by idle ones alone.
    slowdown = timed.groupby(KEYS)["issue_mean"].agg(lambda x: x.max() / x.iloc[0])
    assert (slowdown > 1.5).mean() > 0.3


def test_the_bars_are_met(compared: pd.DataFrame) -> None:
    """Isolated bursts to both destinations, also for every number of producers, and timed ones."""
    isolated = compared[compared["mode"] == "isolated"]
    remote = isolated[isolated["target"] == "remote"]
    parts = [(target, some, 0.03, 0.10) for target, some in isolated.groupby("target")]
    parts += [(f"{sms} SMs", some, 0.10, 0.25) for sms, some in remote.groupby("sms")]
    for name, some, median, p95 in [*parts, ("timed", compared[compared["mode"] == "timed"], 0.10, 0.25)]:
        assert some["error"].median() <= median, name
        assert some["error"].quantile(0.95) <= p95, name


def test_stall_or_no_stall_is_right_on_timed_schedules(compared: pd.DataFrame) -> None:
    timed = compared[compared["mode"] == "timed"]
    worst = timed.groupby(KEYS)[["issue_mean", "simulated"]].max()
    free = timed[timed["burst"] == 0].groupby(KEYS)["issue_mean"].first()
    recorded, simulated = worst["issue_mean"] > 1.3 * free, worst["simulated"] > 1.3 * free
    assert 0.5 * ((recorded & simulated).sum() / recorded.sum() + (~recorded & ~simulated).sum() / (~recorded).sum()) >= 0.95


def test_the_slowest_producer_is_about_as_slow_as_recorded(compared: pd.DataFrame) -> None:
    # The tree is what makes producers unequal: an equal share would put the slowest at the mean, 8 to 35 % below the recorded one.
    rows = compared[(compared["mode"] == "isolated") & (compared["target"] == "remote") & (compared["stores"] * compared["warps"] >= 400)]
    few = rows[rows["sms"].isin([16, 32, 64, 132])].drop_duplicates(["sms", "warps"])
    asked = [schedule_of(*row, bursts=1) for row in few[KEYS].itertuples(index=False, name=None)]
    slowest = np.array([t.issue_cycles.max() for t in SimDevice().measure([Execution(s) for s in asked])])
    error = np.abs(slowest / few["issue_max"].to_numpy() - 1)
    assert np.median(error) <= 0.08
    assert (few["issue_max"] / few["issue_mean"]).min() > 1.05


def test_the_sms_recorded_as_fast_are_fast() -> None:
    # All 132 SMs, 256 warp-stores from each of 4 warps: smids 32-43 and 78-87 took 220-290 thousand cycles, most others 335-365.
    end = next(SimDevice().measure([Execution(Schedule((Burst(256 * 4 * 512),), 132, 4))])).issue_cycles[0]
    fast = np.zeros(132, dtype=bool)
    fast[32:44] = fast[78:88] = True
    assert 215e3 <= np.median(end[fast]) <= 295e3
    assert 325e3 <= np.median(end[~fast]) <= 370e3
    # Not all of them: nine or more of the eleven pairs (docs/simulator.md).
    assert np.quantile(end[fast], 0.8) < np.quantile(end[~fast], 0.3)
