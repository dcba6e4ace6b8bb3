"""The attention kernel compiles for Hopper, and its machine code is the kernel that its page describes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sass import asked, disassemble, kernels, prepare, unordered, without_predicate

from xstage_bench.device.cuda.compile import ARCHITECTURES, HOPPER, compile_kernel
from xstage_bench.io.assets import asset_dir
from xstage_bench.kernels.attention import attention, check, transfer
from xstage_bench.kernels.attention.attention import FLAGS, SHARED_LIMIT_BYTES, STORES, AttentionBuild, best_build, builds_of

pytest.importorskip("cuda.bindings.nvrtc")
CUDA = asset_dir("cuda")
EVERY_BUILD = [build for head_dim in (64, 128) for store in STORES for build in builds_of(head_dim, store)]


@cache
def opcodes(build: AttentionBuild) -> Counter[str]:
    """Count the instructions of a build, with their modifiers."""
    return Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\d\s+)?([A-Z][A-Z0-9_.]+)", disassemble(build.cubin()), flags=re.MULTILINE))


def total(counts: Counter[str], prefix: str) -> int:
    return sum(n for name, n in counts.items() if name == prefix or name.startswith(prefix + "."))


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All builds that the chosen tests of this file ask for, disassembled together."""
    prepare("attention", [build.cubin for build in dict.fromkeys(p["build"] for p in asked(request) if "build" in p)])


@pytest.mark.parametrize("build", EVERY_BUILD, ids=str)
def test_products_are_in_flight_nothing_is_spilled_and_no_store_is_awaited(build: AttentionBuild) -> None:
    counts = opcodes(build)
    # Scores twice (the first block of a tile, and the loop), outputs twice (the loop, and the last block).
    assert total(counts, "HGMMA") == 2 * (build.head_dim // 16 + build.keys // 16)
    # One wait for the first scores, two in the loop, one for the last outputs: ptxas serialises products by waiting after each.
    assert counts["WARPGROUP.DEPBAR.LE"] == 4
    assert total(counts, "LDL") + total(counts, "STL") == 0
    assert total(counts, "HMMA") == 0
    assert counts["USETMAXREG.TRY_ALLOC.CTAPOOL"] == 1
    assert counts["USETMAXREG.DEALLOC.CTAPOOL"] == 1
    assert total(counts, "UTMALDG") > 0
    # Rows leave as stores of 16 bytes, or by the copy engine.
    assert counts["STG.E.128"] == 16 * build.head_dim * 2 // 512
    assert total(counts, "UTMASTG") == (build.head_dim // 64 if build.store == "bulk" else 0)
    far = [name for name in counts if name.startswith("MEMBAR") and not name.endswith("CTA")]
    assert far == [], "nothing waits for the stores where no flag is published"
    assert total(counts, "STSM") == build.head_dim // 16


FLAGGED = [
    *(replace(AttentionBuild(128, 176, 2), flags=flags) for flags in FLAGS[1:]),
    AttentionBuild(64, 128, 3, store="bulk", flags="end"),
]


@pytest.mark.parametrize("build", FLAGGED, ids=str)
def test_who_stores_a_flag_has_released_itself_what_it_announces(build: AttentionBuild) -> None:
    """On every path from what the consumers tell the flag warp; bulk stores are waited for as a whole, not for their sources only."""
    code = kernels(build.cubin())["xstage_attention"]
    stored_at = build.shared_bytes - 4 * 4 * build.consumers
    told = rf"LDS\S* R\d+, \[U?R\d+\+{stored_at:#x}\]"
    flag = rf"{'STG' if build.flags == 'tile' else 'REDG'}\.E\S*\.STRONG\.SYS"
    for pattern in (told, flag):
        assert any(re.match(pattern, without_predicate(line)) for line in code), pattern
    assert not unordered(code, told, flag, r"MEMBAR\.(ALL|SC)\.SYS")
    waits = [after for line, after in pairwise(code) if re.match(r"DEPBAR\.LE SB0", line)]
    assert len(waits) == (2 if build.store == "bulk" else 0), "in the loop, and after the last tile"
    assert all(after.startswith("CCTL.IVALL") for after in waits), "not a wait for the sources"


@pytest.mark.parametrize("build", FLAGGED, ids=str)
def test_only_the_flag_warp_releases(build: AttentionBuild) -> None:
    counts = opcodes(build)
    assert counts["MEMBAR.ALL.SYS"] == 2  # one before flags are set, one after others' were seen
    assert counts["WARPGROUP.DEPBAR.LE"] == 4
    assert total(counts, "LDL") + total(counts, "STL") == 0


@pytest.fixture
def asserting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Compile a source of cuda/, or one that includes it, with assertions behind it."""

    def compiled(text: str, equal: Mapping[str, np.dtype[Any]], more: str = "true", arch: str = HOPPER, **defines: str) -> None:
        sizes = [f"sizeof({name}) == {dtype.itemsize}" for name, dtype in equal.items()]
        (tmp_path / "mirror.cu").write_text(f'{text}\nstatic_assert({" && ".join([*sizes, more])}, "mirror");\n')
        assert compile_kernel("mirror.cu", arch, defines)[:4] == b"\x7fELF"

    for name in CUDA.glob("*.cuh"):
        shutil.copy(name, tmp_path)
    monkeypatch.setattr("xstage_bench.device.cuda.compile.asset_dir", lambda name: tmp_path)
    return compiled


def test_the_host_mirrors_the_structs_and_the_shared_memory_of_the_kernel(asserting: Callable[..., None]) -> None:
    sizes = {"AttentionPlan": attention.PLAN, "Wait": attention.WAIT, "Stamp": attention.STAMP, "Report": attention.REPORT}
    text = '#include "attention_plan.cuh"\nextern "C" __global__ void f() {}'
    for build in {replace(b, store="st.v4") for b in (*EVERY_BUILD, AttentionBuild(128, 128, 2, 1), AttentionBuild(64, 96, 3, 4))}:
        assert build.shared_bytes <= SHARED_LIMIT_BYTES
        asserting(text, sizes, "SHARED_BYTES == SHARED", **build.defines(), SHARED=str(build.shared_bytes))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernels_beside_it_compile_everywhere_with_the_structs_of_the_host(asserting: Callable[..., None], arch: str) -> None:
    sources = {name: (CUDA / name).read_text() for name in ("attention_check.cu", "transfer.cu")}
    asserting(sources["attention_check.cu"], {"CheckPlan": check.CHECK_PLAN, "CheckSums": check.CHECK_SUMS}, arch=arch)
    asserting(sources["transfer.cu"], {"Piece": transfer.PIECE}, arch=arch)


def test_the_build_follows_waves_and_whole_blocks_of_keys() -> None:
    assert best_build(128, "st.v4", 32760, 10, 132).keys == 176
    assert best_build(128, "st.v4", 4096, 3, 132).keys == 128, "4096 keys are 32 whole blocks"
    assert best_build(64, "st.v4", 8192, 16, 132).tile_rows == 128, "1024 tiles fill 8 waves, 688 of 192 rows only 5.2 of 6"
    assert not any(build.staged_over_queries for build in builds_of(128, "bulk"))


def test_no_trap_in_a_kernel_that_raises_its_registers() -> None:
    """With __trap() in it ptxas keeps the registers of the launch and serialises the products (found by its message C7512)."""
    sources = [p for p in CUDA.glob("*.cu*") if p.name.startswith(("hopper_", "attention"))]
    assert len(sources) > 5
    for path in sources:
        code = re.sub(r"//.*", "", path.read_text())
        assert "__trap" not in code, path.name
