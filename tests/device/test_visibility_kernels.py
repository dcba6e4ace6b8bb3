"""The three kernels of visibility compile everywhere, and their machine code is the protocol that we think it is."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from sass import kernels as kernels_of
from sass import unordered

from xstage_bench.device.cuda import visibility
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.watches import FORMATS, METHODS, MODES

pytest.importorskip("cuda.bindings.nvrtc")

CLOCK = r"SR_CLOCKLO"
FENCE = r"MEMBAR\.(ALL|SC)\.(GPU|SYS)"


@pytest.fixture(scope="module", params=ARCHITECTURES)
def code(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    found = kernels_of(compile_kernel("visibility.cu", request.param, cache=False))
    assert set(found) == {"xstage_vis_produce", "xstage_vis_respond", "xstage_vis_probe"}
    assert not [line for lines in found.values() for line in lines if re.search(r"\b(LDL|STL)", line)], "none spills"
    return found


def at(lines: list[str], pattern: str) -> list[int]:
    return [i for i, line in enumerate(lines) if re.search(pattern, line)]


def test_the_backlog_is_four_plain_stores_and_one_stamp(code: dict[str, list[str]]) -> None:
    lines = code["xstage_vis_produce"]
    stores = at(lines, r"STG\.E\.128 ")
    assert len(stores) == 4, "one unrolled group, and the flavour occurs nowhere else"
    inside = lines[stores[0] : stores[-1]]
    assert not [line for line in inside if re.search(r"LDG|MEMBAR|BAR|SR_|LDS|STS|ATOM|RED", line)]
    start = max(i for i in at(lines, CLOCK) if i < stores[0])
    stamp, end = [i for i in at(lines, CLOCK) if i > stores[-1]][:2]
    assert any(re.search(r"\bLDS\b", line) for line in lines[end : end + 32]), "a read behind the stores, before the next clock read"
    window = lines[start + 1 : end]
    assert not [line for line in window if re.search(r"LDG|MEMBAR|BAR|LDS|ATOM|RED", line)]
    assert sum("STS" in line for line in window) == 1, "the stamp of a group, after its stores"
    assert stamp < next(i for i in at(lines, r"\bSTS ") if i > stores[-1])


def test_every_way_to_set_a_flag_lies_between_two_clock_reads(code: dict[str, list[str]]) -> None:
    """Relaxed has no fence; a release one of its scope; fence.sc the strongest; each with the flag's own store or reduction last."""
    lines = code["xstage_vis_produce"]
    clocks = at(lines, CLOCK)
    after_burst = [i for i in clocks if i > at(lines, r"STG\.E\.128 ")[-1]]
    seen = set()
    for first, last in pairwise(after_burst):
        inside = lines[first + 1 : last]
        fences = [m.group(0) for line in inside if (m := re.search(FENCE, line))]
        flags = [line for line in inside if re.search(r"STG\.E\.STRONG|\bRED\.|REDG", line)]
        if len(flags) == 1 and len(fences) <= 1:
            kind = "RED" if "RED" in flags[0] else "STG"
            seen.add((fences[0] if fences else "", kind))
    released = {(fence, kind) for fence in ("MEMBAR.ALL.GPU", "MEMBAR.ALL.SYS") for kind in ("STG", "RED")}
    assert {("", "STG"), ("MEMBAR.SC.SYS", "STG"), *released} <= seen
    assert len(METHODS) == 6


def test_what_is_read_or_zeroed_is_released_and_acquired_by_who_says_so(code: dict[str, list[str]]) -> None:
    """Fences of the storing threads, before a barrier, are not those of the thread that counts behind it."""
    arrived = r"(RED|ATOM)G?\.E\.ADD\S*\.STRONG\.GPU"
    produce, respond = code["xstage_vis_produce"], code["xstage_vis_respond"]
    barrier = r"BAR\.SYNC"
    assert at(produce, barrier)
    assert at(produce, arrived)
    assert not unordered(produce, barrier, arrived, r"MEMBAR\.\S*(GPU|SYS)")
    command, check = r"LDG\.E\.64\.STRONG\.SYS", r"LDG\.E\.128\.STRONG\.SYS"
    assert at(respond, command)
    assert not unordered(respond, command, check, r"MEMBAR\.\S*SYS"), "the check reads what the command says is there"
    assert len(at(respond, r"MEMBAR\.\S*SYS")) == 2, "and one before it says that its memory is ready"


def test_messages_are_sixteen_byte_stores_and_loads(code: dict[str, list[str]]) -> None:
    """Flags inside the data rely on it: one instruction per line of a warp, never split by the compiler."""
    assert at(code["xstage_vis_probe"], r"STG\.E\.128\.STRONG\.SYS"), "ll, ll128, ll512: volatile"
    assert at(code["xstage_vis_probe"], r"STG\.E\.128 "), "flag: plain"
    assert len(at(code["xstage_vis_respond"], r"LDG\.E\.128\.STRONG\.SYS")) >= 8, "the check's and the messages' groups of four"
    assert at(code["xstage_vis_respond"], r"LDG\.E\.64\.STRONG\.SYS"), "flag and command arrive in one load"


def test_the_host_mirrors_the_structs() -> None:
    text = (asset_dir("cuda") / "visibility.cuh").read_text()
    pairs = {"Plan": visibility.PLAN, "Delay": visibility.DELAY, "IssueStamp": visibility.ISSUE_STAMP, "PingStamp": visibility.PING_STAMP}
    for name, dtype in {**pairs, "Found": visibility.FOUND}.items():
        body = re.search(rf"struct {name} {{.*?\n(.*?)\n}};", text, re.S)
        assert body, name
        fields = [(n.strip(), kind) for kind, names in re.findall(r"(u32|u64) ([^;]+);", body.group(1)) for n in names.split(",")]
        assert fields == [(n, "u64" if dtype[n].itemsize == 8 else "u32") for n in dtype.names or ()], name
        assert dtype.itemsize == sum(8 if kind == "u64" else 4 for _, kind in fields)


def test_the_host_knows_where_the_shared_words_lie() -> None:
    """Offsets by the rules of C++: alignas(128) starts a line."""
    text = (asset_dir("cuda") / "visibility.cuh").read_text()
    sizes = {"u32": 4, "u64": 8, "char": 1}
    constants = {"MAX_WARPS": 16}
    places: dict[str, dict[str, int]] = {}
    totals = {}
    for name in ("SourceBox", "DestinationBox"):
        body = re.search(rf"struct {name} {{\n(.*?)\n}};", text, re.S)
        assert body
        offset, places[name] = 0, {}
        for aligned, kind, names in re.findall(r"(alignas\(128\) )?(u32|u64|char) ([^;]+);", body.group(1)):
            for field in names.split(","):
                found = re.match(r"\s*(\w+)(?:\[([^\]]+)\])?", field)
                assert found
                step = 128 if aligned else sizes[kind]
                offset = -(-offset // step) * step
                places[name][found.group(1)] = offset
                count = int(np.prod([constants.get(p.strip(), 0) or int(p) for p in (found.group(2) or "1").split("*")]))
                offset += sizes[kind] * count
        totals[name] = -(-offset // 128) * 128
    assert places["SourceBox"]["clock"] == 0
    assert places["SourceBox"]["timer_ns"] == visibility.CLOCKS.fields["timer_ns"][1]  # type: ignore[index]
    assert (places["SourceBox"]["abort"], places["SourceBox"]["prober"]) == (visibility.ABORT_AT, visibility.PROBER_AT)
    assert totals["SourceBox"] <= visibility.BOX_BYTES
    assert totals["DestinationBox"] <= visibility.DESTINATION_BOX_BYTES
    assert places["DestinationBox"]["ping"] % 8 == 0
    assert places["DestinationBox"]["command"] == places["DestinationBox"]["ping"] + 4
    assert places["DestinationBox"]["message"] % 128 == 0, "else no message is aligned to lines"


def test_the_numbers_of_modes_methods_and_formats_are_the_kernels() -> None:
    folder = asset_dir("cuda")
    text = (folder / "visibility.cuh").read_text() + (folder / "messages.cuh").read_text()
    for names in (MODES, METHODS, tuple(FORMATS)):
        for number, name in enumerate(names):
            word = name.upper().replace(".", "_")
            assert re.search(rf"\b{word} = {number}\b", text), word
