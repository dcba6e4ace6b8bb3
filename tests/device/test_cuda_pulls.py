"""Pulls: the kernel's machine code, its sums, and a survey that finds the law of an emulated node and names memory that lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_code import CLOCK, found, run_on_cpu, struct_like, struct_of
from numpy.typing import NDArray
from sass import disassemble, lines_of

from xstage_bench.cli.measure_pulls import _text
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.device.cuda.pulls import DEPTHS, PULL, RESULT, PullShape, sums
from xstage_bench.errors import PairError
from xstage_bench.io.assets import asset_dir
from xstage_bench.measure.pulls import measure_pulls, reduce
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.pull import PullLaw
from xstage_bench.schedule.bursts import HOST
from xstage_bench.schedule.device import Gpu, Node

SOURCE = (asset_dir("cuda") / "pulls.cu").read_text()


def test_structs_are_those_of_the_kernel() -> None:
    assert struct_of(SOURCE, "Pull") == struct_like(PULL)
    assert struct_of(SOURCE, "Result") == struct_like(RESULT)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_round_waits_for_its_loads_and_the_clock_for_the_last(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    text = disassemble(compile_kernel("pulls.cu", arch, cache=False))
    lines = lines_of(text.partition(".text.xstage_pull:")[2].partition(".section")[0])
    loads, clocks = found(lines, r"LDG\.E\.(NA\.)?128|LDG\.E\.128"), found(lines, CLOCK)
    assert len(loads) >= sum(DEPTHS)
    assert not found(lines, r"\b(LDL|STL)\b")
    before = [i for i in clocks if i < loads[0]]
    behind = [i for i in clocks if i > loads[-1]]
    assert before
    assert behind
    assert found(lines[loads[-1] : behind[0]], r"WARPSYNC R\d|REDUX\.OR"), "the warp meets under a mask of the sums"
    assert not found(lines[loads[0] : behind[0]], r"STG|MEMBAR|BAR\.SYNC"), "nothing else is timed"


ON_CPU = """
#include <cstdio>
typedef unsigned int u32; typedef unsigned long long u64;
struct uint4 { u32 x, y, z, w; };
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static uint4 memory[%d];
static struct { u32 x; } blockIdx{0}, blockDim{1}, gridDim{1}, threadIdx{0};
#define __global__
#define __device__
#define __forceinline__ inline
static u64 sm_clock() { return 0; }
static const u32 LOAD_BYTES = 512;
static uint4 load(const char *at) { return *(const uint4 *)at; }
%s
int main() {
  xstage_pull_fill(memory, sizeof(memory) / 16, %du);
  for (u32 warp = 0; warp < %d; ++warp) {
    u32 total = 0; u64 start;
    for (u32 lane = 0; lane < 32; ++lane) total += pulled<%d>((const char *)memory + (u64)warp * %d * 512 + lane * 16, %d, %d, 0, start);
    printf("%%u ", total);
  }
}
"""


@pytest.mark.parametrize("shape", [PullShape(1, 3, 4, 2, 16), PullShape(1, 1, 16, 8, 96)])
def test_the_kernel_sums_what_the_cpu_expects(shape: PullShape, tmp_path: Any) -> None:
    own, salt = 512 // shape.warps, 0xDEADBEEF
    functions = SOURCE[SOURCE.index("static __device__ __forceinline__ u32 mixed") : SOURCE.index("// The clock when everything")]
    functions += SOURCE[SOURCE.index("template <u32 DEPTH>") : SOURCE.index('extern "C" __global__ void __launch_bounds__')]
    functions += SOURCE[SOURCE.index('extern "C" __global__ void xstage_pull_fill') :]
    numbers = (shape.producers * shape.warps, shape.depth, own, own, shape.loads)
    words = run_on_cpu(ON_CPU % (shape.producers * 512 * 32, functions, salt, *numbers), tmp_path).split()
    assert np.array(words, np.uint32).reshape(shape.producers, shape.warps).tolist() == sums(shape, salt).tolist()


LAW = PullLaw(*(Estimate(value=v, standard_error=None, low=None, high=None) for v in (800.0, 40.0, 200.0)))


class Emulated:
    """A node that follows a law to the nanosecond; GPU 1 reads rubbish."""

    backend = "cuda"

    def __init__(self) -> None:
        self.salt = 0

    def node(self) -> Node:
        return Node(tuple(Gpu(i, "A", tuple(range(16)), 1000.0) for i in range(2)), ((0, 1), (1, 0), (0, HOST)), 32.0)

    def fill_pulled(self, source: int, owner: int, salt: int) -> None:
        self.salt = salt

    def pull(self, source: int, shape: PullShape, count: int) -> list[NDArray[Any]]:
        stamps = np.zeros((shape.producers, shape.warps), RESULT)
        stamps["state"], stamps["sum"] = 1, sums(shape, self.salt) + (source == 1)
        taken = LAW.time_ns(shape.producers, shape.warps, shape.depth, shape.loads)
        assert taken is not None
        stamps["end"] = stamps["end_ns"] = round(taken + 10 * shape.stores)
        return [stamps] * count

    def close(self) -> None: ...


def test_the_survey_finds_the_law_and_names_memory_that_lies() -> None:
    document = measure_pulls(lambda process: Emulated(), None, processes=2, quick=True, seed=3)
    assert set(document["failed_pairs"]) == {"1>0"}
    assert "something else than what was written" in document["failed_pairs"]["1>0"]
    peer, host = document["laws"]
    assert [peer["pair"], host["pair"]] == ["0>1", f"0>{HOST}"]
    assert peer["latency_ns"]["value"] == pytest.approx(800, rel=1e-3)
    assert peer["sm_gb_per_s"]["value"] == pytest.approx(40, rel=1e-3)
    assert peer["gb_per_s"]["value"] == pytest.approx(200, rel=1e-3)
    assert peer["in_flight_sm_bytes"] == pytest.approx(32_000, rel=1e-2)
    assert (peer["judges"], peer["p95_error"]) == (24, pytest.approx(0, abs=0.01))
    assert {b["bytes"]: b["waited_ns"] for b in peer["behind"] if b["producers"] == 16}[32 * 4 * 512] == 320
    assert "0>1" in _text(document)


def test_a_wait_that_timed_out_fails_the_pair() -> None:
    shape = PullShape(1, 1, 1, 1, 1)
    with pytest.raises(PairError, match="time-out"):
        reduce(np.zeros((1, 1), RESULT), shape, 0, 0)
