"""The MoE kernel compiles in every variant, and its machine code is what the docs say."""

from __future__ import annotations

import re

import pytest
from sass import disassemble

from xstage_bench.errors import UsageError
from xstage_bench.fused.moe.build import CLAIMS, COMBINES, PUBLISHES, Build

pytest.importorskip("cuda.bindings.nvrtc")
BUILDS = [
    *(Build(fp8=fp8, combine=combine) for fp8 in (False, True) for combine in COMBINES),
    *(Build(fp8=True, publish=publish) for publish in PUBLISHES[1:]),
    Build(dispatch=True, publish="elsewhere", stamps=True),
    Build(fp8=True, dispatch=True),
    *(Build(fp8=fp8, combine=combine, row_store="bulk") for fp8, combine in ((False, "bf16"), (True, "f32"), (True, "fp8"))),
    Build(row_store="bulk", dispatch=True, publish="bulk"),
    *(Build(fp8=fp8, claim=claim) for fp8 in (False, True) for claim in CLAIMS[1:]),
    *(Build(claim=claim, dispatch=True, publish="bulk", row_store="bulk", stamps=True) for claim in CLAIMS[1:]),
    *(Build(fp8=True, claim=claim, combine="f32", publish="elsewhere") for claim in CLAIMS[1:]),
    *(Build(fp8=fp8, combine=combine, presum=True) for fp8 in (False, True) for combine in ("bf16", "f32")),
    Build(fp8=True, presum=True, dispatch=True, publish="elsewhere", stamps=True),
    Build(presum=True, publish="bulk"),
    *(Build(fp8=fp8, stages=4, publish="bulk") for fp8 in (False, True)),
]


@pytest.mark.parametrize("build", BUILDS, ids=lambda b: "-".join(list(b.defines().values())[:7]))
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
    activations = 0 if build.publish == "bulk" else (4 if build.fp8 else 8)
    reduced = 2 if build.combine == "fp8" else 1  # the reduction stores too: 16 columns of bf16, or 8
    sums = {"bf16": 4, "f32": 8}[build.combine] if build.presum else 0
    assert count(r"STG\.E\.128") == rows + activations + sums + reduced
    # Sums before sending: 16 rows of both halves, two groups of eight columns an instruction; one release and acquire for all of them.
    assert count(r"REDG\.E\.ADD\.F32x4") == 32 * build.presum
    assert count(r"UTMASTG") == (2 if build.publish == "bulk" else 0)
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
