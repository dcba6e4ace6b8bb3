"""Where a stall shows: the probe's machine code and the reduction of its rounds."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tables import load

from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.io.assets import asset_dir

store_queue = load("h200-x2/store-queue")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("after", "instruction"), [(0, ""), (1, "SHFL"), (2, "LDS"), (3, "LDG"), (4, "IADD|VIADD")])
def test_no_clock_lands_in_a_register_that_a_store_reads(
    sass_of: Callable[[bytes, str], list[str]], arch: str, after: int, instruction: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin = compile_kernel("store_queue.cu", arch, {"XSTAGE_STORES": "16", "XSTAGE_AFTER": str(after)})
    lines = sass_of(cubin, "xstage_store_queue")
    stores = [i for i, line in enumerate(lines) if "STG.E.128" in line]
    assert stores == list(range(stores[0], stores[0] + 16)), "nothing lies between two stores"
    address, value = (int(n) for n in re.search(r"\[R(\d+)\.64\S*\], R(\d+)", lines[stores[0]]).groups())  # type: ignore[union-attr]
    assert all(re.search(rf"\[R{address}\.64\S*\], R{value}\b", lines[i]) for i in stores)
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCKLO" in line]
    before, stored, then, fenced = [i for i in clocks if i < stores[0]][-1:] + [i for i in clocks if i > stores[-1]][:3]
    assert (before, stored) == (stores[0] - 1, stores[-1] + 1)
    read = {address, address + 1, *range(value, value + 4)}
    targets = {int(re.search(r"CS2R(?:\.32)? R(\d+)", lines[i]).group(1)) for i in (stored, then)}  # type: ignore[union-attr]
    assert not targets & read
    if instruction:
        assert re.search(instruction, "\n".join(lines[stored:then]))
    assert any("MEMBAR" in line for line in lines[then:fenced])


@pytest.mark.parametrize("arch", ARCHITECTURES[1:])
@pytest.mark.parametrize(("after", "bulk"), [(5, 0), (0, 1), (3, 1), (5, 1)])
def test_the_copy_engines_variants(sass_of: Callable[[bytes, str], list[str]], arch: str, after: int, bulk: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    defines = {"XSTAGE_STORES": "16", "XSTAGE_AFTER": str(after), "XSTAGE_BULK": str(bulk)}
    lines = sass_of(compile_kernel("store_queue.cu", arch, defines), "xstage_store_queue")
    assert sum("STG.E.128" in line for line in lines) == (0 if bulk else 16)
    assert any("UBLKCP" in line for line in lines)
    assert not any("S2UR" in line and "CLOCK" in line for line in lines), "that read of the clock would wait behind the stores"


def test_the_host_mirrors_the_structs() -> None:
    text = (asset_dir("cuda") / "store_queue.cu").read_text()
    for name, dtype in {"QueuePlan": store_queue.PLAN, "Round": store_queue.ROUND}.items():
        body = re.search(rf"struct {name} {{.*?\n(.*?)\n}};", text, re.S)
        assert body, name
        fields = [n.strip().partition("[")[0] for names in re.findall(r"(?:u32|u64) ([^;]+);", body.group(1)) for n in names.split(",")]
        assert fields == list(dtype.names), name


def test_clocks_that_wrap_are_differences_all_the_same() -> None:
    rounds = np.zeros((3, store_queue.ROUNDS), store_queue.ROUND)
    rounds["first"] = 2**32 - 100 + np.arange(4)
    for name, at in (("stored", 30), ("then", 500), ("fenced", 700)):
        rounds[name] = rounds["first"] + np.uint32(at)
    found = store_queue.cycles(rounds)
    assert (found["stored_cycles"], found["then_cycles"], found["fenced_cycles"]) == (33, 503, 703)


def test_a_word_that_did_not_arrive_is_counted() -> None:
    memory = np.zeros((store_queue.REGIONS, 2, store_queue.WARPS, 4, 32, 4), np.uint32)
    last = [8, 9, 6, 7]  # the last of ten rounds in each of four regions
    memory[:, 1, ..., 0] = 1000 + np.array(last)[:, None, None, None]
    memory[:, 1, ..., 1] = 1
    memory[:, 1, ..., 2] = np.arange(store_queue.WARPS)[None, :, None, None]
    memory[:, 1, ..., 3] = np.arange(32)
    assert store_queue._wrong(memory.ravel(), np.array([1]), 1000, 4, 2) == 0
    memory[2, 1, 3, 1, 7, 0] += 1
    memory[0, 0, 0, 0, 0, 0] = 5
    assert store_queue._wrong(memory.ravel(), np.array([1]), 1000, 4, 2) == 2
