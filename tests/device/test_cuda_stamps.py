"""What the two clock reads behind a burst wait for, read off the machine code: that is what the two stamps mean (docs/method.md).

A store frees a scoreboard when the SM has read its registers, that is, has taken it; an instruction that waits for that scoreboard waits
until then. `issued` must wait for none of its burst's last stores, `taken` for a read of shared memory that was started behind them.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from kernel_code import reads_behind, waits_of_issued
from sass import asked, instructions, prepare

from xstage_bench.device.cuda.compile import compile_kernel, compile_source
from xstage_bench.device.cuda.variant import Variant
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

pytest.importorskip("cuda.bindings.nvrtc")


def burst_cubin(variant: Variant, arch: str, spoil: tuple[str, str] | None = None) -> bytes:
    """Compile the burst kernel, with a replacement in one of its headers."""
    words, headers = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0))}, variant.headers()
    if spoil is None:
        return compile_kernel("burst.cu", arch, words, headers)
    (found,) = [p for p in asset_dir("cuda").glob("*.cuh") if spoil[0] in p.read_text()]
    headers = {**headers, found.name: found.read_text().replace(*spoil)}
    return compile_source((asset_dir("cuda") / "burst.cu").read_text(), "burst.cu", arch, words, headers)


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All variants that the chosen tests of this file ask for, disassembled together."""
    cases = dict.fromkeys((p["flavour"], p["layout"], p["arch"]) for p in asked(request) if "flavour" in p)
    prepare("stamps", [partial(burst_cubin, Variant(FLAVOURS[f], layout), arch) for f, layout, arch in cases], "-hex")


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
    unread, late = (instructions(burst_cubin(Variant(flavour), "sm_90", spoil), "xstage_burst") for spoil in (NO_READ, OVERWRITTEN))
    assert not reads_behind(unread, flavour.sass)
    assert waits_of_issued(late, flavour.sass)
