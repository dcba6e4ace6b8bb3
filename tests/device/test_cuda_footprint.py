"""The footprint kernel's machine code, its dealing of stores over memory, and the reduction of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_code import found, only_stores_are_timed
from numpy.typing import NDArray
from sass import disassemble, lines_of

from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel
from xstage_bench.device.cuda.footprint import RESULT, SLOT_BYTES, Shape, slots
from xstage_bench.errors import PairError
from xstage_bench.measure.footprint import FOOTPRINTS_MIB, issue_times, measure_footprint, rates, reduce, shapes
from xstage_bench.schedule.device import Gpu, Node

pytest.importorskip("cuda.bindings.nvrtc")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_stores_and_their_addresses_lie_between_the_clock_reads(arch: str) -> None:
    text = disassemble(compile_kernel("footprint.cu", arch))
    lines = lines_of(text.partition(".text.xstage_footprint:")[2].partition(".section")[0])
    stores = only_stores_are_timed(lines, r"STG\.E\.128", 4)  # one unrolled group, no remainder
    assert found(lines[stores[-1] :], "MEMBAR"), "the drain is timed by a fence after the burst"


def test_the_sweep_has_whole_groups() -> None:
    todo = shapes((1, 0), 132, FOOTPRINTS_MIB)
    assert {s.footprint_bytes for s in todo if s.run_slots == 1} == {m << 20 for m in FOOTPRINTS_MIB}
    assert all(s.stores % 4 == 0 for s in todo), "the kernel has no remainder loop"


@pytest.mark.parametrize(("mib", "run"), [(1, 1), (64, 1), (64, 128), (8192, 1), (8192, 128), (8192, 4096)])
def test_stores_stay_inside_and_meet_only_when_they_must(mib: int, run: int) -> None:
    shape = Shape(1, mib << 20, run, 132, 4, 64)
    chunks = (mib << 20) // SLOT_BYTES // run
    every = np.concatenate([slots(shape, p, w) for p in range(132) for w in range(4)])
    assert every.min() >= 0
    assert every.max() < (mib << 20) // SLOT_BYTES
    dealt = -(-64 // run) * 132 * 4
    assert len(np.unique(every)) == (every.size if dealt <= chunks else (mib << 20) // SLOT_BYTES)


def test_scattered_stores_visit_every_page_alike() -> None:
    shape = Shape(1, 8 << 30, 1, 132, 4, 512)
    pages = np.concatenate([slots(shape, p, w) for p in range(132) for w in range(4)]) * SLOT_BYTES >> 21
    counts = np.bincount(pages, minlength=4096)
    assert counts.min() > 0.5 * counts.mean()
    assert counts.max() < 1.5 * counts.mean()
    one = slots(shape, 7, 2) * SLOT_BYTES >> 21
    assert (np.diff(one) == 0).mean() < 0.01, "hardly two stores of a warp in a row go to one page"


def test_the_check_finds_each_slots_writer() -> None:
    """What ``xstage_footprint_check`` does to find who wrote a slot is the inverse of the dealing."""
    shape = Shape(1, 64 << 20, 128, 12, 4, 512)
    deal = shape.deal(5)[0]
    for producer, warp in ((0, 0), (3, 2), (11, 3)):
        for j, slot in enumerate(slots(shape, producer, warp)):
            chunk = ((int(slot) >> int(deal["run_log2"])) * int(deal["inverse"])) & 0xFFFFFFFF & int(deal["chunk_mask"])
            candidates = range(chunk, shape.stores * 48 // 128 + chunk, int(deal["chunk_mask"]) + 1)
            assert any((c % 48, c // 48 << 7 | int(slot) & 127) == (producer * 4 + warp, j) for c in candidates)


def rows(rate_cycles: dict[int, float]) -> list[dict[str, Any]]:
    """Rows by footprint in MiB, with a slope in cycles per warp-store of a warp."""
    out = []
    for mib, slope in rate_cycles.items():
        for number in range(3):
            for n in (8, 256, 512):
                for first in (True, False, False):
                    issue = slope * n + number + (1000.0 if first else 0.0)
                    head = {"destination": 1, "footprint_bytes": mib << 20, "run_slots": 1, "producers": 132, "warps": 4, "stores": n}
                    out.append({**head, "pass": number, "first": first, "issue_mean_cycles": issue, "issue_max_cycles": issue})
    return out


def test_rates_and_issue_times_use_warm_executions() -> None:
    data = rows({1: 1400.0, 8192: 2800.0})
    small, large = rates(data, 1980.0)
    assert small["gb_per_s"] == pytest.approx(132 * 4 * 512 / 1400 * 1.98)
    assert large["gb_per_s"] == pytest.approx(small["gb_per_s"] / 2)
    times = list(issue_times(data, 8))
    assert [t["cycles"] for t in times] == pytest.approx([11201.0, 22401.0])
    assert times[0]["first_cycles"] == pytest.approx(12201.0)


def test_a_producer_is_timed_from_its_first_warp_to_its_last() -> None:
    stamps = np.zeros((2, 2), RESULT)
    stamps["state"] = 1
    stamps["start"], stamps["end"], stamps["drained"] = [[10, 20], [10, 12]], [[110, 130], [90, 100]], [[200, 210], [190, 200]]
    stamps["start_ns"], stamps["end_ns"] = [[5, 6], [7, 8]], [[60, 64], [50, 51]]
    out = reduce(stamps, Shape(1, 1 << 20, 1, 2, 2, 8), 0)
    assert out == {"issue_mean_cycles": 105.0, "issue_max_cycles": 120.0, "drain_mean_cycles": 90.0, "makespan_ns": 59.0}
    stamps["state"][1, 1] = 2
    with pytest.raises(PairError, match="time-out"):
        reduce(stamps, Shape(1, 1 << 20, 1, 2, 2, 8), 0)


class Emulated:
    """A device whose stores take 1 400 cycles each, twice that beyond 64 MiB; GPU 1 as a source finds wrong words."""

    backend = "cuda"

    def node(self) -> Node:
        return Node(tuple(Gpu(i, "A", tuple(range(132)), 1980.0) for i in range(2)), ((0, 1), (1, 0)), 32.0)

    def deal(self, source: int, shape: Shape, largest_bytes: int, count: int) -> list[NDArray[Any]]:
        assert shape.footprint_bytes <= largest_bytes == 128 << 20
        stamps = np.zeros((shape.producers, shape.warps), RESULT)
        stamps["state"] = 1
        stamps["end"] = 1400 * shape.stores * (2 if shape.footprint_bytes > 64 << 20 else 1)
        return [stamps] * count

    def verify_deal(self, source: int, shape: Shape, largest_bytes: int) -> None:
        if source == 1:
            raise PairError("pair 1>0: 3 wrong 16-byte words")

    def close(self) -> None: ...


def test_the_survey_measures_each_pair_and_the_control_of_its_source() -> None:
    document = measure_footprint(lambda process: Emulated(), None, largest_mib=128, processes=2)
    assert set(document["failed_pairs"]) == {"1>0", "1>1"}
    assert {row["pair"] for row in document["rows"]} == {"0>1", "0>0"}
    assert {row["pass"] for row in document["rows"]} == {0, 1}
    mine = [row for row in document["rows"] if row["pair"] == "0>1" and row["producers"] == 132 and row["run_slots"] == 1]
    found = {r["footprint_bytes"] >> 20: r["gb_per_s"] for r in rates(mine, 1980.0)}
    assert found[128] == pytest.approx(found[64] / 2)
    assert found[1] == pytest.approx(132 * 4 * 512 / 1400 * 1.98)
