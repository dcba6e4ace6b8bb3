"""The replay's kernel: compiled for every architecture, its machine code what it should be, and what crosses to the worker and back."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_code import CLOCK, found, only_stores_are_timed, run_on_cpu
from sass import disassemble, lines_of, prepare

from xstage_bench.device.cuda import tasks
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.device.cuda.scene import REPETITION, STATE_DONE
from xstage_bench.errors import UsageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import COLUMNS, FORMS, NONE, PUBLISHES, TaskSchedule

pytest.importorskip("cuda.bindings.nvrtc")

SMIDS = {0: range(0, 264, 2), 1: range(132)}  # smids need not be dense, nor alike on two GPUs


def cubin(variant: tasks.TaskVariant, arch: str) -> bytes:
    return compile_kernel("tasks.cu", variant.arch(arch), variant.defines(), variant.headers())


def build(variant: tasks.TaskVariant, arch: str) -> list[str]:
    return lines_of(disassemble(cubin(variant, arch)))


WORK = [(arch, work) for arch in ARCHITECTURES for work in ("spin", "mma.sync")] + [("sm_90", "wgmma")]
VARIANTS = [(arch, tasks.TaskVariant(form, "release.gpu", FLAVOURS["st.v4"], work)) for arch, work in WORK for form in FORMS]


@pytest.fixture(scope="module")
def machine_code() -> None:
    """Disassembled together."""
    prepare("tasks", [partial(cubin, variant, arch) for arch, variant in VARIANTS])


@pytest.mark.parametrize(("arch", "variant"), VARIANTS, ids=lambda v: v if isinstance(v, str) else f"{v.form}-{v.instruction}")
def test_the_machine_code_of_a_task(arch: str, variant: tasks.TaskVariant, machine_code: None) -> None:
    """A first version read the clock while it waited for its turn: another role's work counted as its own."""
    lines = build(variant, arch)
    stores = only_stores_are_timed(lines, variant.flavour.sass, 5)  # four unrolled and one for the rest
    turn = max(i for i in found(lines, r"BAR\.SYNC\S* R") if i < stores[0])
    assert not found(lines[turn : stores[-1]], r"\bLDG|\bLD\.E|MEMBAR|CCTL"), "nothing is loaded between a turn and its last store"
    behind = lines[turn : min(i for i in found(lines, CLOCK) if i > turn)]
    assert found(behind, r"\bLDS"), "the clock behind the barrier waits for a load that may not pass it"
    assert found(behind, r"@!?P\d BRA|@!?P\d BPT")
    assert len(found(lines, r"HMMA\.16816\.F32\.BF16")) == (8 if variant.instruction == "mma.sync" else 0)
    groups = found(lines, r"HGMMA\.64x128x16\.F32\.BF16")
    assert len(groups) == (5 if variant.instruction == "wgmma" else 0), "four in a group and one for the rest"
    if groups:  # serialised wgmmas wait after each: nothing but address arithmetic may lie within the group of four
        assert not found(lines[groups[0] : groups[3]], r"DEPBAR|WARPGROUP\.ARRIVE")


@pytest.mark.parametrize(("publish", "fence"), list(zip(PUBLISHES, (None, "MEMBAR.ALL.GPU", "MEMBAR.ALL.SYS"), strict=True)))
def test_what_a_signal_fences(publish: str, fence: str | None) -> None:
    lines = build(tasks.TaskVariant("ping_pong", publish, FLAVOURS["st.v4"], "spin"), "sm_90")
    last = max(found(lines, r"STG\.E\.128 "))
    counts = min(i for i in found(lines, r"\bREDG?\.E\.ADD|ATOMG\.E\.ADD") if i > last)
    assert [line.split()[0].rstrip(";") for line in lines[last:counts] if "MEMBAR" in line] == ([] if fence is None else [fence])


MIX = """
#include <cstdio>
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
typedef unsigned long long u64;
TEXT
int main() {
  const u32 sizes[] = {1, 2, 3, 7, 16, 24, 65};
  for (u32 warps = 1; warps <= 8; ++warps)
    for (u32 stores : sizes) {
      const u32 whole = stores * warps;
      for (u32 remote = 0; remote <= whole; ++remote) {
        u32 sum = 0;
        for (u32 warp = 0; warp < warps; ++warp) {
          Mix mix = mix_of(stores, remote, remote % warps, warp, warps, 65536 / warps + 1);
          for (u32 i = 0; i < stores; ++i) {
            const u32 k = warp * stores + i;
            const bool is = remote_next(mix);
            const bool want = (u64)(k + 1) * remote / whole > (u64)k * remote / whole;
            sum += is;
            if (is != want || goes_remote(k, remote, whole) != want) { printf("%u %u %u %u\\n", warps, stores, remote, k); return 1; }
          }
        }
        if (sum != remote) return 2;
      }
    }
  printf("ok\\n");
}
"""


@pytest.mark.parametrize("name", ["st.v2", "st.b32", "st.v4.relaxed.sys"])
def test_other_flavours(name: str) -> None:
    lines = build(tasks.TaskVariant("single", "relaxed", FLAVOURS[name], "spin"), "sm_90")
    assert 5 in [len(found(lines[a:b], FLAVOURS[name].sass)) for a, b in itertools.pairwise(found(lines, CLOCK))]


def test_remote_stores_are_spread_as_the_check_expects(tmp_path: Path) -> None:
    """``cuda/mix.cuh`` compiled for the CPU: the running form and the one with divisions place every store alike."""
    text = re.sub(r"^#.*$", "", (asset_dir("cuda") / "mix.cuh").read_text(), flags=re.MULTILINE)
    assert run_on_cpu(MIX.replace("TEXT", text), tmp_path) == b"ok\n"


@pytest.mark.parametrize(
    ("compute", "warps", "arch", "instruction"),
    [
        ("spin", 4, "sm_90", "spin"), ("mma", 4, "sm_90", "wgmma"), ("mma", 3, "sm_90", "mma.sync"),  # a warpgroup is four warps
        ("mma", 4, "sm_100", "mma.sync"), ("mma", 4, "sm_80", "mma.sync"),
    ],
)  # fmt: skip
def test_which_instruction_works(compute: str, warps: int, arch: str, instruction: str) -> None:
    assert tasks.instruction_for(compute, warps, arch) == instruction


def example(k: int = 3, per: int = 5, **changed: Any) -> TaskSchedule:
    """Producers whose tasks differ, the later ones waiting for the first of each."""
    n = k * per
    index = np.arange(n) % per
    base = TaskSchedule(
        k, np.repeat(np.arange(k), per), 1000 * (index + 1), 2048 * index, 2048 * index * 7 // 8 // 512 * 512,
        np.where(index > 1, 0, NONE), np.where(index == 0, 0, NONE), form="ping_pong", publish="release.gpu",
    )  # fmt: skip
    return replace(base, **changed)


def test_lists_events_and_mixes_are_packed() -> None:
    s = example(both_ways=True)
    packed = tasks.pack(s, SMIDS, "spin")
    assert (packed.source, packed.destination, packed.producers, packed.events, packed.warps) == (0, 1, 3, 1, 4)
    assert packed.tasks["compute"][:5].tolist() == [1000, 2000, 3000, 4000, 5000]
    assert packed.tasks["stores"][:5].tolist() == [0, 1, 2, 3, 4], "warp-stores of each of four warps"
    assert packed.tasks["remote"].tolist() == (s.remote_bytes // 512).tolist()
    assert (packed.tasks["uneven"] == packed.tasks["remote"] % 4).all()
    assert packed.tasks["target"][:5].tolist() == [0, 0, 3, 3, 3]
    assert packed.tasks["waits_for"][0] == packed.tasks["signals"][1] == 0xFFFFFFFF
    for gpu, table in packed.lists.items():
        busy = np.flatnonzero(table["count"])
        assert busy.tolist() == s.smids(SMIDS[gpu]).tolist()
        assert table["first"][busy].tolist() == [0, 5, 10]
        assert table["producer"][busy].tolist() == [0, 1, 2]


def results(s: TaskSchedule, packed: tasks.PackedTasks, mhz: float) -> dict[int, dict[str, np.ndarray]]:
    """What the kernel would write: task i of each producer starts at 1000 i ns; the SMs' clocks and epochs differ."""
    stamps, seals = np.zeros(s.task_count, tasks.TASK_STAMP), np.zeros(s.producer_count, tasks.SEAL)
    epoch, zero = np.arange(s.producer_count, dtype=np.uint64) * 10**6 + 5 * 10**9, 10**12
    seals["epoch"], seals["zero_ns"], seals["timer_ns"] = epoch, zero, zero + 32
    seals["clock"], seals["end_timer_ns"] = epoch + np.uint64(3000), zero + 32 + 1_000_000
    seals["end_clock"] = seals["clock"] + np.uint64(round(mhz * 1000))
    seals["done_ns"], seals["visible_ns"] = [5000, 9000, 7000], [6000, 9500, 12000]
    index = np.arange(s.task_count) % 5
    at = 3000 + (1000 * index - 32) * mhz / 1e3
    for name, later in (("start", 0), ("computed", 100), ("stored", 200), ("signalled", 300)):
        stamps[name] = np.rint(at + later * mhz / 1e3)
    repetitions = np.zeros(1, REPETITION)
    repetitions["state"] = STATE_DONE
    return {gpu: {"stamps": stamps, "seals": seals, "repetitions": repetitions.copy()} for gpu in packed.lists}


@pytest.mark.parametrize("mhz", [800.0, 1234.5, 1980.0, 2200.0])
def test_stamps_become_times_after_the_common_start(mhz: float) -> None:
    s = example(both_ways=True)
    packed = tasks.pack(s, SMIDS, "spin")
    t = tasks.unpack(s, packed, results(s, packed, mhz))
    index = np.arange(s.task_count) % 5
    assert t.sm_clock_mhz == pytest.approx(mhz, rel=1e-5)
    np.testing.assert_allclose(t.start_ns, 1000 * index, atol=2)
    np.testing.assert_allclose(t.compute_end_ns, 1000 * index + 100, atol=2)
    np.testing.assert_allclose(t.store_end_ns[index > 0], (1000 * index + 200)[index > 0], atol=2)
    assert np.isnan(t.store_end_ns[index == 0]).all()
    np.testing.assert_allclose(t.signal_end_ns[index == 0], 300, atol=2)
    assert np.isnan(t.signal_end_ns[index > 0]).all()
    assert (t.total_ns, t.visible_ns, t.status) == (9000, 12000, "ok")


def test_a_producer_without_tasks_says_nothing_about_the_time() -> None:
    s = example()
    keep = s.producer != 1
    less = replace(s, **{c: getattr(s, c)[keep] for c in COLUMNS})
    packed = tasks.pack(less, {0: SMIDS[0]}, "spin")
    got = results(s, tasks.pack(s, {0: SMIDS[0]}, "spin"), 1980.0)[0]
    got["seals"][1] = 0  # as an earlier, longer execution may have left it
    got["seals"]["done_ns"][1] = 10**9
    t = tasks.unpack(less, packed, {0: got | {"stamps": got["stamps"][keep]}})
    assert (t.total_ns, t.visible_ns) == (7000, 12000)
    assert t.sm_clock_mhz == pytest.approx(1980)


def test_what_went_wrong_names_the_pair_the_producer_and_the_place() -> None:
    s = example(both_ways=True)
    packed = tasks.pack(s, SMIDS, "spin")
    got = results(s, packed, 1980.0)
    bad = got[1]["repetitions"]
    bad["mismatches"], bad["offset"], bad["expected"], bad["found"], bad["pad"] = 2, 4096, 0xAB, 0xCD, 1 << 31 | 7 << 8 | 5
    t = tasks.unpack(s, packed, got)
    assert t.status == "corrupt"
    assert "pair 1>0: 2 wrong words, the first of producer 7, warp 5, at offset 4096: expected 0x000000ab, found 0x000000cd" in t.detail
    got[0]["repetitions"]["state"] = 2
    assert tasks.unpack(s, packed, got).status == "timeout"


@given(st.floats(0, 200), st.floats(240, 520), st.floats(60, 140), st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_rounds_come_as_near_to_the_cycles_asked_for_as_any(entry: float, four: float, one: float, cycles: list[int]) -> None:
    rate, asked = tasks.TensorRate(entry, four, one), np.array(cycles)
    got = rate.rounds(asked)
    assert ((got > 0) == (asked > 0)).all()
    every = np.arange(1, int(got.max()) + 12)
    best = np.abs(rate.cycles(every)[None, :] - asked[:, None]).min(axis=1)
    np.testing.assert_allclose(np.abs(rate.cycles(got) - asked)[asked > 0], best[asked > 0], atol=abs(four - 4 * one) + 1e-6)


def test_a_rate_is_found_again() -> None:
    true = tasks.TensorRate(139.5, 256.0, 74.4)
    s = tasks.calibration(4, "ping_pong", 132, 0)
    packed = tasks.pack(s, {0: range(132)}, "wgmma")
    stamps = np.zeros(s.task_count, tasks.TASK_STAMP)
    stamps["start"] = 1000
    stamps["computed"] = 1000 + np.rint(true.cycles(packed.tasks["compute"].astype(np.int64)))
    found_again = tasks.rate_of(packed, stamps)
    assert found_again.four_cycles == pytest.approx(256.0, abs=0.05)
    assert found_again.one_cycles == pytest.approx(74.4, abs=0.5)
    assert found_again.entry_cycles == pytest.approx(139.5, abs=1)


def test_refused_before_launch() -> None:
    def schedule(producers: int, producer: np.ndarray) -> TaskSchedule:
        zero, none = np.zeros(producer.size, dtype=np.int64), np.full(producer.size, NONE)
        return TaskSchedule(producers, producer, zero + 10, zero, zero, none, none)

    many, nothing = tasks.MAX_SM_TASKS + 1, np.zeros(15, dtype=np.int64)
    for words, refused in (
        (f"producer 0 has {many} tasks", schedule(1, np.zeros(many, dtype=np.int64))),
        ("200 producers", schedule(200, np.arange(200))),
        ("plain stores", example(flavour="red.f32", bytes=nothing, remote_bytes=nothing)),
        ("stamps hold 2 s", example(compute_cycles=nothing + 1_000_000_000)),
    ):
        with pytest.raises(UsageError, match=words):
            tasks.pack(refused, SMIDS, "spin")
