"""Diagnoses against published pairs of timings, against the simulator's own local twins, and the closed form behind Triton's pruning."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import h200
import numpy as np
import pytest

from xstage_bench.device.sim.device import SimDevice
from xstage_bench.errors import UsageError
from xstage_bench.model.diagnose.lost import CAUSES
from xstage_bench.model.diagnose.time_line import diagnose_time_line
from xstage_bench.model.diagnose.timings import KernelTimes, diagnose_timings
from xstage_bench.model.document import load_model
from xstage_bench.model.scaled_node import registered_model
from xstage_bench.model.stage import stage_at
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.model.tuner import Tiles, lost_cycles, perf_model
from xstage_bench.schedule.tasks import NONE, TaskSchedule, TaskTrace

ROOT = Path(__file__).parents[2]
MODEL = load_model(h200.MODEL)
#: GEMMs of M x 8192 x 8192 whose 16-bit output stays local or goes to one peer: published timings, of H20 only remote over local.
with (ROOT / "results" / "public" / "transfer" / "epilogue.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))
EIGHT = registered_model("h800-nv8")
H800 = {
    int(m): [(float(r["local_us"]), float(r["remote_us"])) for kind in ("tma", "registers") for r in ROWS
             if (r["gpu"], r["m"], r["epilogue"]) == ("H800", m, kind)]
    for m in dict.fromkeys(r["m"] for r in ROWS if r["gpu"] == "H800")
}  # fmt: skip


def times(m: int, local_us: float, remote_us: float, **more: object) -> KernelTimes:
    tiles = -(-m // 128) * 32
    return KernelTimes(local_ns=local_us * 1e3, remote_ns=remote_us * 1e3, bytes=m * 16384, tiles=tiles, warps=8, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("m", H800)
def test_published_timings_are_explained_where_whole_lines_are_stored(m: int) -> None:
    lines, pieces = (diagnose_timings(EIGHT, times(m, *pair)) for pair in H800[m])
    assert (lines.stalls, pieces.stalls) == ("yes", "yes")
    told = sum(part.ns or 0.0 for part in lines.parts)
    assert told == pytest.approx(lines.lost_ns)
    assert lines.part("none_of_these").ns <= 0.03 * lines.total_ns  # type: ignore[operator]
    assert pieces.part("none_of_these").low_ns > 0.5 * pieces.lost_ns  # type: ignore[operator]
    assert not lines.notes
    assert "pieces of less than a line" in pieces.notes[0]
    for part in (*lines.parts, *pieces.parts):
        assert part.ns is None or part.low_ns <= part.ns <= part.high_ns  # type: ignore[operator]
    assert [p.cause for p in lines.parts if p.status == "not_determined"] == ["late_operands", "publishing", "out_of_step"]


def test_recorded_attention_loses_no_more_than_its_stores_explain() -> None:
    """Kernels of two H200 that store each head where it is needed, beside the same attention with nothing sent."""
    model, unexplained = registered_model("h200-nv18"), []
    for row in json.loads((ROOT / "results" / "h200-x2" / "ulysses" / "summary.json").read_text())["rows"]:
        if row["alone_us"] < 200:
            size = row["heads"] * row["seq"] * row["head_dim"] * 2 * (row["sp"] - 1) // row["sp"]
            asked = KernelTimes(
                local_ns=row["alone_us"] * 1e3, remote_ns=row["fused_us"] * 1e3, bytes=size, tiles=row["heads"] * row["seq"] // 128, warps=8
            )
            found = diagnose_timings(model, asked)
            unexplained.append((found.part("none_of_these").ns or 0.0) / found.total_ns)
    assert len(unexplained) >= 7
    assert max(unexplained) <= 0.01


def test_stalled_or_not_is_right_with_noisy_timings_and_never_of_local_twins() -> None:
    rng = np.random.default_rng(0)
    ratios = [float(r["remote_us"]) / float(r["local_us"]) for r in ROWS]
    assert len(ratios) == 24
    right = []
    for ratio in ratios * 4:
        noisy = 100.0 * np.exp(rng.uniform(-0.005, 0.005, 3))
        found = diagnose_timings(EIGHT, times(128, noisy[0], noisy[1] * ratio))
        right.append((found.stalls == "yes") == (ratio > 1.02))
        assert diagnose_timings(EIGHT, times(128, noisy[0], noisy[2])).stalls == "no"
    assert np.mean(right) >= 0.95


def test_one_timing_and_a_contradiction_are_told() -> None:
    alone = diagnose_timings(EIGHT, replace(times(4096, 1.0, 1067.0), local_ns=None))
    assert (alone.stalls, alone.lost_ns, {p.status for p in alone.parts}) == ("not determined", None, {"not_determined"})
    assert "of the time" in alone.reason
    assert "are the stores really to a peer" in diagnose_timings(EIGHT, times(4096, 843.0, 844.0)).notes[0]
    for wrong in ({"tile_bytes": 1 << 40}, {"noise": 1.0}, {"sms": 0}):
        with pytest.raises(UsageError):
            times(64, 1.0, 2.0, **wrong)


def schedule(work_us: float, size: int, signals: bool = False, tiles: int = 8) -> TaskSchedule:
    """48 SMs with so many tiles each."""
    nothing = np.full(48 * tiles, NONE)
    return TaskSchedule(
        producers=48, producer=np.repeat(np.arange(48), tiles), compute_cycles=np.full(nothing.size, round(work_us * 1980)),
        bytes=np.full(nothing.size, size), remote_bytes=np.full(nothing.size, size), waits_for=nothing,
        signals=np.arange(nothing.size) if signals else nothing, form="single", publish="release.gpu" if signals else "relaxed",
    )  # fmt: skip


def executed(s: TaskSchedule) -> TaskTrace:
    return next(iter(SimDevice(seed=1).execute_tasks([s], repetitions=1, compute="mma")))


@pytest.mark.parametrize(
    ("s", "stalls", "most"),
    [
        (schedule(12, 16384), "no", None),
        (schedule(12, 65536), "yes", "capacity"),
        (schedule(2, 65536), "yes", "drain"),
        (schedule(8, 16384, signals=True), "no", "publishing"),
    ],
    ids=["fits", "overflows", "too much for the link", "publishes"],
)
def test_a_time_line_is_told_apart_as_its_local_twin_says(s: TaskSchedule, stalls: str, most: str | None) -> None:
    remote, local, one_each = executed(s), executed(s.local()), schedule(1, 4096, tiles=1)
    lost = remote.total_ns - local.total_ns
    found, predicted = diagnose_time_line(MODEL, remote, local)
    alone, _ = diagnose_time_line(MODEL, remote)
    assert predicted.schedule is s
    assert (found.stalls, alone.stalls) == (stalls, stalls)
    assert diagnose_time_line(MODEL, replace(local, schedule=s))[0].stalls == "no", "local stores raise no alarm"
    assert found.part("none_of_these").ns <= 0.02 * remote.total_ns  # type: ignore[operator]
    assert found.lost_ns == pytest.approx(lost)
    assert alone.lost_ns == pytest.approx(lost, abs=0.04 * remote.total_ns), "the share of the time that is lost, without the twin"
    if most is not None:
        assert max(CAUSES, key=lambda cause: found.part(cause).ns or 0.0) == most
    assert (alone.part("publishing").status == "ok") == bool((s.signals >= 0).any())
    assert alone.part("late_operands").status == "not_determined"
    with pytest.raises(UsageError, match="the local twin did 48 tasks on 48 SMs, the kernel 384"):
        diagnose_time_line(MODEL, remote, executed(one_each.local()))
    apart, _ = diagnose_time_line(MODEL, remote, local, same_clock=False)
    assert apart.part("out_of_step").status == "not_determined"


def test_tiles_in_step_end_when_their_backlog_repeats() -> None:
    stage = stage_at(MODEL, 132, 4)
    one, two = (lost_cycles(stage, 65536, n, 1e5) for n in (1, 2))
    endless = lost_cycles(stage, 65536, 10**9, 1e5)
    assert endless == pytest.approx(one + (two - one) * (10**9 - 1), rel=1e-6)
    free = stage.free_cycles(4096)
    drained = 4096 * 132 / stage.bytes_per_cycle
    assert lost_cycles(stage, 4096, 10, 1e5) == pytest.approx(10 * free + drained - free)


def test_a_tuner_prunes_ten_times_and_stays_near_the_best() -> None:
    total, sizes = 132 * 8 * 8192, (8192, 16384, 32768, 65536)
    grid = [(size, warps, sms) for size in sizes for warps in (1, 2, 4, 8) for sms in (33, 66, 132)]

    def tiles(PEER: object, size: int, warps: int, sms: int) -> Tiles:
        slower = 1.3 if warps == 1 else 1.0
        return Tiles(tile_ns=600.0 * size / 8192 * slower + 100.0, tiles=total // size, bytes=size, sms=sms, warps=warps)

    estimate = perf_model(MODEL, tiles)
    full = {}
    for size, warps, sms in grid:
        t = tiles(None, size, warps, sms)
        each = np.full(t.tiles, t.bytes)
        s = TaskSchedule(
            producers=sms, producer=np.sort(np.arange(t.tiles) % sms), compute_cycles=np.full(t.tiles, round(t.tile_ns * 1.98)),
            bytes=each, remote_bytes=each, waits_for=np.full(t.tiles, NONE), signals=np.full(t.tiles, NONE), warps=warps, form="single",
            publish="relaxed",
        )  # fmt: skip
        full[size, warps, sms] = predict_tasks(MODEL, s, twin=False).all_visible_ns
    kept = sorted(grid, key=lambda c: estimate(PEER=None, size=c[0], warps=c[1], sms=c[2]))[: len(grid) // 10]
    assert min(full[c] for c in kept) <= 1.02 * min(full.values())
    with pytest.raises(UsageError, match="has no pair 5>6"):
        perf_model(MODEL, tiles, pair="5>6")
