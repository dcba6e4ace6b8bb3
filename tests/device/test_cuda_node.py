"""What the cuda device makes of the driver's grants and NVML's links, without a GPU: the worker's answer and the node are made."""

from __future__ import annotations

from typing import Any

import nodes
import pytest
from fake_nvml import FakeNvml

from xstage_bench.device.cuda import device as cuda
from xstage_bench.machine.topology import read_topology
from xstage_bench.schedule.bursts import HOST
from xstage_bench.schedule.device import Node


def node_of(monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], refused: frozenset[tuple[int, int]] = frozenset(), **asked: Any) -> Node:
    """CUDA numbers the GPUs the other way round than NVML, and grants all pairs but the refused ones."""
    uuids = [one["uuid"] for one in reversed(made["gpus"])]
    nvml = FakeNvml(made)
    monkeypatch.setattr(cuda, "read_topology", lambda **more: read_topology(nvml, {}, bus=lambda: [], **more))
    facts = [
        {"index": i, "name": "GPU", "smids": range(4), "sm_clock_mhz": 1980.0, "uuid": u, "pci_address": None, "arch": "sm_90"}
        for i, u in enumerate(uuids)
    ]
    pairs = [[a, b] for a in range(len(uuids)) for b in range(len(uuids)) if a != b and (a, b) not in refused]
    monkeypatch.setattr(cuda.CudaDevice, "_start", lambda self: {"gpus": facts, "pairs": pairs, "timer_tick_ns": 32.0})
    return cuda.CudaDevice(**asked).node()


def test_one_sick_gpu_lowers_its_own_pairs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of(monkeypatch, nodes.nodes()["one link down"])  # NVML's 3 is CUDA's 4
    assert node.line_rate_gb_per_s == pytest.approx(18 * 26.562)
    assert (node.line_rate("0>1"), node.line_rate("4>0")) == pytest.approx((18 * 26.562, 17 * 26.562))


def test_direct_links_are_those_to_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of(monkeypatch, nodes.nodes()["mixed"])
    assert {node.line_rate(f"{a}>{b}") for a, b in node.pairs} == {25.0, 50.0}, "of one or two links, never of six"


def test_what_either_side_refuses_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    made = nodes.nodes()["driver 590"]
    made["gpus"][0]["fabric"] = {"status": 19}
    node = node_of(monkeypatch, made, frozenset({(0, 1)}))
    assert set(node.pairs) == {(1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}, "CUDA's 3 has not joined the fabric"
    assert node.unusable is not None
    assert "status 19" in node.unusable["3>1"]
    assert node.unusable["0>1"] == "the driver grants no peer access"


def test_links_that_are_meant_to_be_down_and_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made = nodes.nodes()["8 x H20"]
    for one in made["gpus"]:
        one["links"]["down"] = list(range(18))
    assert node_of(monkeypatch, made).pairs == ()
    over_pcie = node_of(monkeypatch, made, expect_links=0)
    assert (len(over_pcie.pairs), over_pcie.line_rate("0>1")) == (56, None)
    host = node_of(monkeypatch, made, peer="host")
    assert (host.pairs[0], host.line_rate_gb_per_s, host.pair_links) == ((0, HOST), None, None)
