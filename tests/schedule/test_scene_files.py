"""Scene files: what is written reads back, words stand for any node's GPUs, and what cannot be is refused by its line or entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xstage_bench.device.sim.device import SimDevice
from xstage_bench.errors import XStageError
from xstage_bench.model.document import load_model
from xstage_bench.model.scenes import ASSUMED, NO_COMPANY, node_of, predict_scene
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.schedule.scene_files import expanded, is_scene_file, load_scenes, save_scenes
from xstage_bench.schedule.scenes import Companion, Scene


def node(gpus: int, sms: int = 132) -> Node:
    return Node(tuple(Gpu(i, "A", tuple(range(sms)), 1980.0) for i in range(gpus)), (), 32.0)


schedules = st.builds(
    lambda sizes, producers, warps, ends, timed: Schedule(
        tuple(Burst(512 * warps * n, 0 if timed else gap, 10_000 * i if timed else 0) for i, (n, gap) in enumerate(sizes)),
        producers, warps, *ends, "timed" if timed else "free",
    ),
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 5000)), min_size=1, max_size=4),
    st.integers(1, 132) | st.sets(st.integers(0, 131), min_size=1, max_size=5).map(lambda s: tuple(sorted(s))),
    st.integers(1, 4), st.permutations(range(3)).map(lambda p: (p[0], p[1])), st.booleans(),
)  # fmt: skip
company = st.builds(Companion, st.just("pull"), st.just(0), st.just(1), st.just((3, 5)), st.integers(1, 4))
scenes = st.builds(
    Scene,
    st.lists(schedules, min_size=1, max_size=3).map(tuple),
    st.lists(company, max_size=2).map(tuple),
    name=st.text("abc {}", max_size=5),
)


@given(st.lists(scenes, min_size=1, max_size=3))
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, written: list[Scene]) -> None:
    path = tmp_path_factory.getbasetemp() / "scenes.json"
    save_scenes(path, written)
    assert is_scene_file(path)
    assert [expanded(entry, node(3)) for entry in load_scenes(path)] == written


CSV = "scene,schedule,source,destination,producers,warps,start,bytes,gap_cycles,offset_ns\n"


def test_rows_of_a_scene_are_its_schedules(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(
        CSV + "x,a,0,1,132,4,free,65536,0,\nx,a,,,,,,65536,2000,\nx,b,1,0,8,4,isolated,4096,0,1500\ny,c,0,1,8,4,isolated,4096,0,0\n"
    )
    first, second = (expanded(entry, node(2)) for entry in load_scenes(path))
    assert (first.name, second.name) == ("x", "y")
    assert first.schedules[0] == Schedule((Burst(65536), Burst(65536, 2000)), 132, 4, 0, 1, "free")
    assert first.schedules[1] == Schedule((Burst(4096, 0, 1500),), 8, 4, 1, 0, "timed")


def entry(**changed: Any) -> str:
    return json.dumps({"schema_version": 1, "scenes": [{"name": "n", "schedules": [{"bursts": [{"bytes": 65536}], **changed}]}]})


def crowded(smids: int) -> str:
    scene = json.loads(entry())["scenes"][0] | {"name": "n of {gpus}", "company": [{"kind": "pull", "gpu": 0, "other": 1, "smids": smids}]}
    return json.dumps(scene)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.csv", CSV + "x,a,0,1,132,4,free,65536,0,soon\n", "line 2: column 'offset_ns' is 'soon'"),
        ("s.csv", CSV + "x,a,0,1,132,4,free,65536,0,0\nx,b,0,one,132,4,free,65536,0,0\n", "line 3: column 'destination' is 'one'"),
        ("s.json", entry(bursts=[]), "scenes[0]: schedules[0] has no bursts"),
        ("s.json", entry(offset_ns=-1), "scenes[0]: schedules[0]: offset_ns is -1"),
        ("s.json", entry(source="all"), "scenes[0]"),
        ("s.json", entry(destination=5), "schedules[0]: GPU 5 asked for, but there are 2"),
        ("s.json", entry(source="others", destination="others"), "source 'others' needs a destination"),
        ("s.json", entry(destination="others", producers=8), "destination 'others' deals all SMs out"),
        ("s.json", crowded(500), "scene 'n of 2': company 'pull' on 500 SMs, but GPU 0 has 132"),
        ("s.json", entry(offset_ns=10, bursts=[{"bytes": 2048}] * 2), "offset_ns with several bursts"),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(XStageError) as caught:
        [expanded(one, node(2)) for one in load_scenes(tmp_path / name)]
    assert message in str(caught.value)
    assert caught.value.hint


LONG = (Burst(1 << 20),)
MODEL = load_model(h200.MODEL)


def test_two_schedules_of_one_source_share_its_port_and_directions_do_not() -> None:
    halves = tuple(Schedule(LONG, own, 4, 0, 1) for own in (tuple(range(66)), tuple(range(66, 132))))
    both = predict_scene(MODEL, Scene(halves))
    (one,) = predict_scene(MODEL, Scene(halves[:1])).flows
    assert [f.gb_per_s for f in both.flows] == pytest.approx([one.gb_per_s / 2] * 2, rel=0.05)
    assert both.notes == (ASSUMED,)
    assert both.flows[0].issue_ns[0] > 1.8 * both.flows[0].alone_ns[0]
    apart = predict_scene(MODEL, Scene((Schedule(LONG, 132, 4, 0, 1), Schedule(LONG, 132, 4, 1, 0)), (Companion("pull", 0, 1, (3,)),)))
    assert all(f.issue_ns == pytest.approx(f.alone_ns) for f in apart.flows)
    assert apart.notes == (NO_COMPANY,)


def test_a_prediction_is_what_the_simulator_measures(quick_run: Any) -> None:
    model = quick_run[1]
    device = SimDevice("h200-nv18-x2", seed=3)
    own = [tuple(range(start, 132, 2)) for start in (0, 1)]
    for first, second in (((0, 1), (0, 1)), ((0, 1), (1, 0))):
        model_pairs = Scene(tuple(Schedule((Burst(256 << 10),), k, 4, *ends) for k, ends in zip(own, (first, second), strict=True)))
        if any(model.find(f"{s.source}>{s.destination}") is None for s in model_pairs.schedules):
            continue
        traces = device.measure_scene(model_pairs, 3)[1:]
        measured = np.median([t.gb_per_s() for t in traces], axis=0)
        assert [f.gb_per_s for f in predict_scene(model, model_pairs).flows] == pytest.approx(measured, rel=0.12)
    assert len(node_of(model).gpus) == 2
