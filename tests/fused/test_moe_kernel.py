"""The MoE kernel compiles in every variant, and its machine code is what the docs say: what is stored is released, then announced."""

from __future__ import annotations

import re

import h200
import pytest
from sass import asked, disassemble, kernels, prepare, unordered, without_predicate

from xstage_bench.errors import UsageError
from xstage_bench.fused.moe.build import CLAIMS, COMBINES, PUBLISHES, UNSAFE_PUBLISHES, Build
from xstage_bench.fused.moe.forecast import TileTimes
from xstage_bench.fused.moe.layer import Layer, rows_of
from xstage_bench.fused.moe.measure import PUBLISH, case_variants
from xstage_bench.fused.moe.order import Order
from xstage_bench.model.stage import stage_at
from xstage_bench.pipeline import find_model
from xstage_bench.workloads.shapes import moe_shape

pytest.importorskip("cuda.bindings.nvrtc")
PROFILE = h200.MODEL


def suite_builds() -> set[Build]:
    """Every build that the suite executes, with all its options, both types and both widths of rows."""
    times = TileTimes(linear1_ns=1.0, linear2_ns=1.0, linear1_rest_ns=1.0, linear2_rest_ns=1.0)
    stage = stage_at(find_model(PROFILE), 132, 4)
    found = set()
    for dtype in ("bf16", "fp8"):
        layer = Layer(moe_shape("dsv4-flash"), 512, 8, dtype)
        rows = rows_of(layer, 0)
        for combine in ("bf16", "f32"):
            options = {"options": True, "times": times, "stage": stage} if combine == "bf16" else {}
            found |= {v.build for v in case_variants(layer, rows, Order(), combine, 132, search=False, **options)}
    return found


SUITE = suite_builds()
BUILDS = [
    *sorted(SUITE, key=str),
    *(Build(fp8=fp8, combine=combine, publish=PUBLISH) for fp8 in (False, True) for combine in COMBINES),
    *(Build(publish=publish) for publish in UNSAFE_PUBLISHES),
    Build(dispatch=True, publish="elsewhere", stamps=True),
    *(Build(fp8=True, combine=combine, row_store="bulk") for combine in ("f32", "fp8")),
    Build(row_store="bulk", dispatch=True, publish="bulk"),
    *(Build(claim=claim, dispatch=True, publish="bulk", row_store="bulk", stamps=True) for claim in CLAIMS[1:]),
    *(Build(fp8=True, claim=claim, combine="f32", publish="release") for claim in CLAIMS[1:]),
    *(Build(fp8=fp8, combine="f32", presum=True) for fp8 in (False, True)),
    Build(fp8=True, presum=True, dispatch=True, publish="elsewhere", stamps=True),
    Build(presum=True, publish="bulk"),
]
BUILDS = list(dict.fromkeys(BUILDS))


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All builds that the chosen tests of this file ask for, disassembled together."""
    prepare("moe", [build.cubin for build in dict.fromkeys(p["build"] for p in asked(request) if "build" in p)])


def is_bulk(build: Build) -> bool:
    """Whether activations leave by bulk stores."""
    return build.publish in ("bulk", "bulk.unsafe")


RELEASED = r"MEMBAR\.(ALL|SC)\.(GPU|SYS)"
COUNTED = r"REDG\.E\.ADD\.STRONG\.GPU"  # a tile's, or a pulled row's
TOLD = r"REDG\.E\.ADD\.STRONG\.SYS"  # the other ranks'


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:9]))
def test_what_is_stored_is_released_before_it_is_announced(build: Build) -> None:
    """By the thread that announces, on every path; and who has seen it announced fences before its copy engine reads.

    A wait for bulk stores makes them visible to the thread that waits: a release must come between it and the count.
    """
    code = kernels(build.cubin())["xstage_moe"]
    stored_at = build.shared_bytes - (192 if build.claim != "static" else 0) - 16  # what a warpgroup tells the warp that publishes for it
    handed_on = rf"LDS\S* R\d+, \[U?R\d+\+({stored_at:#x}|{stored_at + 4:#x})\]"
    seen_stored = {"release": r"BAR\.SYNC|STG\.E\.128", "elsewhere": handed_on}.get(build.publish, r"UTMASTG|DEPBAR\.LE SB0")
    assert any(re.match(seen_stored, without_predicate(line)) for line in code)
    assert any(re.match(COUNTED, line) for line in code)
    assert bool(unordered(code, seen_stored, COUNTED, RELEASED)) == (build.publish in UNSAFE_PUBLISHES), "no race but the one named so"
    if build.publish not in UNSAFE_PUBLISHES:
        assert not unordered(code, r"DEPBAR\.LE SB0", COUNTED, RELEASED), "rows pulled by bulk copies"
    # A full wait makes the cache forget what it has; the one for the sources only does not.
    copied = "UTMASTG" if build.row_store == "bulk" else r"UTMASTG|UBLKCP\.G\.S"  # rows that leave are not what is counted here
    assert not unordered(code, copied, COUNTED, r"CCTL\.IVALL")
    assert not unordered(code, r"UTMASTG|UBLKCP\.G\.S", TOLD, r"CCTL\.IVALL")
    assert not unordered(code, r"STG\.E\.128|UBLKCP\.G\.S|DEPBAR\.LE SB0|BAR\.SYNC", TOLD, r"MEMBAR\.(ALL|SC)\.SYS")
    assert not unordered(code, r"REDG\.E\.ADD\.F32x4", "ATOMG", RELEASED), "parts of sums"
    scouted = rf"LDS R\d+, \[U?R\d+\+{stored_at + 8:#x}\]"
    assert not unordered(code, rf"LDG\.E\.STRONG\.GPU|{scouted}", r"UTMALDG", r"FENCE\.VIEW\.ASYNC\.G")


def test_nobody_gets_the_race_unasked() -> None:
    assert not {build.publish for build in (Build(), *SUITE)} & set(UNSAFE_PUBLISHES)
    assert {build.publish for build in SUITE} == set(PUBLISHES) - set(UNSAFE_PUBLISHES), "all others are timed beside each other"


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:9]))
def test_machine_code(build: Build) -> None:
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
    rows = {"none": 0, "bf16": 16, "f32": 32, "fp8": 8}[build.combine] * (build.row_store == "st.v4")  # warp-stores of 32 rows
    activations = 0 if is_bulk(build) else (4 if build.fp8 else 8)
    reduced = 2 if build.combine == "fp8" else 1  # the reduction stores too: 16 columns of bf16, or 8
    sums = {"bf16": 4, "f32": 8}[build.combine] if build.presum else 0
    assert count(r"STG\.E\.128") == rows + activations + sums + reduced
    # Sums before sending: 16 rows of both halves, two groups of eight columns an instruction; one release and acquire for all of them.
    assert count(r"REDG\.E\.ADD\.F32x4") == 32 * build.presum
    assert count(r"UTMASTG") == (2 if is_bulk(build) else 0)
    assert (count(r"UBLKCP") > 0) == (build.dispatch or (build.row_store == "bulk" and build.combine != "none"))
    assert count(r"USETMAXREG") == 2
    # Nothing of the other ways to claim is in a build: no counter, no clock of the pacer, no barrier of the ring.
    assert count(r"ATOMG") == (2 if build.claim == "dynamic" else 0) + build.presum  # the first claim, and the ones ahead
    assert (count(r"SR_CLOCKLO") > 2) == (build.claim == "paced")
    assert count(r"SR_CLOCKLO") == 2 or build.claim == "paced"  # those of the report
    assert count(r"SYNCS\.EXCH") == 2 * build.stages + (4 if build.claim == "static" else 20)


def test_a_ring_of_another_length_is_refused() -> None:
    for stages in (3, 6):
        with pytest.raises(UsageError, match="stages"):
            Build(stages=stages)


def test_it_leaves_room_for_one_cta() -> None:
    assert all(build.shared_bytes <= 227 * 1024 for build in BUILDS)
