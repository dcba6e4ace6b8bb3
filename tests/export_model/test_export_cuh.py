"""The exported header compiles with NVRTC and nvcc for every architecture, its helpers are constants where they can be, and cost little."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import h200
import pytest

from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_source
from xstage_bench.show.export import export_model
from xstage_bench.show.export.cuh import namespace
from xstage_bench.show.export.document import exported_model

RUN = h200.RUN
KERNEL = """
#include "model.cuh"
namespace mine = xstage::pair_0_1_st_v4;
static constexpr xstage::Stage at_scope = mine::stage(132, 4);
static_assert(at_scope.capacity_bytes.known && at_scope.capacity_bytes.low < at_scope.capacity_bytes.high, "Q has an interval");
static_assert(xstage::would_stall(at_scope, 32768) && !xstage::would_stall(at_scope, 16384), "the knee lies at 19 kB");
static_assert(!mine::stage(1, 1).drain_gb_per_s.known, "one warp never saturates");
extern "C" __global__ void ask(float *out, float backlog, unsigned smid) {
  constexpr xstage::Stage own = mine::stage(100, 4);
  out[0] = xstage::would_stall(own, 16384.0f, backlog);
  out[1] = mine::sm_share(smid);
}
int host() { return xstage::largest_free_burst_bytes(at_scope); }
"""


@pytest.fixture(scope="module")
def header() -> str:
    return export_model(exported_model(RUN), "cuh")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_takes_it(header: str, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    device_only = KERNEL[: KERNEL.index("int host")]
    assert compile_source(device_only, "ask.cu", arch, headers={"model.cuh": header})[:4] == b"\x7fELF"


def test_a_question_costs_a_few_instructions_and_no_memory(header: str, tmp_path: Path, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(KERNEL[: KERNEL.index("int host")], "ask.cu", "sm_90", headers={"model.cuh": header}), "ask")
    text = "\n".join(lines)
    assert not re.search(r"\b(LDL|STL|CALL|MUFU|FCHK)", text), "no division, no array in local memory"
    floats = [line for line in lines if re.match(r"(@!?P\d+ )?F(ADD|MUL|FMA|MNMX|SET|SETP|SEL)", line)]
    assert len(floats) <= 6


def test_nvcc_takes_it_without_a_warning(header: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    (tmp_path / "model.cuh").write_text(header)
    (tmp_path / "ask.cu").write_text(KERNEL)
    options = ["-std=c++17", "-arch=sm_90a", "-cubin", "-Werror", "all-warnings", "-o", "ask.cubin", "ask.cu"]
    done = subprocess.run(["nvcc", *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_in_the_header_are_the_models(header: str) -> None:
    exported = exported_model(RUN)
    rows = re.findall(r"^    (\{\d+, .*\}),$", header, re.M)
    assert len(rows) == len(exported.stages)
    for row, stage in zip(rows, exported.stages, strict=True):
        words = re.sub(r"[{}]", "", row).replace("f,", ",").split(", ")
        assert [int(words[0]), int(words[1])] == [stage.producers, stage.warps]
        q, (*numbers, known) = stage.capacity_bytes, words[14:18]
        assert known == ("false" if q.value is None else "true")
        assert [float(n) for n in numbers] == pytest.approx([q.value or 0, q.low or 0, q.high or 0], rel=1e-8)


def test_where_the_numbers_come_from_is_on_top(header: str) -> None:
    head = header[: header.index("#ifndef")]
    for word in ("GPU-62166923-2abd-318d-cc07-b65c515cb05c", "580.159.04", "2026-11-29T19:07:46Z", "backend     cuda\n"):
        assert word in head
    assert "SIMULATED" not in head
    exported = exported_model(RUN)
    simulated = replace(exported, provenance=replace(exported.provenance, backend="sim:h200-nv18-x2", simulated=True))
    assert "sim:h200-nv18-x2, SIMULATED" in export_model(simulated, "cuh")


@pytest.mark.parametrize(
    ("pair", "flavour", "layout", "name"),
    [
        ("0>1", "st.v4", "contiguous", "pair_0_1_st_v4"),
        ("0>-1", "st.v4", "contiguous", "pair_0_host_st_v4"),
        ("7>0", "red.v4.f32", "rows256", "pair_7_0_red_v4_f32_rows256"),
    ],
)
def test_names_of_cpp(pair: str, flavour: str, layout: str, name: str) -> None:
    assert namespace(pair, flavour, layout) == name
