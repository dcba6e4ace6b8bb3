"""Links, pairs and the numbering of GPUs, over a recorded node."""

from __future__ import annotations

import copy

import pytest

from xstage_bench.machine.nvml import NvmlGpu, pci_address, pci_bus_gpus
from xstage_bench.machine.topology import from_node, matrix, read_topology
from xstage_bench.machine.visible_devices import visible_gpus
from xstage_bench.schedule.device import Gpu, Node

A, B = "GPU-11111111-aaaa-4aaa-8aaa-000000000001", "GPU-22222222-bbbb-4bbb-8bbb-000000000002"


def lose_links(nvml, gpu: int, down: list[int]) -> None:
    nvml.gpus[gpu]["links"]["down"] = down


def test_a_healthy_pair_and_one_that_lost_a_link(fake_nvml):
    nvml = fake_nvml()
    node = read_topology(nvml, {})
    assert matrix(node) == [["-", "NV18"], ["NV18", "-"]]
    assert (node.gpus[1].pci_address, node.gpus[1].uuid) == ("0000:2a:00.0", B)
    assert nvml.started == 0  # shut down again
    lose_links(nvml, 0, [7])
    fewer = read_topology(nvml, {})
    assert [n.gpus[0].line_rate_gb_per_s for n in (node, fewer)] == pytest.approx([18 * 26.562, 17 * 26.562])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n: lose_links(n, 1, list(range(18))), "GPU 1: 0 of 18 NVLinks are up"),
        (lambda n: n.gpus[0].update(mig=[1, 1]), "MIG is on"),
        (lambda n: n.gpus[0].update(fabric_state=2), "fabric manager is still starting"),
        (lambda n: n.node.update(confidential_computing=1), "confidential-computing"),
    ],
)
def test_states_that_forbid_peer_stores(fake_nvml, change, words):
    nvml = fake_nvml()
    change(nvml)
    node = read_topology(nvml, {})
    assert node.usable_pairs() == ()
    assert words in node.why_not()
    assert matrix(node)[0][1].endswith("!")


@pytest.mark.parametrize(("status", "words"), [(1, "chipset"), (4, "driver's settings"), (5, "not supported")])
def test_a_refused_peer_is_named_and_only_in_its_direction(fake_nvml, status, words):
    nvml = fake_nvml()
    nvml.gpus[0]["p2p"] = {B: status}
    node = read_topology(nvml, {})
    assert node.usable_pairs() == ((1, 0),)
    assert words in node.connections[0].reason


def test_direct_links_count_only_towards_their_peer(fake_nvml):
    """Three GPUs: 12 links between 0 and 1, 6 from 0 to 2, PCIe between 1 and 2."""
    nvml = fake_nvml()
    nvml.gpus.append(copy.deepcopy(nvml.gpus[1]) | {"uuid": "GPU-33333333", "bus_id": "00000000:3B:00.0"})
    addresses = [gpu["bus_id"] for gpu in nvml.gpus]
    far = ([1] * 12 + [2] * 6, [0] * 12, [0] * 6)
    for gpu, peers in zip(nvml.gpus, far, strict=True):
        gpu["links"].update(count=len(peers), remote_type=0, remote_bus_id=[addresses[p] for p in peers])
    assert matrix(read_topology(nvml, {})) == [["-", "NV12", "NV6"], ["NV12", "-", "PCIe"], ["NV6", "PCIe", "-"]]
    hidden = read_topology(nvml, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert hidden.notes == ("GPU 0 has 6 NVLinks to a GPU at 0000:3b:00.0 that is not visible here",)


def test_queries_that_a_driver_lacks_do_not_refuse_the_pair(fake_nvml):
    nvml = fake_nvml()
    nvml.unsupported = {"nvmlDeviceGetP2PStatus", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV", "nvmlSystemGetConfComputeState"}
    assert read_topology(nvml, {}).usable_pairs() == ((0, 1), (1, 0))


def test_a_lost_gpu_is_not_a_missing_one(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[1]["lost"] = True
    node = read_topology(nvml, {})
    assert len(node.gpus) == 1
    assert "only one GPU is visible" in node.why_not()
    assert any("GPU is lost" in note for note in node.notes)
    nvml.gpus[0]["lost"] = True
    assert "GPU is lost" in (read_topology(nvml, {}).unseen or "")


def test_no_driver_with_and_without_gpus_on_the_bus(fake_nvml):
    nvml = fake_nvml(library=False)
    assert read_topology(nvml, {}, bus=lambda: []).unseen is None
    there = read_topology(nvml, {}, bus=lambda: ["0000:18:00.0"])
    assert there.gpus == ()
    assert "1 NVIDIA GPU(s) on the PCI bus (0000:18:00.0) but NVML does not start" in (there.unseen or "")


def test_the_bus_tells_gpus_from_other_devices(tmp_path):
    gpu, switch = ("0000:18:00.0", "0x10de", "0x030200"), ("0000:05:00.0", "0x10de", "0x068000")
    other = ("0000:01:00.0", "0x8086", "0x030000")
    for name, vendor, kind in (gpu, switch, other):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    assert pci_bus_gpus(tmp_path) == ["0000:18:00.0"]
    assert pci_bus_gpus(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ("1,0", [B, A]),
        ("1", [B]),
        ("GPU-2222,GPU-1111", [B, A]),
        (A[:4] + A[4:].upper(), [A]),
        ("0,7,1", [A]),  # CUDA hides everything after an entry that it does not know
        ("-1", []),
        ("", []),
        ("0,0", []),
        ("GPU-", []),  # ambiguous
        ("MIG-0", []),
    ],
)
def test_cuda_visible_devices(fake_nvml, wanted, uuids):
    node = read_topology(fake_nvml(), {"CUDA_VISIBLE_DEVICES": wanted})
    assert [g.uuid for g in node.gpus] == uuids
    assert [g.index for g in node.gpus] == list(range(len(uuids)))
    if not uuids:
        assert node.unseen is not None  # the node has GPUs: it must not be taken for one without


def test_cudas_own_order_wins_over_the_environment(fake_nvml):
    node = read_topology(fake_nvml(), {"CUDA_VISIBLE_DEVICES": "0"}, enumerate_cuda=lambda: ([B, A], None))
    assert [g.uuid for g in node.gpus] == [B, A]
    assert [g.nvml_index for g in node.gpus] == [1, 0]
    strange = read_topology(fake_nvml(), {}, enumerate_cuda=lambda: ([B, "GPU-other"], None))
    assert "1 device(s) that NVML does not" in strange.notes[0]


def test_pairs_are_joined_to_another_librarys_numbers(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[0]["p2p"] = {B: 3}
    node = read_topology(nvml, {})
    assert {pair: c.usable for pair, c in node.by_uuid({A: 1, B: 0}).items()} == {(1, 0): False, (0, 1): True}
    assert node.by_uuid({A: 1, "GPU-other": 0}) == {}
    nvml.unsupported = {"nvmlDeviceGetUUID"}
    assert read_topology(nvml, {}).by_uuid({A: 1, B: 0, None: 2}) == {}


def test_unlike_gpus_without_an_order_are_noted_and_addresses_join_across_libraries():
    gpus = [NvmlGpu(0, "h0", "GPU-0", "0000:01:00.0", "NVIDIA H200"), NvmlGpu(1, "h1", "GPU-1", "0000:02:00.0", "NVIDIA L4")]
    assert any("may number them differently" in note for note in visible_gpus(gpus, {}).notes)
    assert visible_gpus(gpus, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).notes == ()
    assert pci_address(b"00000000:2A:00.0") == pci_address("0000:2a:00.0") == "0000:2a:00.0"
    assert pci_address("00010000:01:00.0") == "10000:01:00.0"


def test_a_node_without_nvml_becomes_a_matrix():
    gpus = tuple(Gpu(i, "sim", tuple(range(4)), 1980.0) for i in range(3))
    node = Node(gpus, ((0, 1), (1, 0), (0, 2)), 32.0, 478.0, {"2>0": "dead"})
    topology = from_node(node)
    assert matrix(topology) == [["-", "peer", "peer"], ["peer", "-", "none!"], ["none!", "none!", "-"]]
    assert {c.reason for c in topology.connections if not c.usable} == {"dead", "not measured"}
