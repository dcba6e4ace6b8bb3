"""``cuda/xstage_stamps.cuh``: stamps enclose the stores, and without the switch nothing of it is left."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_source
from xstage_bench.io.assets import asset_dir

PAGE = Path(__file__).parents[2] / "docs" / "own-kernel.md"


@pytest.fixture(scope="module")
def kernel() -> str:
    found = re.search(r'SOURCE = r"""(.*?)"""', PAGE.read_text(), re.S)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_stamps_enclose_the_stores(kernel: str, arch: str, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(kernel, "tiles.cu", arch, {"XSTAGE_STAMPS_ON": "1"}), "tiles")
    stores = [i for i, line in enumerate(lines) if re.search(r"\bSTG\.E\.128\b", line)]
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCK" in line]
    fence = [i for i, line in enumerate(lines) if line.startswith("MEMBAR") and ".CTA" in line]
    assert len(fence) == 1
    before = max(c for c in clocks if c < fence[0])
    after = min(c for c in clocks if c > fence[0])
    inside = [i for i in stores if before < i < fence[0]]
    assert len(inside) == 16, "all 16 stores of a tile lie between the first clock read and the fence"
    assert not [i for i in stores if fence[0] < i < after], "nothing is stored between the fence and the second clock read"
    assert not [line for line in lines if re.search(r"\b(LDL|STL)", line)]


def test_without_the_switch_nothing_is_left(kernel: str, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(kernel, "tiles.cu", "sm_90"), "tiles")
    bare = re.sub(r"^\s*XSTAGE_.*$|^#include.*$", "", kernel, flags=re.M)
    assert lines == sass_of(compile_source(bare, "bare.cu", "sm_90"), "tiles")
    assert "CLOCK" not in "\n".join(lines)


def test_nvcc_takes_it_without_a_warning(kernel: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    (tmp_path / "tiles.cu").write_text(kernel)
    options = ["-std=c++17", "-arch=sm_90a", f"-I{asset_dir('cuda')}", "-cubin", "-Werror", "all-warnings", "-o", "tiles.cubin"]
    for switch in ([], ["-DXSTAGE_STAMPS_ON"]):
        done = subprocess.run(["nvcc", *options, *switch, "tiles.cu"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
