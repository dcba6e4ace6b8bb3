"""Stamps of a Triton kernel, compiled without a GPU: they enclose the stores, and switched off they are nothing."""

from __future__ import annotations

import re

import pytest

triton = pytest.importorskip("triton", reason="pip install triton")
import triton.language as tl  # noqa: E402

from xstage_bench.triton import begin, burst_end  # noqa: E402


@triton.jit
def stamped(peer, buffer, count, WARPS: tl.constexpr, ON: tl.constexpr):
    at = tl.arange(0, 2048)
    origin = begin(ON)
    for t in range(count):
        work = (at * t).to(tl.float32)
        begun = begin(ON)
        tl.store(peer + tl.program_id(0) * 2048 + at, work)
        burst_end(buffer, origin, begun, t, 8192, 64, WARPS, ON)


@triton.jit
def plain(peer, buffer, count, WARPS: tl.constexpr, ON: tl.constexpr):
    at = tl.arange(0, 2048)
    for t in range(count):
        work = (at * t).to(tl.float32)
        tl.store(peer + tl.program_id(0) * 2048 + at, work)


def compiled(kernel: object, on: bool, arch: int, folder: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    types = {"peer": "*fp32", "buffer": "*i32", "count": "i32", "WARPS": "constexpr", "ON": "constexpr"}
    source = triton.compiler.ASTSource(kernel, types, {"WARPS": 4, "ON": on})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4}).asm  # type: ignore[no-any-return]


def instructions(ptx: str) -> list[str]:
    """What is executed, in order, without names and places in the source."""
    body = ptx[ptx.index("{") : ptx.index("// -- End function") if "// -- End function" in ptx else None]
    return [
        re.sub(r"(stamped|plain)_param", "param", line.split("//")[0].strip())
        for line in body.splitlines()
        if re.match(r"\s+(@|[a-z])", line)
    ]


@pytest.mark.parametrize("arch", [80, 90])
def test_stamps_enclose_the_stores_and_are_nothing_when_off(arch: int, tmp_path, monkeypatch) -> None:
    on, off, none = (
        instructions(compiled(k, s, arch, tmp_path, monkeypatch)["ptx"]) for k, s in ((stamped, True), (stamped, False), (plain, False))
    )
    assert off == none
    assert off
    clocks = [i for i, line in enumerate(on) if "%clock64" in line]
    (fence,) = (i for i, line in enumerate(on) if line.startswith("fence.acq_rel.cta"))
    barriers = [i for i, line in enumerate(on) if line.startswith("bar.sync")]
    begun, ended = max(c for c in clocks if c < fence), min(c for c in clocks if c > fence)
    inside = [i for i, line in enumerate(on) if "st.global" in line and begun < i < ended]
    assert inside, "the stores of the tile lie between both clocks"
    assert max(inside) < fence, "all of them before the fence, so that they are taken when the burst ends"
    assert [b for b in barriers if fence < b < ended], "and every warp has met before the clock is read"
