"""One rank's steps against an emulated GPU, and the comparison of memories on data of known truth."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.rendezvous import Channel, PartnerError, Place
from xstage_bench.errors import DataError, PairError, UsageError
from xstage_bench.measure import processes
from xstage_bench.measure.compare_memories import compare

SMS, CLOCK_MHZ = 12, 1980.0
FREE, STALLED, BASE = 9.0, 70.0, 40.0  # cycles per warp-store of a producer
KNEE_WARP_STORES = 40.0  # of a producer


class EmulatedGpu:
    """Executes batches by the law; its window is a cell of a dictionary that both ranks share, as an address stands for memory."""

    def __init__(self, rank: int, memory: dict[int, Any], *, stray: bool = False, uuid: str | None = None) -> None:
        self.rank, self.memory, self.stray = rank, memory, stray
        self.name, self.uuid = "emulated", uuid or f"GPU-{rank}"
        self.smids, self.sm_clock_mhz = list(range(SMS)), CLOCK_MHZ

    def execute(self, batch: layout.Batch, address: int) -> tuple[Any, Any]:
        stamps = np.zeros(batch.stamps, layout.STAMP)
        verdicts = np.zeros(len(batch.items) + 1, layout.VERDICT)
        verdicts["state"] = layout.STATE_DONE
        verdicts["clock"], verdicts["timer_ns"] = np.arange(len(verdicts)) * 198_000, np.arange(len(verdicts)) * 100_000
        for item in batch.items:
            n = float(batch.bursts[item["first_burst"]]["stores"]) * int(item["warps"])
            k = int(item["producers"])
            at = slice(int(item["result"]), int(item["result"]) + k)
            spread = np.linspace(0.98, 1.02, k) if n > KNEE_WARP_STORES else np.ones(k)
            end = (BASE + FREE * n + (STALLED - FREE) * max(0.0, n - KNEE_WARP_STORES)) * spread
            stamps["end"][at] = end
            stamps["end_ns"][at] = end / 1.98
            stamps["drained"][at] = end + 500
            self.memory[address if not self.stray else -1] = int(item["tag"])
        return stamps, verdicts

    def poison(self, address: int) -> None:
        self.memory[address] = "poison"

    def check(self, address: int, burst: dict[str, int]) -> dict[str, int]:
        right = self.memory[address] == burst["tag"]
        return {"mismatches": 0 if right else 3, "offset": 512, "expected": burst["tag"], "found": 0}


class EmulatedWindows:
    def __init__(self, rank: int, size: int) -> None:
        self.own, self.peers = rank, {r: r for r in range(size) if r != rank}
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "watchdog", lambda seconds: None)


def ranks(*gpus: EmulatedGpu, memory: tuple[str, ...] = ("ipc", "ipc"), repetitions: int = 2) -> list[Any]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    out: list[Any] = [None] * len(gpus)

    def one(rank: int) -> None:
        try:
            with Channel(Place(rank, len(gpus), rank, "test", port=port, job="j"), 10) as channel:
                try:
                    windows = EmulatedWindows(rank, len(gpus))
                    run = processes.RankRun(channel, gpus[rank], lambda: windows, memory[rank % 2], repetitions)  # type: ignore[arg-type]
                    out[rank] = run.run()
                    assert windows.closed
                except Exception as error:
                    channel.fail(str(error))
                    raise
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(len(gpus))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    return out


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_stores_to_the_next_and_rank_0_has_all_rows(size: int) -> None:
    memory: dict[int, Any] = {}
    out = ranks(*(EmulatedGpu(r, memory) for r in range(size)))
    document = out[0]
    assert out[1:] == [None] * (size - 1)
    assert list(dict.fromkeys(r["pair"] for r in document["rows"])) == [f"{s}>{(s + 1) % size}" for s in range(size)]
    expected = len(processes.sweep(SMS, 0, 1, 2))
    for pair in {r["pair"] for r in document["rows"]}:
        rows = [r for r in document["rows"] if r["pair"] == pair]
        assert len(rows) == expected
        assert {r["status"] for r in rows} == {"ok", "warmup"}
        assert {r["producers"] for r in rows} == {SMS}
    json.dumps(document)


@pytest.mark.parametrize(
    ("gpu", "memories", "error", "words"),
    [
        ({"stray": True}, ("ipc", "ipc"), PairError, ["pair 1>0: 3 of the destination's", "offset 512"]),
        ({"uuid": "GPU-0"}, ("ipc", "ipc"), UsageError, ["share a GPU"]),
        ({}, ("ipc", "nvshmem"), UsageError, ["different --memory"]),
    ],
)
def test_what_is_wrong_fails_every_rank_with_its_reason(gpu: dict[str, Any], memories: Any, error: type[Exception], words: Any) -> None:
    memory: dict[int, Any] = {}
    for caught in ranks(EmulatedGpu(0, memory), EmulatedGpu(1, memory, **gpu), memory=memories):
        assert isinstance(caught, error)
        assert [w for w in words if w not in caught.message] == []


def test_a_rank_whose_gpu_fails_takes_the_others_along_and_one_alone_has_no_partner() -> None:
    class Broken(EmulatedGpu):
        def execute(self, batch: layout.Batch, address: int) -> tuple[Any, Any]:
            raise RuntimeError("an illegal memory access")

    memory: dict[int, Any] = {}
    out = ranks(EmulatedGpu(0, memory), Broken(1, memory))
    assert isinstance(out[1], RuntimeError)
    assert isinstance(out[0], PartnerError)
    assert "rank 1: an illegal memory access" in out[0].message
    with pytest.raises(UsageError, match="no partner"):
        processes.measure_rank(Place(0, 1, 0, "test"), "ipc")


def document(memory: str, seed: int, factor: float = 1.0) -> dict[str, Any]:
    """Rows of the law with 0.3 % of noise; `factor` on the stalled slope."""
    rng = np.random.default_rng(seed)
    rows = []
    for job in processes.sweep(SMS, 0, 1, 9):
        if job.kind != "measure":
            continue
        s = job.schedule
        n = float(s.stores_per_warp()[0]) * s.warps
        issue = (BASE + FREE * n + (STALLED * factor - FREE) * max(0.0, n - KNEE_WARP_STORES)) * (1 + 0.003 * rng.standard_normal())
        numbers = {"issue_mean_cycles": issue, "issue_max_cycles": issue * 1.01, "drain_mean_cycles": 900.0, "sm_clock_mhz": CLOCK_MHZ}
        head = {"pair": "0>1", "producers": SMS, "warps": s.warps, "stores": int(s.stores_per_warp()[0]), "repetition": job.repetition}
        rows.append({**head, **numbers, "status": "ok", "detail": ""})
    return {"schema_version": 1, "memory": memory, "launcher": "test", "ranks": [], "rows": rows}


def test_the_comparison_recovers_the_truth_and_the_deviation() -> None:
    result = compare([document("plain", i) for i in range(3)] + [document("ipc", 10 + i) for i in range(3)])
    rate = SMS * 512 / (STALLED * 1.01) * CLOCK_MHZ * 1e-3
    capacity = KNEE_WARP_STORES * 512 - rate / SMS * (BASE + FREE * KNEE_WARP_STORES) / CLOCK_MHZ * 1e3
    for row in result["rows"]:
        assert row["processes"] == 3
        assert row["drain_gb_per_s"]["value"] == pytest.approx(rate, rel=0.01)
        assert row["capacity_bytes_per_producer"]["value"] == pytest.approx(capacity, rel=0.03)
        assert row["t0_cycles"]["value"] == pytest.approx(BASE + FREE * 64, rel=0.02)
        assert row["t0_cycles"]["status"] == "ok"
    assert result["largest_deviation"] < 0.02


def test_a_slower_memory_is_seen_in_documents_of_now_and_of_before() -> None:
    now = [document("plain", 0), document("nvshmem", 1, factor=1.05)]
    for documents in (now, [{**d, "pairs": {"0>1": d["rows"]}, "rows": None} for d in now]):
        documents = [{k: v for k, v in d.items() if v is not None} for d in documents]
        result = compare(documents)
        slow = [r for r in result["rows"] if r["memory"] == "nvshmem"]
        assert {round(r["ratio"]["drain_gb_per_s"], 2) for r in slow} == {0.95}
        assert result["largest_deviation"] > 0.04
    with pytest.raises(DataError, match="no file of --memory plain"):
        compare(now[1:])
