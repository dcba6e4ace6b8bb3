"""Every way to do attention and All-to-All brings every row to its owner: the real plans, tables and flags, executed by fake GPUs."""

from __future__ import annotations

import itertools
from typing import Any

import fake_gpus as fakes
import numpy as np
import pytest

from xstage_bench.kernels.attention import plans, variants
from xstage_bench.kernels.attention.attention import FLAGS, STORES, AttentionBuild
from xstage_bench.kernels.attention.forecast import AttentionTileTimes
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.run import PAIR, measure_case
from xstage_bench.kernels.attention.summary import summarise
from xstage_bench.kernels.attention.tile_order import ORDERS

PROBLEMS = [
    (Problem(4, 4, 64, 1, 2), 2),
    (Problem(4, 2, 64, 127, 2), 2),
    (Problem(6, 6, 64, 700, 3), 3),
    (Problem(4, 1, 128, 333, 4), 4),
    (Problem(8, 8, 64, 333, 8), 2),
    (Problem(4, 4, 64, 130, 4), 2),
    (Problem(6, 1, 64, 401, 3), 3),
]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(plans, "rows_of_heads", fakes.encode)

    def rig_of(problem: Problem, gpus: int) -> tuple[Any, Rig]:
        machine = fakes.Machine(gpus)
        return machine, Rig(machine.gpus, Placing(problem, tuple(range(gpus))), seed=3)

    return rig_of


def check(machine: Any, rig: Rig, variant: variants.AttentionVariant, launches: int = 1) -> None:
    def run() -> None:
        variant.queue()
        machine.settle()

    for _ in range(launches):
        found = rig.verify(run)
        assert found["unwritten"] == found["stray"] == 0, variant.name
        assert not found["late"]
        assert all(v.ok for v in found["ranks"]), (variant.name, found)  # type: ignore[attr-defined]
        assert not variant.late()


@pytest.mark.parametrize(("problem", "gpus"), PROBLEMS, ids=lambda v: f"{v.heads}x{v.seq}/{v.ranks}" if isinstance(v, Problem) else str(v))
def test_every_row_reaches_its_owner(make: Any, problem: Problem, gpus: int) -> None:
    machine, rig = make(problem, gpus)
    for consumers, store, flags in itertools.product((2, 3), STORES, FLAGS):
        build = AttentionBuild(problem.head_dim, 128, consumers, store=store)
        for order in ORDERS if flags == "shard" else ["row-major"]:
            check(machine, rig, variants.fused(rig, build, order, flags), launches=2)
    machine, rig = make(problem, gpus)
    build = AttentionBuild(problem.head_dim, 128, 2)
    check(machine, rig, variants.then_push(rig, build))
    check(machine, rig, variants.beside_copying_sms(rig, build, 8), launches=2)
    check(machine, rig, variants.then_nccl(rig, build, fakes.FakeNccl(machine)))


def test_a_variant_that_sends_nothing_is_found_out(make: Any) -> None:
    _, rig = make(Problem(4, 4, 64, 127, 2), 2)
    found = rig.verify(variants.alone(rig, AttentionBuild(64, 128, 2)).queue)
    assert found["unwritten"] == 4 * 127 * 64
    assert not any(v.ok for v in found["ranks"])


def test_stamps_of_every_tile_come_back(make: Any) -> None:
    _, rig = make(Problem(4, 4, 64, 700, 2), 2)
    stamps = variants.stamped(rig, AttentionBuild(64, 128, 3), None)
    assert stamps.shape == (2 * 4, 3)
    assert stamps["tile"][:, 0].tolist() == list(range(8))
    assert AttentionTileTimes.of(stamps, 132).wave_us == [0.9]


class FixedGate:
    """A gate that executes nothing on a clock: each variant takes what it is said to take, on both ranks."""

    def __init__(self, us: dict[str, float]) -> None:
        self.us = us

    def __len__(self) -> int:
        return 2

    def time_us(self, variant: variants.AttentionVariant) -> np.ndarray:
        variant.queue()
        return np.full(2, self.us[variant.name])


def test_a_case_of_pairs_checks_its_result_and_times_two_variants(make: Any) -> None:
    machine = fakes.Machine(2)
    problem = Problem(4, 4, 64, 700, 2, "x")
    gate = FixedGate({"alone": 100.0, "fused st.v4 owner-interleaved": 103.0})
    job = {"pairs": True, "seconds": 1e-6, "seed": 0}
    row = measure_case(Placing(problem, (0, 1)), machine.gpus, gate, None, np.random.default_rng(0), job)
    assert row["rounds"] == PAIR.rounds
    assert set(row["times_us"]) == set(gate.us)
    assert {name: found["ok"] for name, found in row["checked"].items()} == {"fused st.v4 owner-interleaved": True}
    (found,) = summarise({"rows": [row]})["rows"]
    assert found["fused_over_alone"]["value"] == pytest.approx(1.03)
    assert found["serial_push_us"] is None
    assert found["speed_up"] == found["hidden_share"] == {}
