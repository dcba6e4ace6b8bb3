"""The recorded survey of 2 x H200 says what results/h200-x2/visibility says that it says."""

from __future__ import annotations

from typing import Any

import pytest

from xstage_bench.io.assets import asset_dir
from xstage_bench.io.json_file import read_json

PAIRS = ("0>1", "1>0")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    path = asset_dir("results") / "h200-x2" / "2026-11-29-visibility" / "visibility.json.gz"
    if not path.exists():
        pytest.skip("this installation comes without the recorded runs of 2 x H200")
    return read_json(path, dict[str, Any])


def rows(document: dict[str, Any], part: str, pair: str, **where: Any) -> list[dict[str, Any]]:
    """Rows of all three processes; a missing one fails."""
    found = [r for r in document["rows"] if r["part"] == part and r["pair"] == pair and all(r[k] == v for k, v in where.items())]
    assert sorted({r["process"] for r in found}) == [0, 1, 2], (part, pair, where)
    return found


def test_it_names_what_was_measured(document: dict[str, Any]) -> None:
    assert [g["name"] for g in document["node"]["gpus"]] == ["NVIDIA H200"] * 2
    assert document["environment_before"]["nvml"]["driver"].startswith("580.")
    assert all(r["wrong_words"] == 0 and r["status"] != "timeout" for r in document["rows"])
    assert all(1970 < r["sm_clock_mhz"] < 1990 for r in document["rows"])


@pytest.mark.parametrize("pair", PAIRS)
def test_one_way_is_six_tenths_of_a_microsecond(document: dict[str, Any], pair: str) -> None:
    for r in rows(document, "flag", pair, method="relaxed", producers=0):
        assert 0.60 < r["round_trip_cycles"]["median"] / r["sm_clock_mhz"] / 2 < 0.67


@pytest.mark.parametrize("pair", PAIRS)
def test_two_megabytes_are_under_way_before_the_first_is_visible(document: dict[str, Any], pair: str) -> None:
    for r in rows(document, "curve", pair, producers=130, warps=1, bytes=16 << 10):
        assert r["issue_mean_ns"]["median"] < 600 < r["first_ns"]["median"]
        assert r["end_bytes"]["median"] == 130 * (16 << 10)
        assert 5_700 < r["tail_ns"]["median"] < 7_500


@pytest.mark.parametrize("pair", PAIRS)
def test_bytes_under_way_confirm_the_capacity(document: dict[str, Any], pair: str) -> None:
    """Plateau less flight time, per SM, is 19 to 23 kB; the knee of issue times gives 18.8."""
    for r in rows(document, "curve", pair, producers=130, warps=1, bytes=256 << 10):
        assert 365 < r["drain_gb_per_s"]["median"] < 380
        held = r["plateau_bytes"]["median"] - r["drain_gb_per_s"]["median"] * r["first_ns"]["median"]
        assert 19e3 < held / 130 < 23e3


@pytest.mark.parametrize("pair", PAIRS)
def test_the_links_counted_every_byte(document: dict[str, Any], pair: str) -> None:
    shares = [c["counted_over_issued"] for c in document["link_counters"] if c["pair"] == pair]
    assert shares == pytest.approx([1.0] * 3, abs=1e-4)
    assert all(c["in_flight_bytes"] is None and c["reason"] for c in document["link_counters"])


@pytest.mark.parametrize("pair", PAIRS)
def test_a_flag_from_an_idle_sm_overtakes_the_backlog_and_a_release_does_not(document: dict[str, Any], pair: str) -> None:
    plain, release = (rows(document, "flag", pair, method=m, producers=130) for m in ("relaxed", "release.sys"))
    assert max(r["round_trip_cycles"]["median"] for r in plain) < 6_000
    assert min(r["issue_cycles"]["median"] for r in release) > 11_000


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("method", ["release.gpu", "release.sys"])
def test_lag_is_paid_back_cycle_by_cycle(document: dict[str, Any], pair: str, method: str) -> None:
    for r in rows(document, "lag", pair, method=method, bytes=64 << 10):
        cost = dict(zip(r["lag_cycles"], (s["median"] for s in r["publish_cycles"]), strict=True))
        assert cost[0] - cost[8_000] == pytest.approx(8_000, rel=0.15)
        assert cost[30_000] < 0.25 * cost[0]


@pytest.mark.parametrize("pair", PAIRS)
def test_lines_of_128_bytes_arrive_whole_and_the_controls_do_not(document: dict[str, Any], pair: str) -> None:
    def torn(**where: Any) -> int:
        return sum(int(r["torn_words"]) for r in rows(document, "torn", pair, **where))

    assert torn(format="ll128", misaligned_bytes=0) == torn(format="ll") == 0
    assert torn(format="ll128", misaligned_bytes=64) > 1_000_000
    assert torn(format="ll512") > 1_000_000
    assert sum(r["torn_words"] for r in rows(document, "message", pair, method="release.sys")) == 0
    assert sum(r["torn_words"] for r in rows(document, "message", pair, method="release.gpu")) > 0, "the scope does not reach the peer"


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("payload", [480, 7_680, 30_720])
def test_ll128_is_the_fastest_way_to_publish(document: dict[str, Any], pair: str, payload: int) -> None:
    for process in range(3):
        for loud in (0, 130):
            took = {
                r["format"] + r["method"]: r["round_trip_cycles"]["median"]
                for r in rows(document, "message", pair, payload_bytes=payload, producers=loud)
                if r["process"] == process and r["method"] != "release.gpu"
            }
            assert min(took, key=lambda name: took[name]) == "ll128relaxed"


@pytest.mark.parametrize("pair", PAIRS)
def test_domains_change_nothing(document: dict[str, Any], pair: str) -> None:
    def fence(domains: str) -> list[float]:
        return [r["issue_cycles"]["median"] for r in rows(document, "domain", pair, method="release.sys", domains=domains, beside=False)]

    same = fence("same")
    for domains in ("prober", "prober.mapped", "producers"):
        assert sum(fence(domains)) == pytest.approx(sum(same), rel=0.05)
