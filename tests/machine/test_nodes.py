"""Topology and doctor on nodes that this project has not seen: what joins which pair, what is refused, what is only noted."""

from collections import Counter
from typing import Any

import nodes
import pytest

from xstage_bench.machine.doctor import can_measure, examine
from xstage_bench.machine.environment import snapshot
from xstage_bench.machine.topology import matrix, read_topology

NAMES = list(nodes.nodes())


def read(fake_nvml: Any, name: str) -> tuple[Any, list[Any]]:
    nvml = fake_nvml(nodes.nodes()[name])
    topology = read_topology(nvml, {}, bus=lambda: [])
    return topology, examine(topology, snapshot(nvml, {}), has_cupy=True)


@pytest.mark.parametrize(
    ("name", "labels", "usable"),
    [
        ("8 x H100", {"NV18": 56}, 56),
        ("8 x H20", {"NV18": 56}, 56),
        ("8 x A100, 12 links", {"NV12": 56}, 56),
        ("one link down", {"NV18": 42, "NV17": 14}, 56),
        ("PCIe only", {"PCIe": 12}, 12),
        ("mixed", {"NV1": 16, "NV2": 16, "none": 24}, 32),
    ],
)
def test_what_joins_each_pair(fake_nvml: Any, name: str, labels: dict[str, int], usable: int) -> None:
    topology, _ = read(fake_nvml, name)
    assert Counter(c.label for c in topology.connections) == labels
    assert len(topology.usable_pairs()) == usable
    assert all(c.reason for c in topology.connections if not c.usable)
    grid = matrix(topology)
    assert len(grid) == len(topology.gpus)
    assert all(grid[i][i] == "-" for i in range(len(grid)))


@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_has_an_answer_for_each(fake_nvml: Any, name: str) -> None:
    _, findings = read(fake_nvml, name)
    assert can_measure(findings)
    bad = {f.check: f for f in findings if f.status != "ok"}
    assert all(f.hint for f in bad.values())
    expected = {"one link down": {"GPU 3 links"}, "mixed": {"pairs"}}.get(name, set())
    assert set(bad) == expected
    about_links = next(f.detail for f in findings if f.check == "GPU 0 links")
    generation = {"8 x H100": "NVLink 4.0", "8 x A100, 12 links": "NVLink 3.0", "mixed": "NVLink 2.0", "PCIe only": "no NVLink"}
    assert generation.get(name, "NVLink 4.0") in about_links
    if name == "one link down":
        assert "17 of 18 NVLinks are up (down: 7)" in bad["GPU 3 links"].detail


@pytest.mark.parametrize("name", NAMES)
def test_all_links_down_refuses_whatever_the_node(fake_nvml: Any, name: str) -> None:
    made = nodes.nodes()[name]
    for one in made["gpus"]:
        one["links"]["down"] = list(range(18))
    topology = read_topology(fake_nvml(made), {}, bus=lambda: [])
    assert topology.usable_pairs() == (() if name != "PCIe only" else tuple((a, b) for a in range(4) for b in range(4) if a != b))
