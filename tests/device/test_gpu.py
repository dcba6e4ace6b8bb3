"""The host of compiled kernels against a driver that keeps a log: facts, loading, memory and launches."""

from __future__ import annotations

import os
from typing import Any

import fake_cuda
import numpy as np
import pytest
from fake_cuda import SHARED_BYTES, FakeCuda

from xstage_bench.device.cuda.gpu import CudaGpu, gpu_count, load_eagerly, pinned
from xstage_bench.errors import XStageError

SMS = 24


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch, sms=SMS)


def test_the_facts_of_a_gpu(cuda: FakeCuda) -> None:
    assert gpu_count() == 2
    gpu = CudaGpu(1)
    assert (gpu.index, gpu.name, gpu.pci_address, gpu.capability, gpu.arch) == (1, "NVIDIA Fake", "0000:0a:01.0", (9, 0), "sm_90")
    assert gpu.uuid == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
    assert (gpu.sms, gpu.sm_clock_mhz, gpu.lone_bytes) == (SMS, 1980.0, SHARED_BYTES // 2 + 1024)


def test_modules_load_whole_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    load_eagerly()
    assert os.environ.pop("CUDA_MODULE_LOADING") == "EAGER"
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    load_eagerly()
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"


def test_every_kernel_is_on_its_gpu_when_load_returns(cuda: FakeCuda) -> None:
    gpu, other = CudaGpu(0), CudaGpu(1)
    kernels = gpu.load("x.cu", {"a": 70000, "b": 0}, {"N": "1"}, {"h.cuh": "//"}, arch="sm_90a", cooperative=True)
    assert [entry for entry in cuda.log if entry[0] in ("compile", "module", "function", "shared")] == [
        ("compile", "x.cu", "sm_90a", {"N": "1"}, {"h.cuh": "//"}),
        ("module", 0, b"x.cu"),
        ("function", 0, "xstage_a"),
        ("shared", "xstage_a", 70000),
        ("function", 0, "xstage_b"),
    ]
    assert {name: (k.shared_bytes, k.cooperative) for name, k in kernels.items()} == {"a": (70000, True), "b": (0, True)}
    other.use()
    gpu.launch(kernels["a"], (3,), 64, ())  # from whatever GPU is the current one
    assert cuda.launches[-1].gpu == 0


def test_what_the_driver_refuses_names_gpu_and_error(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cuda.driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda.driver, "cuModuleLoadData", lambda image: (refused, None))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="GPU 1: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        CudaGpu(1).load("x.cu", {"a": 0})


def test_arguments_are_what_the_kernel_reads(cuda: FakeCuda) -> None:
    gpu, struct, seen = CudaGpu(0), np.dtype([("a", "<u8"), ("b", "<u4", 3)]), []
    kernel = gpu.load("x.cu", {"a": 5000})["a"]
    types = (np.uint64, np.uint32, struct, np.int16)
    values = (np.uint64(1 << 40 | 7), np.uint32(0xFFFFFFFF), np.array([(9, (1, 2, 3))], struct), np.int16(-2))
    cuda.kernels["xstage_a"] = lambda launch: seen.extend(launch.parameter(i, t) for i, t in enumerate(types))
    gpu.launch(kernel, (7, 2), 256, values, stream=0x1234, shared_bytes=96)
    gpu.launch(kernel, (7,), 256, values)
    assert seen[:3] == [1 << 40 | 7, 0xFFFFFFFF, values[2][0]]
    assert seen[3:4] == [-2]
    first, second = cuda.launches
    assert (first.grid, first.block, first.stream, first.shared_bytes) == ((7, 2, 1), (256, 1, 1), 0x1234, 96)
    assert (second.grid, second.stream, second.shared_bytes) == ((7, 1, 1), 0, 5000)


def test_a_number_without_a_type_is_no_argument(cuda: FakeCuda) -> None:
    gpu = CudaGpu(0)
    for bad in (5, 1.0, np.zeros(2, np.uint32), [1]):
        with pytest.raises(TypeError, match="parameter"):
            gpu.launch(gpu.load("x.cu", {"a": 0})["a"], (1,), 1, (bad,))
    assert not cuda.launches


@pytest.mark.parametrize(
    ("cooperative", "domain", "expected"),
    [
        (False, "same", {}),
        (True, "same", {"COOPERATIVE": 1}),
        (False, "remote", {"MEM_SYNC_DOMAIN": "REMOTE"}),
        (True, "mapped", {"COOPERATIVE": 1, "MEM_SYNC_DOMAIN_MAP": (2, 3)}),
    ],
)
def test_launch_attributes(cuda: FakeCuda, cooperative: bool, domain: Any, expected: dict[str, Any]) -> None:
    gpu = CudaGpu(0)
    gpu.launch(gpu.load("x.cu", {"a": 0}, cooperative=cooperative)["a"], (1,), 1, (), domain=domain)
    assert cuda.launches[0].attributes == expected


def test_a_room_keeps_its_place_until_it_has_to_grow(cuda: FakeCuda) -> None:
    gpu = CudaGpu(0)
    at = gpu.room(100, "a", fill=0xA5)
    assert set(gpu.downloaded("a", np.uint8, 100)) == {0xA5}
    gpu.fill(at, 1, 100)
    assert gpu.room(40, "a", fill=0xA5) == at == gpu.at("a")
    assert set(gpu.downloaded("a", np.uint8, 100)) == {1}, "only new memory is filled"
    grown = gpu.room(101, "a", fill=0xA5)
    assert cuda.did("free") == [("free", 0, at)]
    assert set(gpu.downloaded("a", np.uint8, 101)) == {0xA5}
    assert len({grown, gpu.room(10), gpu.room(10), gpu.room(0, "b")}) == 4, "without a name, new memory each time"
    assert gpu.room(0, "b") == gpu.room(16, "b"), "even nothing has an address"
    gpu.free(gpu.room(10))
    with pytest.raises(KeyError):
        gpu.at("c")


def test_what_goes_up_comes_down_and_is_there_before_a_launch(cuda: FakeCuda) -> None:
    gpu, table = CudaGpu(0), np.arange(12, dtype=np.int32).reshape(3, 4)
    at = gpu.uploaded(table[:, ::2], "t")  # not contiguous
    assert cuda.log[-1] == ("synchronize", 0, 0), "a stream that waits for no other must not begin before the copy has ended"
    assert gpu.downloaded("t", np.int32, (3, 2)).tolist() == gpu.downloaded(at, np.int32, (3, 2)).tolist() == table[:, ::2].tolist()
    assert gpu.zeroed(24, "t") == at
    assert cuda.log[-1] == ("synchronize", 0, 0)
    assert not gpu.downloaded("t", np.int32, 6).any()
    assert gpu.uploaded(np.zeros(0), "nothing")
    assert gpu.downloaded("nothing", np.uint8, 0).size == 0
    other = CudaGpu(1)
    assert [cuda.memory[at][0] for at in (gpu.zeroed(8, "a"), other.zeroed(8, "a"), gpu.uploaded(table), other.uploaded(table))] == [
        0,
        1,
    ] * 2
    memory = pinned(3, [("stores", "<u4")])
    memory["stores"] = 7
    assert (memory.shape, memory["stores"].tolist()) == ((3,), [7, 7, 7])


def test_peers_are_reached_once_and_again(cuda: FakeCuda) -> None:
    gpu = CudaGpu(0)
    gpu.reach((0, 1))
    gpu.reach((1,))
    assert cuda.reached == {(0, 1)}
    cuda.peers = False
    with pytest.raises(XStageError, match="GPU 0 cannot address the memory of GPU 1"):
        gpu.reach((1,))
