"""Topology, doctor and the choice of what is measured on nodes that this project has not seen: what is refused, why, and what to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import nodes
import pytest

from xstage_bench.device.backend import resolve_backend
from xstage_bench.errors import WaivedError
from xstage_bench.machine.doctor import can_measure, examine
from xstage_bench.machine.environment import link_error_deltas, snapshot
from xstage_bench.machine.topology import Topology, matrix, read_topology

#: By node: how many pairs each label has, rates of a pair, what is measured there, whether the doctor says pairs can be, and the words of
#: what is not ok, by check.
SEEN: dict[str, tuple[dict[str, int], set[float | None], str, bool, dict[str, str]]] = {
    "8 x H100": ({"NV18": 56}, {478.116}, "gpu", True, {}),
    "8 x H20": ({"NV18": 56}, {478.116}, "gpu", True, {}),
    "8 x A100, 12 links": ({"NV12": 56}, {300.0}, "gpu", True, {}),
    "one link down": ({"NV18": 42, "NV17": 14}, {478.116, 451.554}, "gpu", True, {"GPU 3 links": "17 of 18 NVLinks are up (down: 7)"}),
    "PCIe only": ({"PCIe": 12}, {None}, "gpu", True, {}),
    "mixed": ({"NV1": 16, "NV2": 16, "none!": 24}, {25.0, 50.0, None}, "gpu", True, {"pairs": "32 of 56 ordered pairs"}),
    "8 x B200": ({"NV18": 56}, {956.25}, "gpu", True, {}),
    "GB200 tray": ({"NV18": 12}, {956.25}, "gpu", True, {}),
    "GH200": ({}, set(), "host", False, {"pairs": "only one GPU is visible"}),
    "4 x A100 board": ({"NV4": 12}, {100.0}, "gpu", True, {}),
    "bridges": ({"NV12": 4, "PCIe": 8}, {300.0, None}, "gpu", True, {}),
    "empty connectors": ({"PCIe": 12}, {None}, "gpu", True, {}),
    "12 of 18": ({"NV12": 12}, {318.744}, "gpu", True, {f"GPU {i} links": "12 of 18 NVLinks are up (down: 12, 13" for i in range(4)}),
    "PCIe without peers": ({"none!": 2}, {None}, "host", False, {"pairs": "the GPU does not support peer access"}),
    "WSL2": ({"none!": 2}, {None}, "host", False, {"pairs": "peer access is not supported"}),
    "MIG": ({"NV12!": 2}, {300.0}, "nothing", False, {"pairs": "nvidia-smi -mig 0"} | {f"GPU {i} modes": "MIG is on" for i in (0, 1)}),
    "vGPU": ({"none!": 2}, {None}, "host", False, {"pairs": "peer access is not supported"}),
    "passed through": ({}, set(), "host", False, {"pairs": "only one GPU is visible"}),
    "driver 525": ({"NV18": 56}, {478.116}, "gpu", True, {}),
    "driver 470": ({"NV12": 56}, {300.0}, "gpu", False, {"driver": "driver 470.82.01, CUDA 12.8 is too old"}),
    "driver 590": ({"NV18": 12}, {478.116}, "gpu", True, {}),
    "fabric not joined": (
        {"NV18!": 12}, {478.116}, "nothing", False, {"pairs": "status 19"} | {f"GPU {i} modes": "could not be joined" for i in range(4)},
    ),
    "fabric unhealthy": (
        {"NV18!": 12}, {478.116}, "nothing", False, {"pairs": "a route is unhealthy"} | {f"GPU {i} modes": "unhealthy" for i in range(4)},
    ),
    "fabric configured wrongly": (
        {"NV18!": 12}, {478.116}, "nothing", False, {"pairs": "number of NVLinks"} | {f"GPU {i} modes": "wrongly" for i in range(4)},
    ),
    "fabric degraded": ({"NV18": 12}, {478.116}, "gpu", True, {f"GPU {i} modes": "bandwidth is degraded" for i in range(4)}),
    "two partitions": ({"NV18": 24, "none!": 32}, {478.116, None}, "gpu", True, {"pairs": "clique 1 and clique 2"}),
}  # fmt: skip


def read(fake_nvml: Any, name: str, expect: int | None = None) -> tuple[Topology, list[Any]]:
    nvml = fake_nvml(nodes.nodes()[name])
    topology = read_topology(nvml, {}, bus=lambda: [], expect_links=expect)
    return topology, examine(topology, snapshot(nvml, {}, expect_links=expect), has_cupy=True)


def test_every_node_is_looked_at() -> None:
    assert list(SEEN) == list(nodes.nodes())


@pytest.mark.parametrize("name", SEEN)
def test_what_can_be_measured_why_not_and_what_to_do(fake_nvml: Any, name: str) -> None:
    labels, rates, destination, measurable, wrong = SEEN[name]
    topology, findings = read(fake_nvml, name)
    grid = matrix(topology)
    assert Counter(cell for i, row in enumerate(grid) for j, cell in enumerate(row) if i != j) == labels
    assert {c.line_rate_gb_per_s for c in topology.connections} == rates
    assert all(c.reason for c in topology.connections if not c.usable)
    bad = {f.check: f for f in findings if f.status != "ok"}
    assert set(bad) == set(wrong)
    assert all(words in bad[check].detail for check, words in wrong.items())
    assert all(f.hint for f in bad.values())
    assert can_measure(findings) == measurable
    if destination == "nothing":
        with pytest.raises(WaivedError, match="GPU 0: ") as refused:
            resolve_backend("auto", topology=lambda: topology, has_cupy=lambda: True)
        assert refused.value.hint
    else:
        assert resolve_backend("auto", topology=lambda: topology, has_cupy=lambda: True).peer == destination


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("8 x H100", "NVLink 4.0, 478 GB/s"),
        ("8 x A100, 12 links", "NVLink 3.0, 300 GB/s"),
        ("8 x B200", "NVLink 5.0, 956 GB/s"),
        ("mixed", "NVLink 2.0"),
        ("PCIe only", "no NVLink"),
        ("empty connectors", "0 of 18 NVLinks are up: no bridge is fitted"),
        ("GB200 tray", "clique 32766 of cluster 0b0b"),
        ("vGPU", "vgpu guest"),
        ("driver 525", "confidential computing (Not Supported)"),
        ("WSL2", "MIG (Not Supported)"),
    ],
)
def test_the_doctor_says_what_is_special(fake_nvml: Any, name: str, words: str) -> None:
    assert any(words in f.detail for f in read(fake_nvml, name)[1])


@pytest.mark.parametrize(
    ("name", "expect", "usable", "words"),
    [
        ("12 of 18", 12, 12, "12 of 18 NVLinks are up, as expected (12)"),
        ("12 of 18", 14, 12, "12 of 14 NVLinks are up"),
        ("empty connectors", 0, 12, "no bridge is fitted"),
        ("empty connectors", 12, 0, "0 of 12 NVLinks are up"),
        ("PCIe only", 4, 0, "0 of 4 NVLinks are up"),
        ("8 x H100", 12, 56, "18 of 18"),
    ],
)
def test_a_setting_says_how_many_links_are_meant(fake_nvml: Any, name: str, expect: int, usable: int, words: str) -> None:
    topology, findings = read(fake_nvml, name, expect)
    assert len(topology.usable_pairs()) == usable
    links = [f for f in findings if f.check.endswith(" links")]
    assert any(words in f.detail for f in links)
    assert {f.status for f in links} == ({"warn"} if (topology.gpus[0].links_active or 0) < expect else {"ok"})


def test_a_bridge_that_is_missing_on_one_pair_of_cards_is_named(fake_nvml: Any) -> None:
    made = nodes.nodes()["bridges"]
    for one in made["gpus"][2:]:
        one["links"]["down"] = list(range(12))
    nvml = fake_nvml(made)
    topology = read_topology(nvml, {}, bus=lambda: [])
    assert len(topology.usable_pairs()) == 12, "over PCIe"
    bad = [f.detail for f in examine(topology, snapshot(nvml, {}), has_cupy=True) if f.status == "warn"]
    assert bad == ["0 of 12 NVLinks are up, and 12 are on GPUs of its kind here: a bridge is missing or not seated"] * 2


@pytest.mark.parametrize("name", SEEN)
def test_all_links_down_refuses_whatever_the_node(fake_nvml: Any, name: str) -> None:
    """Except where there are none, or where they end in a connector: an SXM board without links is never measured over PCIe unasked."""
    made = nodes.nodes()[name]
    for one in made["gpus"]:
        one["links"]["down"] = list(range(18))
    topology = read_topology(fake_nvml(made), {}, bus=lambda: [])
    over_pcie = name in ("PCIe only", "bridges", "empty connectors")
    assert len(topology.usable_pairs()) == (12 if over_pcie else 0)
    if over_pcie or not any(c.reason and "NVLinks are up" in c.reason for c in topology.connections):
        return
    assert "--expect-links 0 where that is meant" in topology.why_not()
    assert read_topology(fake_nvml(made), {}, bus=lambda: [], expect_links=0).usable_pairs()


def test_nvlink_5_has_counters_of_its_own(fake_nvml: Any) -> None:
    nvml = fake_nvml(nodes.nodes()["8 x B200"])
    before = snapshot(nvml, {})
    errors = before["gpus"][0]["links"][0]["errors"]
    assert (errors["replay"], errors["recovery_events"], errors["effective_errors"]) == (None, 0, 3)
    assert errors["effective_ber"] == pytest.approx(5e-15)
    assert set(errors["unavailable"]) == {"replay", "recovery", "crc"}
    nvml.gpus[1]["links"]["errors"]["215"] = {"4": 2}
    after = snapshot(nvml, {})
    risen = link_error_deltas(before, after)
    assert risen is not None
    assert risen[nvml.gpus[1]["uuid"]]["links"] == {"4": {"recovery_events": 2}}
    found = examine(read_topology(nvml, {}, bus=lambda: []), after, has_cupy=True)
    assert [f.detail for f in found if f.check == "GPU 1 link errors"] == ["2 recovery_events errors since the driver was loaded"]
