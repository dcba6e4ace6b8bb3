"""The probes `choice` and `sleep`: what they ask for, and that the recorded map of units is what the recorded run shows."""

from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda import layout
from xstage_bench.measure.probe import Probe, Sweep, load_probes
from xstage_bench.schedule.device import Gpu, Node


def node(count: int = 132, name: str = "NVIDIA H200", gpus: int = 2) -> Node:
    every = tuple(Gpu(i, name, tuple(range(count)), 1980.0) for i in range(gpus))
    return Node(every, tuple((a, b) for a in range(gpus) for b in range(gpus) if a != b), 32.0)


def sweep(of: Node, *, quick: bool = False, pair: tuple[int, int] = (0, 1)) -> Sweep:
    return Sweep(of, *pair, quick, np.random.default_rng(0))


@pytest.fixture(scope="module")
def probes() -> dict[str, Probe]:
    return load_probes()


def room(probe: Probe) -> dict[str, Any]:
    """Names of the probe's file."""
    return probe.schedules.__globals__  # type: ignore[attr-defined,no-any-return]


def test_the_map_covers_every_sm_once(probes: dict[str, Probe]) -> None:
    first, second = room(probes["choice"])["halves"]("NVIDIA H200", range(132))
    units = [*first, *second]
    assert sorted(s for u in units for s in u) == list(range(132))
    assert sorted(map(len, units)) == [4] * 6 + [6] * 18
    assert len(first) == len(second) == 12
    assert all(s ^ 1 in u for u in units for s in u), "the two SMs of a pair sit together"


def test_best_and_worst_choices_are_what_they_say(probes: dict[str, Probe]) -> None:
    names = room(probes["choice"])
    first, second = names["halves"]("NVIDIA H200", range(132))
    unit_of = {s: i for i, u in enumerate([*first, *second]) for s in u}

    def members(smids: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.bincount([unit_of[s] for s in smids], minlength=24)

    for count, units in ((8, 2), (16, 3), (32, 6)):
        chosen = names["choices"](sweep(node()), count)
        assert {len(c) for c in chosen.values()} == {count}
        assert np.count_nonzero(members(chosen["packed"])) == units
        assert members(chosen["spread"]).max() == -(-count // 24)
        halves = [members(chosen["spread"])[h].sum() for h in (slice(12), slice(12, 24))]
        assert halves == [count // 2, count // 2]
        assert members(chosen["half0"])[12:].sum() == 0
        assert sum(n.startswith("random") for n in chosen) == 16


def test_another_gpu_gets_what_needs_no_map(probes: dict[str, Probe]) -> None:
    other = sweep(node(148, "NVIDIA B200"))
    chosen = room(probes["choice"])["choices"](other, 8)
    assert {n for n in chosen if not n.startswith("random")} == {"lowest", "every"}
    assert room(probes["choice"])["inside_units"](other) == {}
    assert probes["choice"].schedules(sweep(node(48, "NVIDIA A10"))) == []


def test_every_schedule_can_be_executed(probes: dict[str, Probe]) -> None:
    for name in ("choice", "sleep"):
        wanted = probes[name].schedules(sweep(node()))
        assert len({s.key() for s in wanted}) == len(wanted) > 40
        for schedule in wanted:
            layout.check(schedule, range(132))


def test_silence_is_asked_for_once_per_source_and_not_when_quick(probes: dict[str, Probe]) -> None:
    assert probes["sleep"].schedules(sweep(node(gpus=4), pair=(0, 2))) == []
    assert probes["sleep"].schedules(sweep(node(gpus=4), pair=(2, 0)))
    assert probes["sleep"].schedules(sweep(node(), quick=True)) == probes["choice"].schedules(sweep(node(), quick=True)) == []
    wanted = probes["sleep"].schedules(sweep(node()))
    assert all(s.bursts[0].bytes >= 18 * 512 for s in wanted), "wakes every link of a port before the silence"
    gaps_us = {round(b.gap_cycles / 1980.0) for s in wanted for b in s.bursts[1:]}
    assert (min(gaps_us), max(gaps_us)) == (1, 200_000)
