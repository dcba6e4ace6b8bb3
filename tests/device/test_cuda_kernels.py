"""Every kernel compiles for every architecture it declares, and its machine code is the instrument we think it is."""

from __future__ import annotations

import itertools
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernel_code import CLOCK, found, reads_behind, waits_of_issued
from sass import asked, instructions, kernels, prepare

from xstage_bench.device.cuda.compile import ALSO, ARCHITECTURES, compile_kernel, compile_source
from xstage_bench.device.cuda.variant import BULK_SHARED_BYTES, Variant
from xstage_bench.errors import WaivedError, XStageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.kernels.gpu import HopperKernel
from xstage_bench.machine.gpus import entries
from xstage_bench.schedule.flavour import FLAVOURS, Flavour, for_architecture, load_flavour
from xstage_bench.schedule.layouts import LAYOUTS

pytest.importorskip("cuda.bindings.nvrtc")


def burst_kernel(cubin: bytes) -> list[str]:
    return kernels(cubin)["xstage_burst"]


def variant_cubin(variant: Variant, arch: str, **defines: str) -> bytes:
    words = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0, timeline="XSTAGE_TIMELINE" in defines)), **defines}
    return compile_kernel("burst.cu", arch, words, variant.headers())


def variant_sass(variant: Variant, arch: str, **defines: str) -> list[str]:
    return burst_kernel(variant_cubin(variant, arch, **defines))


@pytest.fixture(scope="module", autouse=True)
def machine_code(request: pytest.FixtureRequest) -> None:
    """All variants that the chosen tests of this file ask for, disassembled together."""
    chosen = asked(request)
    cases = {(p["name"], p.get("layout", "contiguous"), p.get("arch", "sm_90")) for p in chosen if p.get("name") in FLAVOURS}
    taken = sorted(c for c in cases if c[2] in FLAVOURS[c[0]].architectures and LAYOUTS[c[1]].takes(FLAVOURS[c[0]]))
    makers = [partial(variant_cubin, Variant(FLAVOURS[name], layout), arch) for name, layout, arch in taken]
    ends = sorted({p["name"] + p["who"] for p in chosen if "who" in p})
    prepare("burst", makers + [partial(variant_cubin, Variant(FLAVOURS["st.v4"], completion=end), "sm_90") for end in ends])
    stamped = dict.fromkeys((p["flavour"], p["layout"], p["arch"]) for p in chosen if "flavour" in p)
    prepare("stamps", [partial(variant_cubin, Variant(FLAVOURS[f], layout), arch) for f, layout, arch in stamped], "-hex")


def burst_of(lines: list[str], flavour: Flavour) -> tuple[list[str], list[str]]:
    """Return the code between the two clock reads with the stores of one unrolled group, or one bulk copy, and everything else."""
    expected = 1 if flavour.bulk else flavour.group
    for a, b in itertools.pairwise(found(lines, CLOCK)):
        if len(found(lines[a:b], flavour.sass)) == expected:
            return lines[a + 1 : b], lines[:a] + lines[b + 1 :]
    raise AssertionError(f"no two clock reads with {expected} {flavour.sass} between them")


def opcodes(lines: list[str]) -> list[str]:
    """Instructions without their registers and predicates; labels and hints to the scheduler left out."""
    words = [re.sub(r"^@!?U?P\d+ ", "", line).split(maxsplit=1)[0].rstrip(";") for line in lines]
    return [word for word in words if not word.startswith(".L") and word not in ("YIELD", "NOP")]


def loops(lines: list[str]) -> list[list[str]]:
    """Return the opcodes of every loop: from a label to the branch back to it."""
    at = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L")}
    back = [(at[m.group(1)], i) for i, line in enumerate(lines) if (m := re.search(r"BRA.*`\((\S+)\)", line)) and at.get(m.group(1), i) < i]
    return [opcodes(lines[a : b + 1]) for a, b in back]


EVERY = [(name, "contiguous", arch) for name, f in FLAVOURS.items() for arch in f.architectures]
LAID_OUT = [
    (name, layout, "sm_90")
    for name in ("st.v4", "st.b32", "red.v4.f32", "bulk.256", "tensor.16384")
    for layout in LAYOUTS
    if layout != "contiguous" and LAYOUTS[layout].takes(FLAVOURS[name])
]


@pytest.mark.parametrize(("name", "layout", "arch"), [*EVERY, *LAID_OUT])
def test_the_burst_has_exactly_its_stores_between_the_clock_reads(name: str, layout: str, arch: str) -> None:
    flavour = FLAVOURS[name]
    lines = variant_sass(Variant(flavour, layout), arch)
    inside, outside = burst_of(lines, flavour)
    if layout == "contiguous" and flavour.bytes >= 16 and not flavour.bulk:
        assert not found(outside, flavour.sass), "the measured flavour occurs nowhere else"
    forbidden = r"\b(LDG|LDS|LDL|STL|STS|BAR|ATOM|SR_CLOCK|SR_GLOBALTIMER|CALL"
    forbidden += "|LDC" if layout == "contiguous" else ""
    forbidden += "" if name == "st.v4.release.sys" else "|MEMBAR|RED"  # a release is a fence before each store: that is what it costs
    assert not found([line for line in inside if not re.search(flavour.sass, line)], rf"{forbidden})\b")
    assert not found(lines, r"\b(LDL|STL)"), "no spill, no array in local memory"


def test_the_stores_of_a_turn_are_of_the_same_registers() -> None:
    """Copies would be made between two stores, and wait there until the first one has been taken."""
    inside, _ = burst_of(variant_sass(Variant(FLAVOURS["st.v4"]), "sm_90"), FLAVOURS["st.v4"])
    (turn,) = loops(inside)
    stores = [line for line in inside if "STG.E.128" in line]
    assert turn.count("STG.E.128") == len(stores) == 4
    assert len({re.split(r"[\s,]+", line)[-2] if line.endswith(" ;") else line.rstrip(";").split(",")[-1].strip() for line in stores}) == 1
    between = opcodes(inside[inside.index(stores[0]) : inside.index(stores[-1]) + 1])
    assert set(between) == {"STG.E.128"}


@pytest.mark.parametrize("name", [n for n, f in FLAVOURS.items() if not f.bulk and f.kind == "store"])
def test_flavours_of_equal_machine_code_are_one_row(name: str) -> None:
    """An alias has the same instructions in its loops as its original; no flavour that is none has those of an earlier one."""
    flavour = FLAVOURS[name]
    shared = [a for a in flavour.architectures if a != "sm_80"]
    earlier = [f for f in FLAVOURS.values() if f.kind == "store" and f.alias_of is None and set(shared) <= set(f.architectures)]
    earlier = earlier[: earlier.index(flavour)] if flavour in earlier else [FLAVOURS[flavour.alias_of or ""]]

    def code(f: Flavour) -> list[list[list[str]]]:
        bursts = (burst_of(variant_sass(Variant(f), arch), f)[0] for arch in shared)
        return [[sorted(loop) for loop in loops(lines)] for lines in bursts]

    mine = code(flavour)
    same = [f.name for f in earlier if f.sass == flavour.sass and f.bytes == flavour.bytes and code(f) == mine]
    assert same == ([flavour.alias_of] if flavour.alias_of else [])


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", ["verify.cu", "copies.cu"])
def test_every_kernel_compiles(source: str, arch: str) -> None:
    assert compile_kernel(source, arch)[:4] == b"\x7fELF"


def test_plain_kernels_are_for_every_gpu_of_the_registry() -> None:
    """`make kernels` compiles all of them; here one, since they take seconds."""
    assert {e.facts.architecture for e in entries().values()} <= {*ARCHITECTURES, *ALSO}
    for arch in ALSO:
        assert compile_kernel("verify.cu", arch)[:4] == b"\x7fELF"
        assert {"st.v4", "red.f32"} <= set(for_architecture(arch))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_a_fused_kernel_says_why_it_cannot_run_here(capability: tuple[int, int]) -> None:
    gpu = SimpleNamespace(capability=capability, index=0)
    with pytest.raises(WaivedError, match=r"capability {}\.{}, and fused\.cu multiplies by wgmma".format(*capability)):
        HopperKernel(gpu, SimpleNamespace(source="fused.cu"))


def test_the_sources_of_bulk_copies_fit_into_an_sm() -> None:
    for flavour in FLAVOURS.values():
        if flavour.bulk:
            assert Variant(flavour).shared_bytes(4) <= BULK_SHARED_BYTES


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_fences_between_two_bursts(arch: str) -> None:
    """From the barrier of the storing warps to the end of the burst loop there is no MEMBAR: it would empty the stage."""
    lines = burst_kernel(compile_kernel("burst.cu", arch))
    stores = found(lines, FLAVOURS["st.v4"].sass)
    (fence,) = found(lines, r"MEMBAR\.SC\.SYS")
    assert fence > stores[-1]
    assert not found(lines[max(found(lines[: stores[0]], r"BAR\.SYNC\S* 0x1")) : stores[-1]], "MEMBAR|ERRBAR")


#: What a completion is in machine code, behind the burst.
COMPLETIONS = {
    "fence.gpu": r"MEMBAR\.SC\.GPU",
    "fence.acq_rel.gpu": r"MEMBAR\.ALL\.GPU",
    "fence.acq_rel.sys": r"MEMBAR\.ALL\.SYS",
    "red.release.gpu": r"MEMBAR\.ALL\.GPU",
    "red.release.sys": r"MEMBAR\.ALL\.SYS",
    "st.release.gpu": r"MEMBAR\.ALL\.GPU",
    "st.release.sys": r"MEMBAR\.ALL\.SYS",
}


@pytest.mark.parametrize("who", ["", "@warp", "@sm"])
@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions_are_the_fences_they_are_named_after(name: str, who: str) -> None:
    lines = variant_sass(Variant(FLAVOURS["st.v4"], completion=name + who), "sm_90")
    _, outside = burst_of(lines, FLAVOURS["st.v4"])
    assert [line for line in outside if re.search(COMPLETIONS[name], line)]
    assert [line for line in outside if "MEMBAR.SC.SYS" in line], "the stage is emptied before the check"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_time_lines_stamp_every_store(arch: str) -> None:
    lines = burst_kernel(compile_kernel("burst.cu", arch, {"XSTAGE_TIMELINE": "1"}))
    stores = found(lines, FLAVOURS["st.v4"].sass)
    assert len(stores) == FLAVOURS["st.v4"].group
    assert len(found(lines[stores[0] :], CLOCK)) >= len(stores)


OWN = """// xstage-flavour: name=st.mine function=st_mine bytes=8 kind=store sass=STG.E.64.STRONG.SYS
static __device__ __forceinline__ void st_mine(char *address, u32 x, u32 y, u32, u32) {
  asm volatile("st.global.wt.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
}
"""


def test_a_flavour_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text(OWN)
    flavour = load_flavour(tmp_path / "mine.cuh")
    assert (flavour.name, flavour.warp_store_bytes) == ("st.mine", 256)
    assert burst_of(variant_sass(Variant(flavour), "sm_90"), flavour)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("void f();", "no header line"),
        ("// xstage-flavour: name=a function=f bytes=16", "the header lacks kind"),
        ("// xstage-flavour: name=a function=f bytes=16 kind=bulk", "kind is 'bulk'"),
        ("// xstage-flavour: name=a function=f bytes=12 kind=store", "bytes is '12'"),
        ("// xstage-flavour: name=a function=f(); bytes=16 kind=store", "characters"),
        ("// xstage-flavour: name=a function=f bytes=16 kind=reduce element=f64", "element is 'f64'"),
        ("// xstage-flavour: name=a function=f bytes=16 kind=store architectures=ampere", "architectures must be"),
    ],
)
def test_a_bad_flavour_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.cuh").write_text(text)
    with pytest.raises(XStageError, match=re.escape(message)):
        load_flavour(tmp_path / "bad.cuh")


def test_a_broken_source_names_the_file_and_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void f() { undeclared(); }\n')
    monkeypatch.setattr("xstage_bench.device.cuda.compile.asset_dir", lambda name: tmp_path)
    with pytest.raises(XStageError, match=r"bad\.cu\(1\).*undeclared"):
        compile_kernel("bad.cu", "sm_90", cache=False)


# What the two clock reads behind a burst wait for: that is what the two stamps mean (docs/method.md). A store frees a scoreboard when the
# SM has read its registers, that is, has taken it; an instruction that waits for that scoreboard waits until then. `issued` must wait for
# none of its burst's last stores, `taken` for a read of shared memory that was started behind them.
STAMPED = [(n, "contiguous", a) for n, f in FLAVOURS.items() for a in f.architectures if f.alias_of is None]
STAMPED += [
    (f, y, "sm_90") for f, y in itertools.product(("st.v4", "red.f32"), LAYOUTS) if LAYOUTS[y].takes(FLAVOURS[f]) and y != "contiguous"
]


#: Where `issued` may still wait for a store: the loop's own branch does (sm_80), an address is computed between two stores, or the compiler
#: copies the vector of a reduction. There it says at most what `taken` says (docs/method.md).
MAY_WAIT = {
    *((f, "contiguous", "sm_80") for f in ("st.v2", "st.b32")),
    *(("red.f32", y, "sm_90") for y in ("rows256", "tile128", "accumulator")),
    *((f, "contiguous", a) for f in ("red.v4.f32", "red.v4.bf16x2") for a in ("sm_90", "sm_100")),
}


@pytest.mark.parametrize(("flavour", "layout", "arch"), STAMPED)
def test_each_stamp_waits_for_what_it_means(flavour: str, layout: str, arch: str) -> None:
    known = FLAVOURS[flavour]
    code = instructions(variant_cubin(Variant(known, layout), arch), "xstage_burst")
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


@pytest.mark.parametrize(("spoil", "waits"), [(NO_READ, False), (OVERWRITTEN, True)])
def test_a_stamp_that_means_something_else_is_found_out(spoil: tuple[str, str], waits: bool) -> None:
    variant = Variant(FLAVOURS["st.v4"])
    (changed,) = [p for p in asset_dir("cuda").glob("*.cuh") if spoil[0] in p.read_text()]
    headers = {**variant.headers(), changed.name: changed.read_text().replace(*spoil)}
    words = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0))}
    cubin = compile_source((asset_dir("cuda") / "burst.cu").read_text(), "burst.cu", "sm_90", words, headers)
    code = instructions(cubin, "xstage_burst")
    assert (reads_behind(code, variant.flavour.sass), bool(waits_of_issued(code, variant.flavour.sass))) == (False, waits)
