"""The kernels of a scene: compiled for every architecture, the machine code what it should be, and what crosses to the worker and back."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_code import found, only_stores_are_timed
from sass import disassemble, lines_of

from xstage_bench.device.cuda import scene as layout
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.device.cuda.host_memory import expected
from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.schedule.patterns import all_to_all, both_directions, pair
from xstage_bench.schedule.scenes import Companion, Scene

pytest.importorskip("cuda.bindings.nvrtc")

NODE = Node(
    tuple(Gpu(i, "g", tuple(range(0, 40, 2)), 1980.0) for i in range(3)), tuple((a, b) for a in range(3) for b in range(3) if a != b), 32.0
)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("mma", [False, True], ids=["idle", "mma"])
def test_the_machine_code_of_a_scene(arch: str, mma: bool) -> None:
    """asm volatile does not keep ptxas from leaving out what nobody uses: the first version of the tensor work was empty."""
    lines = lines_of(disassemble(compile_kernel("company.cu", arch, {"XSTAGE_GAP_MMA": "1"} if mma else {})))
    stores = only_stores_are_timed(lines, r"STG\.E\.128 ", layout.TURN)
    join = max(i for i in found(lines, r"BAR\.SYNC\S* R") if i < stores[0])
    assert not found(lines[join : stores[-1]], r"MEMBAR|ERRBAR|CCTL"), "no fence between two bursts"
    assert len(found(lines, r"MEMBAR\.SC\.SYS")) == 1
    assert len(found(lines, r"HMMA\.16816\.F32\.BF16")) == (8 if mma else 0)
    assert len(found(lines, r"LDG\.E\.128\.STRONG\.SYS")) >= 8, "pulls of 16 bytes, past L1"
    assert len(found(lines, r"STG\.E\.128\.STRONG\.GPU")) == 8, "copies"
    assert bool(found(lines, "UBLKCP")) == (arch != "sm_80")


def test_windows_do_not_meet_and_every_stamp_comes_back() -> None:
    rng = np.random.default_rng(0)
    scene = all_to_all(NODE, tuple(Burst(8192 * n, 500) for n in (1, 2, 3)))
    packed = layout.pack(scene, NODE, 3, 7)
    taken = sorted((s.destination, int(row["address"])) for s, row in zip(scene.schedules, _rows(packed), strict=True))
    for place, size in packed.memory.items():
        starts = [a for p, a in taken if p == place]
        assert np.diff([*starts, size]).min() >= 8 * layout.WINDOW_BYTES, "8 or more producers of 256 KB each"
    results = {p.gpu: _results(p, packed.rounds, rng) for p in packed.parts}
    first, second, third = layout.unpack(packed, results, 32.0)
    assert (first.status, second.status, third.status) == ("warmup", "ok", "ok")
    assert second.traces[0].sm_clock_mhz == pytest.approx(1980, rel=2e-3)
    assert second.start_skew_bound_ns == pytest.approx(700 + 32)
    np.testing.assert_array_equal(second.offset_ns, [0, -5000, 123])
    for s, row, trace in zip(scene.schedules, _rows(packed), third.traces, strict=True):
        assert trace.schedule is s
        stamps = results[s.source]["stamps"][2][int(row["result"]) :][: 3 * s.producer_count].reshape(3, -1)
        np.testing.assert_array_equal(trace.issue_cycles, stamps["end"].astype(float) - stamps["start"])
        np.testing.assert_array_equal(trace.gap_cycles[1:], stamps["start"][1:].astype(float) - stamps["end"][:-1])


def _rows(packed: layout.Packed) -> list[np.void]:
    return [
        next(r for p in packed.parts if p.gpu == s.source for r, d in zip(p.streams, p.places, strict=True) if d == s.destination)
        for s in packed.scene.schedules
    ]


def _results(part: layout.GpuPart, rounds: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    stamps = np.zeros((rounds, part.stamps_per_round), layout.SCENE_STAMP)
    stamps["start"] = rng.integers(0, 1000, stamps.shape)
    stamps["end"] = stamps["start"] + rng.integers(1, 1000, stamps.shape)
    stamps["end_ns"], stamps["drained"] = 5000, stamps["end"] + 9
    repetitions = np.zeros(rounds, layout.REPETITION)
    repetitions["state"] = layout.STATE_DONE
    repetitions["timer_ns"] = np.arange(rounds) * 1000
    repetitions["end_timer_ns"] = repetitions["timer_ns"] + 1  # the stamping SM idles: its own repetition is over at once
    repetitions["clock"], repetitions["end_clock"] = repetitions["timer_ns"] * 1.98, repetitions["end_timer_ns"] * 1.98
    repetitions["peer_offset_ns"][:, 1:3] = np.array([-5000, 123], dtype=np.int64).view(np.uint64)
    repetitions["round_trip_ns"][:, 1:3] = (1400, 1200)
    return {"stamps": stamps, "progress": np.zeros((rounds, layout.MAX_STREAMS, layout.SLOTS), np.uint64), "repetitions": repetitions}


def test_a_wrong_word_names_the_pair_and_the_place() -> None:
    packed = layout.pack(pair(NODE, (Burst(8192),)), NODE, 2, 0)
    results = {0: _results(packed.parts[0], 2, np.random.default_rng(0))}
    bad = results[0]["repetitions"][1:]
    bad["mismatches"], bad["offset"], bad["expected"], bad["found"] = 2, 4096, 0xAB, 0xCD
    trace = layout.unpack(packed, results, 32.0)[1].traces[0]
    assert trace.status == "corrupt"
    assert "pair 0>1: 2 wrong 16-byte words, the first at offset 4096: expected 0x000000ab" in trace.detail


def test_company_gets_slices_that_fit_and_shares_the_sm() -> None:
    push = Schedule((Burst(8192),), 20, 4, 0, 1)
    scene = Scene((push,), (Companion("copy", 0, 0, (0, 2), 8, 1 << 20), Companion("pull", 2, 0, (4,), 16, 1 << 20)))
    packed = layout.pack(scene, NODE, 1, 0)
    own, far = packed.parts
    assert (own.gpu, far.gpu, len(own.streams), len(far.streams)) == (0, 2, 2, 1)
    assert int(own.streams[1]["bytes"]) * 16 == 1 << 20
    assert packed.memory[0] == 2 << 20, "the copy's region and that which the pull reads"
    assert own.seats["stream"][0].tolist() == [0] * 4 + [1] * 8 + [0xFFFF] * 4
    assert far.seats["stream"][4].tolist() == [0] * 16
    progress = np.zeros((1, layout.MAX_STREAMS, layout.SLOTS), np.uint64)
    progress[0, 1, :] = np.arange(layout.SLOTS)
    results = {p.gpu: _results(p, 1, np.random.default_rng(0)) | {"progress": progress} for p in packed.parts}
    assert layout.unpack(packed, results, 32.0)[0].company_bytes[0, 5] == 5 * layout.UNIT_BYTES


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule((Burst(2048 * 5),), 1, 4), "multiples of 8192"),
        (Schedule((Burst(8192),) * 129, 1, 4, start="free"), "129 bursts"),
        (Schedule((Burst(8192), Burst(8192, 2_000_000_000)), 1, 4, start="free"), "over a second"),
    ],
)
def test_refused_before_launch(schedule: Schedule, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        layout.pack(Scene((schedule,)), NODE, 1, 0)


def test_both_ends_of_a_pair_take_part_and_a_host_destination_is_a_place_of_its_own() -> None:
    packed = layout.pack(both_directions(NODE, (Burst(8192),)), NODE, 1, 0)
    assert [p.gpu for p in packed.parts] == [0, 1]
    host = layout.pack(Scene((Schedule((Burst(8192),), 20, 4, 0, HOST),)), NODE, 1, 0)
    assert host.memory == {HOST: 20 * layout.WINDOW_BYTES}


def test_what_host_memory_must_hold_is_what_the_kernel_stores() -> None:
    words = expected(256 * 1024, 5, 4, 3, 0xFFFFFFFE, 0xA5A5A5A5)
    for warp, store, lane in ((0, 0, 0), (2, 1, 7), (3, 2, 31)):
        at = warp * 16384 + store * 128 + lane * 4
        want = [0xFFFFFFFE + store // 4, 0xFFFFFFFE ^ (5 << 16 | warp << 8 | lane), (5 * 0x9E3779B9 + lane) & 0xFFFFFFFF, 1]
        assert words[at : at + 4].tolist() == want
    assert (words[3 * 128 : 16384] == 0xA5A5A5A5).all()
