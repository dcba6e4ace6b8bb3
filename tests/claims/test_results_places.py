"""What the recorded measurements of places and processes must show (2 x H200)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda.footprint import issue_times, rates
from xstage_bench.measure.compare_memories import compare
from xstage_bench.record.reader import load_run, schedules_of

ROOT = Path(__file__).parents[2] / "results" / "h200-x2"


def folder(name: str) -> Path:
    found = sorted(ROOT.glob(f"*-{name}"))
    if not found:
        pytest.skip("results/h200-x2 is not in this tree (an sdist leaves the large runs out)")
    return found[-1]


def unzipped(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def test_memory_of_another_process_is_worth_the_same_within_3_percent() -> None:
    documents = [unzipped(p) for p in sorted(folder("processes").glob("*.json.gz"))]
    assert sorted({d["memory"] for d in documents}) == ["ipc", "nvshmem", "plain"]
    result = compare(documents)
    assert {r["processes"] for r in result["rows"]} == {3}
    assert len([r for r in result["rows"] if r["memory"] != "plain"]) == 2 * 2 * 2, "two memories, both directions, 1 and 4 warps"
    assert result["largest_deviation"] < 0.03
    assert all(r["drain_gb_per_s"]["value"] == pytest.approx(365, rel=0.03) for r in result["rows"])


@pytest.mark.parametrize("direction", ["01", "10"])
def test_no_footprint_up_to_8_gib_costs_issue_time_or_drain_rate(direction: str) -> None:
    recorded = unzipped(folder("footprint") / f"footprint{direction}.json.gz")
    rows = [r for r in recorded["rows"] if r["producers"] == 132 and r["destination"] == int(direction[1])]
    rate = {(r["run_slots"], r["footprint_bytes"] >> 20): r["gb_per_s"] for r in rates(rows, 1980.0)}
    wide = [v for (_, mib), v in rate.items() if mib >= 4]
    assert max(mib for _, mib in rate) == 8192
    assert max(wide) / min(wide) < 1.03
    assert rate[1, 1] < 0.97 * np.mean(wide), "one page under all SMs is slower, by the memory behind it"
    times = [t["cycles"] for t in issue_times(rows, 8)]
    assert max(times) / min(times) < 1.01


def test_links_sleep_after_50_ms_and_take_a_tenth_of_a_millisecond_to_wake() -> None:
    run = load_run(folder("link-sleep"))
    samples = run.samples()
    of = schedules_of(samples)
    last = samples[(samples["probe"] == "sleep") & (samples["status"] == "ok") & (samples["burst"] == samples["bursts"] - 1)]
    drain_us: dict[tuple[int, int, int, int], float] = {}
    issue: dict[tuple[int, int, int, int], float] = {}
    for key, rows in last.groupby("schedule"):
        s = of[str(key)]
        if len(s.bursts) == 3:
            what = (s.destination, s.producer_count, s.bursts[-1].bytes // 512, round(s.bursts[-1].gap_cycles / 1.98e6))
            drain_us[what] = float(rows["drain_mean_cycles"].median()) / 1980
            issue[what] = float(rows["issue_mean_cycles"].median())
    awake = [v for (d, k, n, ms), v in drain_us.items() if d == 1 and n == 1 and ms < 50]
    asleep = {k: v for (d, k, n, ms), v in drain_us.items() if d == 1 and n == 1 and ms >= 55}
    assert max(awake) < 5
    assert 100 < asleep[1] < 120 < asleep[132] < 180
    assert drain_us[0, 1, 1, 100] < 2, "the LOCAL control does not sleep"
    assert issue[1, 1, 1, 100] == issue[1, 1, 1, 10], "issue does not notice"
    assert issue[1, 132, 128, 100] > 5 * 33_000, "a burst beyond the capacity waits for the links"


def test_the_choice_of_sms_is_worth_up_to_a_factor_of_two() -> None:
    run = load_run(folder("placement"))
    rows = run.samples()
    rows = rows[(rows["probe"] == "choice") & (rows["status"] == "ok") & (rows["kind"] == "measure")]
    assert run.manifest.failed_pairs == {}
    for source in (0, 1):
        part = rows[(rows["source"] == source) & (rows["producers"] == 32) & (rows["bytes"] == 32768)]
        issue = part.groupby("producer_set")["issue_mean_cycles"].median()
        assert issue.max() / issue.min() > 1.8
        assert issue.idxmin() == "smid:" + ",".join(map(str, range(32))), "the lowest smids: two from each of 16 units"
        long = rows[(rows["source"] == source) & (rows["producers"] == 6) & (rows["bytes"] == 524288)]
        one_unit, six_units = sorted(long.groupby("producer_set")["issue_max_cycles"].median())[-1], long["issue_max_cycles"].min()
        assert one_unit > 1.25 * six_units, "a unit has a limit of its own"
