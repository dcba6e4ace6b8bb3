"""The kernels of a scene: compiled for every architecture, the machine code what it should be, and what crosses to the worker and back."""

from __future__ import annotations

import re

import numpy as np
import pytest
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
STORE = r"STG\.E\.128 "
VARIANTS: tuple[dict[str, str], ...] = ({}, {"XSTAGE_GAP_MMA": "1"})


@pytest.fixture(
    scope="module",
    params=[(a, i) for a in ARCHITECTURES for i in range(len(VARIANTS))],
    ids=lambda p: f"{p[0]}-{'mma' if p[1] else 'idle'}",
)
def code(request: pytest.FixtureRequest) -> tuple[str, bool, list[str]]:
    arch, variant = request.param
    cubin = compile_kernel("company.cu", arch, VARIANTS[variant], cache=False)
    return arch, bool(variant), lines_of(disassemble(cubin))


def test_a_burst_is_four_stores_between_its_clock_reads(code: tuple[str, bool, list[str]]) -> None:
    _, _, lines = code
    stores = [i for i, line in enumerate(lines) if re.search(STORE, line)]
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCKLO" in line]
    assert len(stores) == layout.TURN
    first, last = max(i for i in clocks if i < stores[0]), min(i for i in clocks if i > stores[-1])
    inside = [line for line in lines[first + 1 : last] if not re.search(STORE, line)]
    assert any(re.search(r"\bLDS\b", line) for line in lines[last : last + 32]), "a read behind the stores, before the next clock read"
    assert not [line for line in inside if re.search(r"\b(LDG|LDS|LDL|STL|STS|STG|BAR|MEMBAR|ATOM|RED|MUFU|CALL|SR_GLOBALTIMER)", line)]
    assert not [line for line in lines if re.search(r"\b(LDL|STL)", line)], "no spill, no array in local memory"


def test_tensor_work_is_there_only_where_it_was_asked_for(code: tuple[str, bool, list[str]]) -> None:
    """asm volatile does not keep ptxas from leaving out what nobody uses: the first version of this loop was empty."""
    _, mma, lines = code
    assert sum("HMMA.16816.F32.BF16" in line for line in lines) == (8 if mma else 0)


def test_company_loads_and_copies_as_it_says(code: tuple[str, bool, list[str]]) -> None:
    arch, _, lines = code
    assert sum("LDG.E.128.STRONG.SYS" in line for line in lines) >= 8, "pulls of 16 bytes, past L1"
    assert sum("STG.E.128.STRONG.GPU" in line for line in lines) == 8, "copies"
    assert any("UBLKCP" in line for line in lines) == (arch != "sm_80")


def test_no_fence_between_two_bursts(code: tuple[str, bool, list[str]]) -> None:
    _, _, lines = code
    stores = [i for i, line in enumerate(lines) if re.search(STORE, line)]
    join = max(i for i in range(stores[0]) if re.search(r"BAR\.SYNC\S* R", lines[i]))
    assert not [line for line in lines[join : stores[-1]] if re.search(r"MEMBAR|ERRBAR|CCTL", line)]
    assert sum("MEMBAR.SC.SYS" in line for line in lines) == 1


def test_the_host_mirrors_the_structs_of_the_kernels() -> None:
    from xstage_bench.io.assets import asset_dir

    text = "".join((asset_dir("cuda") / name).read_text() for name in ("company.cu", "rendezvous.cuh"))
    pairs = {
        "Stream": layout.STREAM, "Seat": layout.SEAT, "Step": layout.STEP, "SceneStamp": layout.SCENE_STAMP,
        "Mail": layout.MAIL, "Control": layout.SCENE_CONTROL, "Repetition": layout.REPETITION,
    }  # fmt: skip
    sizes = {"u32": 4, "u64": 8, "unsigned short": 2}
    for name, dtype in pairs.items():
        body = re.search(rf"struct {name} {{.*?\n(.*?)\n}};", text, re.S)
        assert body, name
        fields = [
            (n.strip(), sizes[k]) for k, names in re.findall(r"(u32|u64|unsigned short) ([^;]+);", body.group(1)) for n in names.split(",")
        ]
        assert dtype.fields is not None
        mine = [(n, dtype.fields[n][0]) for n in dtype.names or ()]
        assert fields == [(f"{n}[{d.shape[0]}]" if d.shape else n, d.base.itemsize) for n, d in mine], name
    constants = {"MAX_STREAMS": layout.MAX_STREAMS, "MAX_BURSTS": layout.MAX_BURSTS, "MAX_ALL_BURSTS": layout.MAX_ALL_BURSTS}
    assert f"PULL_BULK = {layout.PULL_BULK}," in text
    for name, value in constants.items():
        assert f"{name} = {value}" in text


def test_windows_do_not_meet_and_every_stamp_comes_back() -> None:
    rng = np.random.default_rng(0)
    scene = all_to_all(NODE, tuple(Burst(8192 * n, 500) for n in (1, 2, 3)))
    packed = layout.pack(scene, NODE, 3, 7)
    taken = sorted((s.destination, int(row["address"])) for s, row in zip(scene.schedules, _rows(packed), strict=True))
    for place, size in packed.memory.items():
        starts = [a for p, a in taken if p == place]
        assert np.diff([*starts, size]).min() >= 8 * layout.WINDOW_BYTES, "8 or more producers of 256 KB each"
    results = {p.gpu: _results(p, packed.rounds, rng) for p in packed.parts}
    found = layout.unpack(packed, results, 32.0)
    assert [t.status for t in found] == ["warmup", "ok", "ok"]
    assert found[1].traces[0].sm_clock_mhz == pytest.approx(1980, rel=2e-3)
    assert found[1].start_skew_bound_ns == pytest.approx(700 + 32)
    np.testing.assert_array_equal(found[1].offset_ns, [0, -5000, 123])
    for s, row, trace in zip(scene.schedules, _rows(packed), found[2].traces, strict=True):
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
