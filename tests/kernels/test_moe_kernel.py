"""The MoE kernel compiles in every variant, and its machine code is what the docs say: what is stored is released, then announced."""

from __future__ import annotations

import re

import h200
import pytest
from sass import asked, disassemble, kernels, prepare, unordered, without_predicate

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.build import COMBINES, MoeBuild
from xstage_bench.kernels.moe.layer import Layer, rows_of
from xstage_bench.kernels.moe.measure import case_variants
from xstage_bench.kernels.moe.order import Order
from xstage_bench.workloads.shapes import moe_shape

pytest.importorskip("cuda.bindings.nvrtc")
PROFILE = h200.MODEL


def suite_builds() -> set[MoeBuild]:
    """Every build that the suite executes, with all its options, both types and both widths of rows."""
    found = set()
    for dtype in ("bf16", "fp8"):
        layer = Layer(moe_shape("dsv4-flash"), 512, 8, dtype)
        for combine in ("bf16", "f32"):
            variants = case_variants(layer, rows_of(layer, 0), Order(), combine, 132, search=False, options=combine == "bf16")
            found |= {v.build for v in variants}
    return found


BUILDS = [
    *sorted(suite_builds(), key=str),
    *(MoeBuild(combine=combine, stamps=True) for combine in COMBINES),
    MoeBuild(fp8=True, combine="f32", dispatch=True, stamps=True),
]


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All builds that the chosen tests of this file ask for, disassembled together."""
    prepare("moe", [build.cubin for build in dict.fromkeys(p["build"] for p in asked(request) if "build" in p)])


RELEASED = r"MEMBAR\.(ALL|SC)\.(GPU|SYS)"
COUNTED = r"REDG\.E\.ADD\.STRONG\.GPU"  # a tile's, or a pulled row's
TOLD = r"REDG\.E\.ADD\.STRONG\.SYS"  # the other ranks'


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:5]))
def test_what_is_stored_is_released_before_it_is_announced(build: MoeBuild) -> None:
    """By the thread that announces, on every path; and who has seen it announced fences before its copy engine reads.

    A wait for bulk stores makes them visible to the thread that waits: a release must come between it and the count.
    """
    code = kernels(build.cubin())["xstage_moe"]
    stored_at = build.shared_bytes - 16  # what a warpgroup tells the warp that publishes for it
    handed_on = rf"LDS\S* R\d+, \[U?R\d+\+({stored_at:#x}|{stored_at + 4:#x})\]"
    for pattern in (handed_on, COUNTED, TOLD):
        assert any(re.match(pattern, without_predicate(line)) for line in code), pattern
    assert not unordered(code, handed_on, COUNTED, RELEASED)
    assert not unordered(code, r"DEPBAR\.LE SB0", COUNTED, RELEASED), "rows pulled by bulk copies"
    # A full wait makes the cache forget what it has; the one for the sources only does not.
    assert not unordered(code, r"UBLKCP\.G\.S", COUNTED, r"CCTL\.IVALL")
    assert not unordered(code, r"UBLKCP\.G\.S", TOLD, r"CCTL\.IVALL")
    assert not unordered(code, r"STG\.E\.128|UBLKCP\.G\.S|DEPBAR\.LE SB0|BAR\.SYNC", TOLD, r"MEMBAR\.(ALL|SC)\.SYS")
    scouted = rf"LDS R\d+, \[U?R\d+\+{stored_at + 8:#x}\]"
    assert not unordered(code, rf"LDG\.E\.STRONG\.GPU|{scouted}", r"UTMALDG", r"FENCE\.VIEW\.ASYNC\.G")


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:5]))
def test_machine_code(build: MoeBuild) -> None:
    code = disassemble(build.cubin())
    code = code.partition("WARPSYNC.COLLECTIVE")[0]  # behind it: copies for warps that have diverged, which never happens

    def count(pattern: str) -> int:
        return len(re.findall(pattern, code))

    assert count(r"\bQGMMA\b" if build.fp8 else r"\bHGMMA\b") == 8  # one stage: four steps of two halves
    assert count(r"\bHMMA\b") == 0
    assert count(r"UTMALDG") == 2
    assert count(r"\b(LDL|STL)\b") == 0, "accumulators in local memory"
    first, last = code.index("GMMA"), code.rindex("GMMA")
    assert code.count("\n", first, last) <= 80, "products of a stage follow one another: twice as long with descriptors made in each thread"
    rows = {"none": 0, "bf16": 16, "f32": 32, "fp8": 8}[build.combine]  # warp-stores of 32 rows
    activations = 4 if build.fp8 else 8
    reduced = 2 if build.combine == "fp8" else 1  # the reduction stores too: 16 columns of bf16, or 8
    assert count(r"STG\.E\.128") == rows + activations + reduced
    assert (count(r"UBLKCP") > 0) == build.dispatch
    assert count(r"USETMAXREG") == 2
    assert count(r"SYNCS\.EXCH") == 2 * build.stages + 4


def test_a_ring_of_another_length_is_refused() -> None:
    for stages in (3, 6):
        with pytest.raises(UsageError, match="stages"):
            MoeBuild(stages=stages)


def test_it_leaves_room_for_one_cta() -> None:
    assert all(build.shared_bytes <= 227 * 1024 for build in BUILDS)
