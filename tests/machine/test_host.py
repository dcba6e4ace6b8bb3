"""What the host does to peer traffic and to a run, read from a recorded /proc and /sys."""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.machine.doctor_host import BYTES_PER_PAIR, examine_host
from xstage_bench.machine.host import Host, acs_control, read_host

QUIET = Host("off", (), None, None, None, None, 1 << 30, 10**12)
ENVIRONMENT = {"gpus": [{"index": 0}, {"index": 1}], "variables": {"NVIDIA_VISIBLE_DEVICES": "0,1"}}


def config(*capabilities: tuple[int, int]) -> bytes:
    """A configuration space of 4096 bytes with extended capabilities of these ids; an ACS one has this control word."""
    data = bytearray(4096)
    at = 0x100
    for i, (number, control) in enumerate(capabilities):
        after = at + 0x40 if i + 1 < len(capabilities) else 0
        struct.pack_into("<I", data, at, number | (1 << 16) | (after << 20))
        struct.pack_into("<H", data, at + 6, control)
        at += 0x40
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "control"),
    [(config((13, 29)), 29), (config((1, 0), (13, 0)), 0), (config((1, 0)), 0), (config(), 0), (bytes(64), None), (b"", None)],
)
def test_acs_control_words(data: bytes, control: int | None) -> None:
    assert acs_control(data) == control


@given(st.binary(max_size=600))
def test_any_configuration_space_ends(data: bytes) -> None:
    assert acs_control(data) is None or isinstance(acs_control(data), int)


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_a_bare_machine_with_a_translating_iommu_and_acs(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "sys/class/iommu/dmar0/x": "", "sys/kernel/iommu_groups/7/type": "DMA-FQ\n", "proc/cmdline": "root=/dev/sda",
            "sys/bus/pci/devices/0000:00:01.0/class": "0x060400\n", "sys/bus/pci/devices/0000:00:01.0/config": config((0x000D, 0x1D)),
            "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n",
        },
    )  # fmt: skip
    host = read_host(tmp_path, root)
    assert (host.iommu, host.acs_redirecting, host.container) == ("translating", ("0000:00:01.0",), None)
    assert host.free_bytes > 0


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"sys/class/net/x": ""}, "off"),
        ({"sys/class/iommu/a/x": "", "sys/kernel/iommu_groups/0/type": "identity"}, "passthrough"),
        ({"sys/class/iommu/a/x": "", "proc/cmdline": "quiet iommu=pt"}, "passthrough"),
        ({"sys/class/iommu/a/x": "", "proc/cmdline": "quiet"}, "translating"),
        ({}, None),
    ],
)
def test_iommu(tmp_path: Path, files: dict[str, str | bytes], kind: str | None) -> None:
    assert read_host(tmp_path, write(tmp_path / "root", files)).iommu == kind


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/memory.max": "1000000", "sys/fs/cgroup/cpu.max": "50000 100000", "sys/fs/cgroup/pids.max": "64"},
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000", "sys/fs/cgroup/pids/pids.max": "64",
        },
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_the_limits_of_a_container(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    host = read_host(tmp_path, write(tmp_path / "root", files | {".dockerenv": ""}))
    assert (host.memory_limit_bytes, host.cpus_limit, host.pids_limit, host.container) == (1_000_000, 0.5, 64, "docker")
    found = {f.check: f.status for f in examine_host(host, ENVIRONMENT, 2)}
    assert {"memory limit": "warn", "CPU limit": "warn", "process limit": "warn", "container": "ok"}.items() <= found.items()


@pytest.mark.parametrize("value", ["max", "-1", "9223372036854771712", "rubbish", ""])
def test_no_limit_is_none(tmp_path: Path, value: str) -> None:
    files: dict[str, str | bytes] = {f"sys/fs/cgroup/{n}": value for n in ("memory.max", "pids.max", "cpu.max")}
    host = read_host(tmp_path, write(tmp_path / "root", files))
    assert (host.memory_limit_bytes, host.cpus_limit, host.pids_limit) == (None, None, None)


@pytest.mark.parametrize(("free", "status"), [(10**12, "ok"), (2 * 2 * BYTES_PER_PAIR, "warn"), (1000, "fail"), (None, "warn")])
def test_room_for_the_run(free: int | None, status: str) -> None:
    (found,) = (f for f in examine_host(dataclasses.replace(QUIET, free_bytes=free), ENVIRONMENT, 2) if f.check == "disk")
    assert found.status == status


def test_what_hinders_peer_traffic_is_a_warning_with_a_way_out() -> None:
    hindered: Any = dataclasses.replace(QUIET, iommu="translating", acs_redirecting=("0000:00:01.0",))
    found = {f.check: f for f in examine_host(hindered, ENVIRONMENT, 2)}
    assert (found["IOMMU"].status, found["ACS"].status) == ("warn", "warn")
    assert "setpci -s 0000:00:01.0" in (found["ACS"].hint or "")
    assert {f.status for f in examine_host(QUIET, ENVIRONMENT, 2)} == {"ok"}
    assert [f.check for f in examine_host(hindered, {"gpus": [], "variables": {}}, 0)] == ["disk"]
