"""The three kernels of visibility compile everywhere, and their machine code is the protocol that we think it is."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from sass import kernels as kernels_of
from sass import unordered
from static_facts import holds, mirrored

from xstage_bench.device.cuda import visibility
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.schedule.watches import FORMATS, METHODS, MODES

pytest.importorskip("cuda.bindings.nvrtc")

CLOCK = r"SR_CLOCKLO"
FENCE = r"MEMBAR\.(ALL|SC)\.(GPU|SYS)"


@pytest.fixture(scope="module", params=ARCHITECTURES)
def code(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    found = kernels_of(compile_kernel("visibility.cu", request.param))
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


def test_the_host_has_the_structs_and_numbers_of_the_kernels() -> None:
    structs = {"Plan": visibility.PLAN, "Delay": visibility.DELAY, "IssueStamp": visibility.ISSUE_STAMP, "PingStamp": visibility.PING_STAMP}
    facts: dict[str, int] = {}
    for name, dtype in {**structs, "Found": visibility.FOUND}.items():
        facts |= mirrored(name, dtype)
    for names in (MODES, METHODS, tuple(FORMATS)):
        facts |= {name.upper().replace(".", "_"): number for number, name in enumerate(names)}
    shared = {"clock": 0, "timer_ns": visibility.CLOCKS.fields["timer_ns"][1], "abort": visibility.ABORT_AT, "prober": visibility.PROBER_AT}  # type: ignore[index]
    facts |= {f"__builtin_offsetof(SourceBox, {word})": offset for word, offset in shared.items()}
    facts |= {f"(sizeof(SourceBox) <= {visibility.BOX_BYTES})": 1, f"(sizeof(DestinationBox) <= {visibility.DESTINATION_BOX_BYTES})": 1}
    ping, command, message = (f"__builtin_offsetof(DestinationBox, {word})" for word in ("ping", "command", "message"))
    facts |= {f"{ping} % 8": 0, f"{command} - {ping}": 4, f"{message} % 128": 0}  # one 8-byte load; messages aligned to lines
    holds("messages.cuh", facts)
