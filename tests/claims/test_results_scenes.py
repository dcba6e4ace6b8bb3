"""What results/h200-x2/places and results/h200-x2/company say of 2 x H200 is what was recorded (results/h200-x2/2026-11-29-places)."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "results" / "h200-x2" / "2026-11-29-places"


def rows(name: str) -> dict[str, Any]:
    document = json.loads((FOLDER / f"{name}.json").read_text())
    assert document["simulated"] is False
    assert document["failed"] == {}
    assert all(set(r["left_out"]) <= {"warmup"} for r in document["rows"])
    assert all(r["repetitions"] >= 24 for r in document["rows"])
    return {r["name"]: r for r in document["rows"]}


def pushed(row: dict[str, Any]) -> float:
    return float(row["schedules"][0]["gb_per_s"]["value"])


def pulled(row: dict[str, Any]) -> float:
    return float(row["company"][0]["gb_per_s"]["value"])


def test_each_direction_loses_a_few_percent_to_the_other() -> None:
    found = rows("patterns")
    alone = pushed(found["pair 0>1"])
    for name in ("both directions 0<>1", "all-to-all of 2", "ring of 2"):
        for s in found[name]["schedules"]:
            assert 0.94 < s["gb_per_s"]["value"] / alone < 0.98
        assert found[name]["overlap"] > 0.98
        assert found[name]["start_skew_bound_ns"] <= 720
    for name in ("fan-out of 0", "incast to 0"):
        assert pushed(found[name]) == pytest.approx(alone, rel=0.01)


def test_free_bursts_cost_the_same_in_both_directions() -> None:
    document = json.loads((FOLDER / "directions.json").read_text())
    short = [r for r in document["rows"] if r["schedules"][0]["bytes"] <= 16384]
    issue = {(r["schedules"][0]["bytes"], s["issue_mean_cycles"]["value"]) for r in short for s in r["schedules"]}
    for size in (8192, 16384):
        values = [v for b, v in issue if b == size]
        assert max(values) - min(values) < 1.0


def test_pulls_and_pushes_share_one_egress() -> None:
    found = rows("company")
    for kind in ("pull", "pull.bulk"):
        for sms in (4, 8, 16, 66):
            together = found[f"{kind} by {sms} SMs of 1, same egress"]
            assert pushed(together) + pulled(together) == pytest.approx(373, rel=0.012)
            asked = pulled(found[f"{kind} by {sms} SMs of 1, same egress, alone"])
            assert pulled(together) > 0.84 * min(asked, 190)
            across = found[f"{kind} by {sms} SMs of 0, opposite"]
            if sms <= 16:
                assert pushed(across) > 0.96 * 371
                assert pulled(across) < 0.5 * pulled(found[f"{kind} by {sms} SMs of 0, opposite, alone"])
            else:
                assert 0.84 < pushed(across) / 371 < 0.9


def test_pushes_do_not_notice_local_copies() -> None:
    found = rows("company")
    alone = pushed(found["push alone"])
    for where in ("sender", "receiver"):
        for what in ("HBM", "L2"):
            assert pushed(found[f"copy in {what} of the {where}"]) == pytest.approx(alone, rel=0.01)
    lost = 1 - pulled(found["copy in HBM of the receiver"]) / pulled(found["copy in HBM of the receiver, alone"])
    assert lost == pytest.approx(0.10, abs=0.02)


@pytest.mark.parametrize("gap", [1000, 4000, 8000, 16000])
def test_tensor_work_changes_the_clock_and_not_the_drain(gap: int) -> None:
    found = rows("gap_work")
    idle, busy = (found[f"32 KiB, gap {gap}, {work}"]["schedules"][0] for work in ("idle", "mma"))
    assert busy["gb_per_s"]["value"] == pytest.approx(idle["gb_per_s"]["value"], rel=0.005)
    assert busy["sm_clock_mhz"]["value"] < 0.95 * idle["sm_clock_mhz"]["value"]
    assert busy["gap_work_ops"]["value"] > 0 == idle["gap_work_ops"]["value"]


def test_a_fence_pays_for_pcie_whoever_stored() -> None:
    both = rows("patterns")["host and peer at once"]["schedules"]
    to_host, to_peer = both
    assert (to_host["destination"], to_peer["destination"]) == (-1, 1)
    assert to_host["gb_per_s"]["value"] == pytest.approx(53.7, rel=0.01)
    assert to_peer["gb_per_s"]["value"] == pytest.approx(372.4, rel=0.01)
    alone = rows("company")["push alone"]["schedules"][0]["drain_mean_cycles"]["value"]
    assert to_peer["drain_mean_cycles"]["value"] > 15 * alone


def test_host_memory_holds_megabytes_and_one_sm_nearly_fills_the_bus() -> None:
    model = json.loads((FOLDER / "host" / "model.json").read_text())
    entries = {(e["producers"], e["warps"]): e for p in model["pairs"] if p["pair"] == "0>-1" for e in p["burst_gap"]}
    rate = {k: entries[k, 4]["drain_gb_per_s"]["value"] for k in (1, 8, 32, 132)}
    held = {k: entries[k, 4]["capacity_bytes"]["value"] for k in (1, 8, 32, 132)}
    assert all(50 < r < 53 for r in rate.values())
    assert 7000 < held[1] < 7500
    assert held[8] > 100 * held[1]
    assert 3.9e6 < held[132] < 4.1e6
    assert held[132] < 4 * held[8], "it does not grow with the SMs"
    text = gzip.decompress((FOLDER / "host" / "isolated.csv.gz").read_bytes()).decode()
    table = [r for r in csv.DictReader(io.StringIO(text)) if r["destination"] == "-1" and r["producers"] == "132" and r["warps"] == "4"]
    fence = {int(r["bytes"]): float(r["drain_mean_cycles"]) / 1980 for r in table if r["probe"] == "isolated"}
    assert fence[8192] == pytest.approx(22.8, abs=0.2)
    assert fence[24576] == pytest.approx(64.0, abs=0.2)
