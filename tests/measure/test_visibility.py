"""What is watched, packing and unpacking, and the reduction against a known truth."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda import visibility
from xstage_bench.errors import DeviceLostError, UsageError
from xstage_bench.measure import visibility_numbers
from xstage_bench.measure.visibility import measure_visibility, sum_tx_kib, watches
from xstage_bench.measure.visibility_numbers import behind_backlog, chosen, curve_of, spread
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.schedule.watches import FORMATS, RESERVED_SMS, WARMUP, Sighting, Watch

SMIDS = tuple(range(0, 40, 2))
MHZ = 1980.0


def burst(k: int, size: int, warps: int = 1, destination: int = 1) -> Schedule:
    return Schedule((Burst(size),), k, warps, 0, destination)


def written(watch: Watch, rate: float, latency_ns: float, capacity: float, free_ns: float = 15.0) -> dict[str, np.ndarray[Any, Any]]:
    """What the kernels would write on a link that drains at `rate` bytes/ns, behind a stage that holds `capacity` bytes.

    A byte is issued at the free rate until the stage is full; the n-th byte leaves at n/rate and is visible `latency_ns` later; the answer
    takes `latency_ns` back.
    """
    out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in visibility.result_shapes(watch).items()}
    s = watch.schedule
    k, w, n = s.producer_count, s.warps, watch.stores_per_warp
    unit = s.warp_store_bytes
    total = np.arange(1, n + 1) * unit * k * w  # all streams in step: bytes of everybody after i warp-stores of each
    issued = np.maximum(np.arange(1, n + 1) * free_ns, (total - capacity) / rate)
    visible = np.maximum(issued, total / rate) + latency_ns
    end = float(issued[-1]) if n else 0.0
    out["issue_stamps"]["now_ns"] = int(end) + 500
    out["issue_stamps"]["start_before"] = round((int(end) + 500) * MHZ / 1e3)
    out["issue_stamps"]["issue"] = round(end * MHZ / 1e3)
    groups = n // 4
    if watch.mode == "curve":
        out["progress"][:, :, : w * groups] = np.tile(np.rint(issued[3::4] * MHZ / 1e3), w).astype(np.uint32)
        out["curve"][...] = np.rint(visible[watch.stride - 1 :: watch.stride] + latency_ns).astype(np.uint32)
    out["ping_stamps"]["at_ns"] = 0xFFFFFFFF
    out["ping_stamps"]["round"][:, : watch.idle_pings] = round(2 * latency_ns * MHZ / 1e3)
    box = out["source_box"]
    box[:32].view("<u8")[:] = (0, round(10_000 * MHZ), 0, 10_000_000)
    box[visibility.PROBER_AT : visibility.PROBER_AT + 4].view("<u4")[:] = SMIDS[-2]
    return out


def test_the_plan_says_who_stores_and_which_sms_stay_free() -> None:
    watch = Watch(burst(8, 16 << 10, 2), "curve", "release.sys", stride=8, repetitions=5, lag_cycles=(1, 2), ping_delay_ns=(7,))
    packed = visibility.pack(watch, SMIDS, 3)
    plan = packed["plan"][0]
    assert [int(plan[n]) for n in ("producers", "warps", "stores", "stride", "streams", "method", "mode")] == [8, 2, 16, 8, 16, 2, 0]
    table = packed["producer_of"]
    assert table[list(SMIDS[-2:])].tolist() == [-2, -2]
    assert sorted(table[table >= 0]) == list(range(8))
    assert set(table[1::2]) == {-1}, "smids that this GPU does not have"
    assert packed["delays"]["lag_cycles"].tolist() == [1, 2, 1, 2, 1]
    assert packed["delays"]["ping_ns"].tolist() == [7] * 5
    for destination, reserved in ((1, 0), (0, 1)):  # a prober that joins a producer needs no SM of its own; the responder does
        beside = visibility.pack(Watch(burst(8, 0, 1, destination), "ping", beside=True), SMIDS, 0)
        assert (beside["producer_of"] == -2).sum() == reserved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": burst(1, 512)}, "whole groups of 4"),
        ({"schedule": Schedule((Burst(2048),) * 2, 1)}, "one isolated"),
        ({"schedule": burst(1, 4 << 20)}, "bytes at most"),
        ({"mode": "curve", "stride": 3}, "stride 3"),
        ({"mode": "curve", "schedule": burst(100, 16 * 2048, 16)}, "1600 warps"),
        ({"method": "hope"}, "unknown mode"),
        ({"mode": "message", "beside": True}, "beside"),
        ({"repetitions": 0}, "repetitions"),
        ({"misaligned_bytes": 8}, "offset"),
        ({"payload_bytes": 1 << 20}, "at most 61440"),
        ({"lag_cycles": (-1,)}, "0 or more"),
    ],
)
def test_what_cannot_be_watched_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Watch(**{"schedule": burst(1, 2048), **change})


def test_more_producers_than_are_left_are_refused_before_launch() -> None:
    visibility.pack(Watch(burst(len(SMIDS) - RESERVED_SMS, 2048)), SMIDS, 0)
    with pytest.raises(UsageError, match="19 producers"):
        visibility.pack(Watch(burst(19, 2048)), SMIDS, 0)
    with pytest.raises(UsageError, match="needs more than 2"):
        visibility.pack(Watch(burst(1, 2048)), SMIDS[:2], 0)


@pytest.mark.parametrize(("rate", "latency", "capacity"), [(370.0, 600.0, 600_000.0), (48.0, 900.0, 200_000.0)])
def test_the_curve_finds_rate_latency_and_bytes_under_way(rate: float, latency: float, capacity: float) -> None:
    watch = Watch(burst(16, 256 << 10), "curve", stride=4, pings=0, repetitions=4)
    sighting = visibility.unpack(watch, np.array(SMIDS[:16]), written(watch, rate, latency, capacity))
    curve = curve_of(sighting)
    step = 16 * 4 * 512  # all streams store in step, so the curves are stairs of this height
    assert curve.echo_ns == pytest.approx(latency, rel=0.01)
    assert curve.drain_gb_per_s.median == pytest.approx(rate, rel=0.02)
    assert curve.plateau_bytes.median == pytest.approx(capacity + rate * latency, abs=1.5 * step)
    assert curve.end_bytes.median == pytest.approx(capacity + rate * latency, abs=1.5 * step)
    assert curve.tail_ns.median == pytest.approx(latency + capacity / rate, rel=0.05)
    assert (np.diff(curve.visible_bytes) >= 0).all()
    assert curve.issued_bytes[-1] == 16 * (256 << 10)


def test_the_first_repetition_enters_no_number_and_a_burst_that_fits_is_under_way_as_a_whole() -> None:
    watch = Watch(burst(16, 8 << 10), "curve", stride=4, pings=0, repetitions=4)
    raw, smids = written(watch, 370.0, 600.0, 1e9), np.array(SMIDS[:16])
    calm = curve_of(visibility.unpack(watch, smids, raw))
    assert calm.peak_bytes.median == calm.end_bytes.median == 16 * (8 << 10)
    raw["curve"][:WARMUP] += 40_000
    assert curve_of(visibility.unpack(watch, smids, raw)).tail_ns == calm.tail_ns
    assert not behind_backlog(visibility.unpack(watch, smids, raw))[:WARMUP].any()


def test_only_flags_behind_a_full_backlog_count() -> None:
    watch = Watch(burst(16, 1 << 20), "ping", pings=4, idle_pings=4, repetitions=3)
    raw = written(watch, 370.0, 600.0, 600_000.0)
    end = float(raw["issue_stamps"]["issue"][0, 0]) / MHZ * 1e3
    raw["ping_stamps"]["at_ns"][:, 4:] = [5_000, 20_000, int(end) - 1000, int(end) + 1000]
    raw["ping_stamps"]["round"][:, 4:7] = 9000
    sighting = visibility.unpack(watch, np.array(SMIDS[:16]), raw)
    assert np.isnan(sighting.round_trip_cycles[:, 7]).all(), "never sent"
    which = behind_backlog(sighting)
    assert which[1:].astype(int).tolist() == [[0, 0, 0, 0, 0, 1, 1, 0]] * 2
    assert spread(chosen(sighting.round_trip_cycles, which)).n == 4


def test_what_went_wrong_is_in_the_status() -> None:
    watch = Watch(burst(4, 2048), "message", format="flag", repetitions=2)
    smids = np.array(SMIDS[:4])

    def status(w: Watch = watch, **found: int) -> str:
        raw = written(w, 370.0, 600.0, 1e9)
        for name, value in found.items():
            if name == "abort":
                raw["source_box"][visibility.ABORT_AT] = value
            else:
                raw["found"][name] = value
        return visibility.unpack(w, smids, raw).status

    assert status() == "ok"
    assert status(wrong=1) == "corrupt"
    assert status(torn=1) == "corrupt", "the flag was there and the data was not"
    assert status(Watch(burst(4, 2048), "message", format="ll512", repetitions=2), torn=1) == "ok", "counted, and expected there"
    assert status(abort=1) == status(timeouts=1) == "timeout"


def test_a_spread_of_nothing_is_null() -> None:
    nothing = spread([np.array([np.nan]), np.array([])]).as_dict()
    assert nothing == {**dict.fromkeys(("median", "low", "high", "p10", "p90")), "n": 0}
    one = spread([np.array([1.0, 2.0, 3.0])])
    assert (one.median, one.low, one.n) == (2.0, None, 3)


@pytest.mark.parametrize("destination", [1, 0])
def test_everything_in_the_survey_can_be_packed(destination: int) -> None:
    gpu = Gpu(0, "x", tuple(range(132)), MHZ)
    named = list(watches(gpu, 0, destination))
    for _, watch in named:
        packed = visibility.pack(watch, gpu.smids, 1)
        assert packed["plan"]["message_stores"][0] * FORMATS[watch.format] >= watch.payload_bytes
        assert watch.message_stores * 512 + 128 <= 256 * 1024
    parts = {part for part, _ in named}
    assert parts == ({"curve", "flag"} if destination == 0 else {"curve", "flag", "lag", "domain", "message", "torn"})


class Emulated:
    """A device that answers from the model above, and stops after `left` answers."""

    backend = "cuda"

    def __init__(self, left: int = 1 << 30, status: str = "ok") -> None:
        self.left, self.status = left, status

    def node(self) -> Node:
        return Node(tuple(Gpu(i, "x", SMIDS, MHZ) for i in range(2)), ((0, 1),), 32.0)

    def watch(self, watch: Watch) -> Sighting:
        self.left -= 1
        if self.left < 0:
            raise DeviceLostError("pair 0>1: the GPU did not answer")
        packed = visibility.pack(watch, SMIDS, 0)
        found = visibility.unpack(watch, packed["smids"], written(watch, 370.0, 600.0, 600_000.0))
        return found if self.status == "ok" else replace(found, status=self.status)

    def close(self) -> None: ...


def test_the_document_is_strict_json_and_its_tables_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility_numbers, "_REPLICAS", 10)  # of each of 1 500 intervals, whose widths are nothing to this test
    document = measure_visibility(lambda _: Emulated(), None, processes=2)
    assert json.loads(json.dumps(document, allow_nan=False))["rows"]
    assert {row["status"] for row in document["rows"]} == {"ok"}
    assert {c["counted_bytes"] for c in document["link_counters"]} == {None}, "no link counters on this machine: null, with the reason"


def test_what_fails_is_named_and_the_rows_so_far_are_kept() -> None:
    document = measure_visibility(lambda _: Emulated(10), [(0, 1)], processes=2)
    assert document["failed_pairs"] == {"0>1": "pair 0>1: the GPU did not answer"}
    assert len(document["rows"]) == 10
    assert document["link_counters"] == []
    late = measure_visibility(lambda _: Emulated(status="timeout"), [(0, 1)], quick=True)
    assert {r["status"] for r in late["rows"]} == {"timeout"}
    assert "peak_bytes" not in late["rows"][0]
    with pytest.raises(UsageError, match="pair 0>7"):
        measure_visibility(lambda _: Emulated(), [(0, 7)])


def test_the_tool_output_is_summed_over_links() -> None:
    text = "GPU 0: NVIDIA H200\n\t Link 0: Data Tx: 416881 KiB\n\t Link 0: Data Rx: 7 KiB\n\t Link 1: Data Tx: 9 KiB\n"
    assert sum_tx_kib(text) == 416890
    assert sum_tx_kib("Not Supported\n") is None
