"""Every kernel compiles for every architecture it declares, and its machine code is the instrument we think it is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel, sources_hash
from xstage_bench.errors import XStageError
from xstage_bench.schedule import WARP_STORE_BYTES

pytest.importorskip("cuda.bindings.nvrtc")

FLAVOURS = {"st.v4": ("st_v4", r"STG\.E\.128 ")}


def nvdisasm() -> str:
    bundled = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    found = str(bundled) if bundled.exists() else shutil.which("nvdisasm")
    if found is None:
        pytest.fail("nvdisasm is missing: pip install nvidia-cuda-nvdisasm (part of the dev extra)")
    return found


def sass(cubin: bytes, path: Path) -> list[str]:
    path.write_bytes(cubin)
    text = subprocess.run([nvdisasm(), "-c", str(path)], check=True, capture_output=True, text=True).stdout
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if (line and not line.startswith((".", "//"))) or line.startswith(".L")]


def burst_region(lines: list[str], store: str) -> tuple[list[str], list[str]]:
    """Return the code between the clock reads around the stores, and everything else."""
    stores = [i for i, line in enumerate(lines) if re.search(store, line)]
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCKLO" in line]
    first = max(i for i in clocks if i < stores[0])
    last = min(i for i in clocks if i > stores[-1])
    return lines[first + 1 : last], lines[:first] + lines[last + 1 :]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", ["burst.cu", "verify.cu"])
def test_every_kernel_compiles(source: str, arch: str) -> None:
    assert compile_kernel(source, arch, cache=False)[:4] == b"\x7fELF"


def test_every_flavour_has_a_sass_expectation() -> None:
    assert set(FLAVOURS) == set(WARP_STORE_BYTES)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_burst_has_exactly_its_stores_between_the_clock_reads(flavour: str, arch: str, tmp_path: Path) -> None:
    function, store = FLAVOURS[flavour]
    lines = sass(compile_kernel("burst.cu", arch, {"XSTAGE_FLAVOUR": function}, cache=False), tmp_path / "k.cubin")
    inside, outside = burst_region(lines, store)

    assert sum(bool(re.search(store, line)) for line in inside) == layout.GROUP + 1, "an unrolled group and the single-store remainder"
    assert not [line for line in outside if re.search(store, line)], "the measured flavour occurs nowhere else"
    forbidden = r"\b(LDG|LDS|LDC|LDL|STL|STS|BAR|MEMBAR|ATOM|RED|SR_CLOCK|SR_GLOBALTIMER|CALL)"
    assert not [line for line in inside if re.search(forbidden, line) and not re.search(store, line)]
    assert not [line for line in lines if re.search(r"\b(LDL|STL)", line)], "no spill, no array in local memory"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_fences_between_two_bursts(arch: str, tmp_path: Path) -> None:
    """From the barrier of the storing warps to the end of the burst loop there is no MEMBAR: it would empty the stage (FACTS, trap 1)."""
    lines = sass(compile_kernel("burst.cu", arch, cache=False), tmp_path / "k.cubin")
    stores = [i for i, line in enumerate(lines) if re.search(FLAVOURS["st.v4"][1], line)]
    fences = [i for i, line in enumerate(lines) if "MEMBAR.SC.SYS" in line]
    barrier = max(i for i in range(stores[0]) if re.search(r"BAR\.SYNC\S* 0x1", lines[i]))
    assert len(fences) == 1
    assert fences[0] > stores[-1]
    assert not [line for line in lines[barrier : stores[-1]] if "MEMBAR" in line or "ERRBAR" in line]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_time_lines_stamp_every_store(arch: str, tmp_path: Path) -> None:
    lines = sass(compile_kernel("burst.cu", arch, {"XSTAGE_TIMELINE": "1"}, cache=False), tmp_path / "k.cubin")
    stores = [i for i, line in enumerate(lines) if re.search(FLAVOURS["st.v4"][1], line)]
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCKLO" in line and stores[0] < i]
    assert len(stores) == layout.GROUP + 1
    assert len(clocks) >= len(stores)


def test_the_host_mirrors_the_structs_of_the_kernels() -> None:
    """The sizes that the C++ compiler sees are those of the numpy dtypes."""
    from xstage_bench.assets import asset_dir

    text = (asset_dir("cuda") / "burst.cu").read_text() + (asset_dir("cuda") / "verify.cu").read_text()
    pairs = {"Item": layout.ITEM, "Burst": layout.BURST, "Stamp": layout.STAMP, "Verdict": layout.VERDICT, "Control": layout.CONTROL}
    for name, dtype in {**pairs, "Finding": layout.FINDING}.items():
        body = re.search(rf"struct {name} {{.*?\n(.*?)\n}};", text, re.S)
        assert body, name
        fields: list[tuple[str, str]] = []
        for kind, names in re.findall(r"(u32|u64) ([^;]+);", body.group(1)):
            fields += [(kind, n.strip()) for n in names.split(",")]
        expected = [(f"{n}[{d.shape[0]}]" if d.shape else n, "u64" if d.base.itemsize == 8 else "u32") for n, (d, *_) in _fields(dtype)]
        assert [(n, k) for k, n in fields] == expected, name


def _fields(dtype: np.dtype) -> list[tuple[str, tuple[np.dtype, int]]]:
    assert dtype.fields is not None
    return [(name, dtype.fields[name]) for name in dtype.names or ()]


def test_a_broken_source_names_the_file_and_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void f() { undeclared(); }\n')
    monkeypatch.setattr("xstage_bench.device.cuda.compile.asset_dir", lambda name: tmp_path)
    with pytest.raises(XStageError, match=r"bad\.cu\(1\).*undeclared"):
        compile_kernel("bad.cu", "sm_90", cache=False)


def test_the_cache_is_keyed_by_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "k.cu").write_text('#include "h.cuh"\nextern "C" __global__ void f(int *p) { *p = VALUE; }\n')
    (tmp_path / "cuda" / "h.cuh").write_text("#define VALUE 1\n")
    monkeypatch.setattr("xstage_bench.device.cuda.compile.asset_dir", lambda name: tmp_path / name)
    monkeypatch.setenv("XSTAGE_CACHE_DIR", str(tmp_path / "cache"))
    before, first = sources_hash(), compile_kernel("k.cu", "sm_90")
    assert compile_kernel("k.cu", "sm_90") == first
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 1
    (tmp_path / "cuda" / "h.cuh").write_text("#define VALUE 2\n")
    assert sources_hash() != before
    assert compile_kernel("k.cu", "sm_90") != first
