"""Scenes: who may sit on which SM, the patterns, and what is reported of several schedules at once."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.device.cuda.scene import pack
from xstage_bench.errors import UsageError
from xstage_bench.measure.scene_summary import SceneRepetition, summarise
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.schedule.patterns import PATTERNS, all_to_all, fan_out, incast, pair, usable
from xstage_bench.schedule.scenes import Companion, Scene, SceneTrace, seats
from xstage_bench.schedule.studies import STUDIES
from xstage_bench.schedule.trace import Trace

B = (Burst(8192),)


def node(gpus: int = 2, sms: int = 132, unusable: dict[str, str] | None = None) -> Node:
    pairs = tuple((a, b) for a in range(gpus) for b in range(gpus) if a != b and f"{a}>{b}" not in (unusable or {}))
    return Node(tuple(Gpu(i, "g", tuple(range(sms)), 1980.0) for i in range(gpus)), pairs, 32.0, None, unusable)


@pytest.mark.parametrize("gpus", [2, 3, 8])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_have_the_flows_they_promise_and_fit_on_the_sms(name: str, gpus: int) -> None:
    scene = PATTERNS[name](node(gpus), B)
    flows = [(s.source, s.destination) for s in scene.schedules]
    assert (
        len(flows)
        == {"pair": 1, "both_directions": 2, "fan_out": gpus - 1, "incast": gpus - 1, "all_to_all": gpus * (gpus - 1), "ring": gpus}[name]
    )
    assert len(set(flows)) == len(flows)
    assert set(flows) <= set(node(gpus).pairs)
    for table in seats(scene, node(gpus)).values():
        assert ((table[..., 0] >= 0).sum(axis=1) <= 4).all(), "the producers of a source are split over its destinations"


def test_several_producers_of_an_sm_have_warps_of_their_own() -> None:
    one = Schedule(B, (0, 1), 4, 0, 1)
    table = seats(Scene((one, Schedule(B, (1, 2), 8, 0, 1))), node())[0]
    assert table[1, :, 0].tolist() == [0] * 4 + [1] * 8 + [-1] * 4
    assert table[1, :12, 3].tolist() == [0] * 4 + [4] * 8
    assert table[2, :8, 1].tolist() == [1] * 8
    with pytest.raises(UsageError, match="SM 0 of GPU 0 would need 20 warps"):
        seats(Scene((one,) * 5), node())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Scene(()), "needs a schedule"),
        (lambda: Scene((Schedule(B * 2, 1, 4),)), "one burst"),
        (lambda: Companion("copy", 0, 1, (0,)), "a copy is local|memory of GPU 1"),
        (lambda: Companion("pull", 0, 0, (0,)), "memory of GPU 0"),
        (lambda: Companion("pull.bulk", 0, 1, (0,), 2), "warps is 2"),
        (lambda: Companion("pull", 0, 1, (1, 0)), "ascending"),
        (lambda: seats(Scene((Schedule(B, 1, 4, 0, 5),)), node()), "GPU 5 asked for"),
        (lambda: seats(Scene((), (Companion("pull", 0, 1, (500,)),)), node()), "no SM with smid 500"),
        (lambda: incast(node(1), B), "needs two GPUs"),
        (lambda: pair(node(), B, destination=7), "GPU 7 asked for"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, words) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_unreachable_pairs_are_waived_with_the_reason() -> None:
    broken = node(3, unusable={"0>1": "links down", "2>1": "links down"})
    scene, waived = usable(all_to_all(broken, B), broken)
    assert waived == {"0>1": "links down", "2>1": "links down"}
    assert len(scene.schedules) == 4
    with pytest.raises(UsageError, match="0>1: links down"):
        usable(pair(broken, B), broken)
    assert usable(Scene((Schedule(B, 1, 4, 0, HOST),)), broken)[1] == {}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_fits_on_two_gpus(name: str) -> None:
    scenes = STUDIES[name](node())
    assert len({s.name for s in scenes}) > 1
    for scene in scenes:
        pack(scene, node(), 2, 0)


def test_pairs_at_once_are_all_pairs_and_fans_deal_out_every_sm() -> None:
    every = {(a, b) for a in range(4) for b in range(4) if a != b}
    scenes = STUDIES["pairs_at_once"](node(4))
    assert [s.pairs() for s in scenes[:12]] == [(p,) for p in sorted(every)]
    together = [s.pairs() for s in scenes[12:]]
    assert sorted(p for pairs in together for p in pairs) == sorted(every)
    for pairs in together:  # disjoint: one coming in and one going out everywhere
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == 4
    several = STUDIES["several_peers"](node(4))
    assert {len(s.pairs()) for s in several} == {1, 2, 3}
    fans = [s for s in several if s.name == "fan-out of 0 to 3"]
    assert {sum(x.producer_count for x in s.schedules) for s in fans} == {node(4).gpus[0].sm_count}
    dealt = [s.producers for s in fan_out(node(8), B, source=3).schedules]
    assert sorted(x for chosen in dealt for x in chosen) == list(range(132))  # type: ignore[union-attr]
    assert all(smid ^ 1 in chosen for chosen in dealt for smid in chosen)  # type: ignore[operator]


def test_a_node_of_one_gpu_has_host_memory() -> None:
    (scene,) = STUDIES["host"](node(1))
    assert pack(scene, node(1), 2, 0).memory.keys() == {HOST}
    assert pair(node(1), B, destination=HOST).schedules[0].destination == HOST
    assert STUDIES["patterns"](node(1)) == []


def trace(s: Schedule, start: float, end: float) -> Trace:
    n, k = len(s.bursts), s.producer_count
    ones = np.ones((n, k))
    return Trace(s, np.arange(k), (end - start) * 2 * ones, np.nan * ones, start * ones, end * ones, 10 * ones, 2000.0)


def test_overlap_counts_the_skew_bound_against_itself() -> None:
    s = Schedule(B, 2, 4, 0, 1)
    scene = Scene((s, Schedule(B, 2, 4, 1, 0)))
    both = SceneTrace(scene, (trace(s, 0, 1000), trace(s, 100, 900)), np.zeros((0, 64)), 50.0, np.zeros(2), np.zeros(2))
    assert both.overlap() == pytest.approx(0.75)
    np.testing.assert_allclose(both.gb_per_s(), [16.384, 20.48])
    apart = SceneTrace(scene, (trace(s, 0, 100), trace(s, 200, 300)), np.zeros((0, 64)), 0.0, np.zeros(2), np.zeros(2))
    assert apart.overlap() == 0.0


def test_company_is_counted_while_the_schedules_are_under_way() -> None:
    s = Schedule(B, 2, 4, 0, 1)
    c = Companion("copy", 1, 1, (0,))
    ends = np.arange(1, 65) * 10_000.0
    moved = np.where(ends <= 320_000, 5.0 * ends, 5.0 * 320_000 + 2.0 * (ends - 320_000))  # 5 GB/s, then 2
    scene = Scene((s,), (c,), company_ns=640_000)
    found = SceneTrace(scene, (trace(s, 0, 320_000),), moved[None], 0.0, np.zeros(2), np.zeros(1))
    assert found.company_gb_per_s()[0] == pytest.approx(5.0)
    alone = SceneTrace(Scene((), (c,), company_ns=640_000), (), moved[None], 0.0, np.zeros(2), np.zeros(0))
    assert 3.3 < alone.company_gb_per_s()[0] < 3.6


def test_the_summary_has_the_spread_between_processes_in_its_interval() -> None:
    s = Schedule(B, 2, 4, 0, 1)
    scene = Scene((s,), name="x")

    def measured(process: int, end: float) -> SceneRepetition:
        return SceneRepetition(process, SceneTrace(scene, (trace(s, 0, end),), np.zeros((0, 64)), 0.0, np.zeros(1), np.zeros(1)))

    row = summarise([measured(p, 1000 + 10 * p + i) for p in range(3) for i in range(5)])
    issue = row["schedules"][0]["issue_mean_cycles"]
    assert issue.value == pytest.approx(2 * 1012)
    assert issue.low < 2 * 1002 < 2 * 1022 < issue.high
    assert row["schedules"][0]["gap_mean_cycles"].value is None
    assert row["left_out"] == {}
