"""What the two clock reads behind a burst wait for, read off the machine code: that is what the two stamps mean (docs/method.md).

A store frees a scoreboard when the SM has read its registers, that is, has taken it; an instruction that waits for that scoreboard waits
until then. `issued` must wait for none of its burst's last stores, `taken` for a read of shared memory that was started behind them.
"""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest
from sass import Instruction, asked, between, instructions, prepare

from xstage_bench.device.cuda.compile import compile_kernel, compile_source
from xstage_bench.device.cuda.variant import Variant
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

pytest.importorskip("cuda.bindings.nvrtc")
CLOCK = "SR_CLOCKLO"
NEAR = 24  # instructions, between the two clock reads of a burst


def burst_cubin(variant: Variant, arch: str) -> bytes:
    return compile_kernel("burst.cu", arch, {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0))}, variant.headers())


def spoilt_cubin(variant: Variant, arch: str, spoil: tuple[str, str]) -> bytes:
    """As `burst_cubin`, with a replacement in one of the headers."""
    words = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0))}
    found = [p for p in asset_dir("cuda").glob("*.cuh") if spoil[0] in p.read_text()]
    assert len(found) == 1, f"{spoil[0]!r} stands in {len(found)} headers"
    headers = {**variant.headers(), found[0].name: found[0].read_text().replace(*spoil)}
    return compile_source((asset_dir("cuda") / "burst.cu").read_text(), "burst.cu", arch, words, headers)


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All variants that the chosen tests of this file ask for, disassembled together."""
    cases = dict.fromkeys((p["flavour"], p["layout"], p["arch"]) for p in asked(request) if "flavour" in p)
    prepare("stamps", [partial(burst_cubin, Variant(FLAVOURS[f], layout), arch) for f, layout, arch in cases], "-hex")


def stamps_of(code: list[Instruction], store: str, count: int = 4) -> tuple[list[int], int, int]:
    """Return the burst's stores, so many, and the clock reads `issued` and `taken` behind them."""
    clocks = [i for i, x in enumerate(code) if CLOCK in x.text]
    for start, issued, taken in zip(clocks, clocks[1:], clocks[2:], strict=False):
        stores = [i for i in range(start, issued) if re.search(store, code[i].text)]
        if len(stores) == count and taken - issued < NEAR:
            return stores, issued, taken
    raise AssertionError("no burst with two clock reads behind it")


def waits_of_issued(code: list[Instruction], store: str) -> list[str]:
    """Return what waits for a last store to be taken before, or at, the clock read `issued`."""
    stores, issued, _ = stamps_of(code, store)
    ways = {s: between(code, s, issued, set(stores)) for s in stores}
    return [f"{code[s].text} <- {code[i].text}" for s, way in ways.items() for i in sorted(way) if code[s].read in code[i].waits]


def reads_behind(code: list[Instruction], store: str, count: int = 4) -> bool:
    """Whether an instruction before `taken` waits for a read of shared memory that begins after every store."""
    stores, _, taken = stamps_of(code, store, count)
    loads = [i for i in range(max(stores), taken) if code[i].plain.startswith("LDS")]
    return any(code[i].written in x.waits for i in loads for x in code[i + 1 : taken + 1] if x.plain == x.text)


EVERY = [(n, "contiguous", a) for n, f in FLAVOURS.items() for a in f.architectures if f.alias_of is None]
LAID_OUT = [
    (f, y, "sm_90")
    for f, y in itertools.product(("st.v4", "st.v2", "red.f32"), LAYOUTS)
    if LAYOUTS[y].takes(FLAVOURS[f]) and y != "contiguous"
]


#: Where `issued` may still wait for a store: the loop's own branch does (sm_80), an address is computed between two stores, or the compiler
#: copies the vector of a reduction. There it says at most what `taken` says (docs/method.md).
MAY_WAIT = {
    *((f, "contiguous", "sm_80") for f in ("st.v2", "st.b32")),
    *(("red.f32", y, "sm_90") for y in ("rows256", "tile128")),
    *((f, "contiguous", a) for f in ("red.v4.f32", "red.v4.bf16x2") for a in ("sm_90", "sm_100")),
}


@pytest.mark.parametrize(("flavour", "layout", "arch"), [*EVERY, *LAID_OUT])
def test_each_stamp_waits_for_what_it_means(flavour: str, layout: str, arch: str) -> None:
    known = FLAVOURS[flavour]
    code = instructions(burst_cubin(Variant(known, layout), arch), "xstage_burst")
    if not known.bulk and (flavour, layout, arch) not in MAY_WAIT:  # a bulk copy holds no register once it has been started
        assert waits_of_issued(code, known.sass) == []
    assert reads_behind(code, known.sass, 1 if known.bulk else known.group)


NO_READ = ("ld.volatile.shared.u32 mask, [%1];", "mov.u32 mask, 0xffffffff;")
# The word of the last store is counted up behind it, in its own register, and the clock is read only then.
OVERWRITTEN = (
    "  return {start, sm_clock(), x, {(u64)to}};",
    """  u64 late;
  asm volatile("add.u32 %1, %1, 3; shfl.sync.idx.b32 %1, %1, 0, 31, -1; mov.u64 %0, %%clock64;" : "=l"(late), "+r"(x) :: "memory");
  return {start, late, x, {(u64)to}};""",
)


def test_a_stamp_that_means_something_else_is_found_out() -> None:
    flavour = FLAVOURS["st.v4"]
    assert not reads_behind(instructions(spoilt_cubin(Variant(flavour), "sm_90", NO_READ), "xstage_burst"), flavour.sass)
    assert waits_of_issued(instructions(spoilt_cubin(Variant(flavour), "sm_90", OVERWRITTEN), "xstage_burst"), flavour.sass)
