"""The table of flavours, layouts and completions: what schedules accept, what a plan leaves out, what a run remembers."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.cuda import layout
from xstage_bench.errors import UsageError
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options, make_plan
from xstage_bench.measure.probe import Sweep, load_probes
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.completion import INSTRUCTIONS, completion_of, every_completion
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.flavour import FLAVOURS, WARP_STORE_BYTES, Flavour, for_architecture, load_flavour, register
from xstage_bench.schedule.layouts import LAYOUTS, load_layout

SMIDS = tuple(range(132))
PLAIN = Node((Gpu(0, "A", SMIDS, 1980.0), Gpu(1, "A", SMIDS, 1980.0)), ((0, 1), (1, 0)), 32.0, 478.0)
HOPPER = Node(*(PLAIN.gpus, PLAIN.pairs, 32.0, 478.0, None), for_architecture("sm_90"), tuple(LAYOUTS), every_completion())
SIM = BackendChoice("sim:h200-nv18-x2", "asked for", True)
OWN = "// xstage-flavour: name=st.own.test function=st_own bytes=8 kind=store\nstatic __device__ void st_own(char *, u32, u32, u32, u32);\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Flavour]:
    (tmp_path / "own.cuh").write_text(OWN)
    yield load_flavour(tmp_path / "own.cuh")
    FLAVOURS.pop("st.own.test", None)
    WARP_STORE_BYTES.pop("st.own.test", None)


def test_keys_of_plain_schedules_are_those_of_recorded_runs() -> None:
    assert Schedule((Burst(512),), 4).key() == "d8f472bb3554f3a0"
    assert Schedule((Burst(512),), 4, completion="fence.gpu").key() != Schedule((Burst(512),), 4).key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flavour": "st.v2", "layout": "nowhere"}, "unknown layout 'nowhere'"),
        ({"flavour": "bulk.512", "layout": "rows256"}, "layout 'rows256' cannot be had with flavour 'bulk.512'"),
        ({"layout": "rows256", "warps": 3}, "takes a power of two"),
        ({"completion": "fence.galaxy"}, "unknown completion 'fence.galaxy'"),
        ({"completion": "fence.gpu@host"}, "unknown completion 'fence.gpu@host'"),
        ({"completion": "fence.gpu@warp", "warps": 16}, "needs a warp that does not store"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        Schedule((Burst(0),), 4, **change)  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule((Burst(512),), 132, completion="fence.gpu@sm"), "needs an SM that does not store"),
        (Schedule((Burst(16 * 32768),), 4, 16, flavour="bulk.32768"), "do not fit into shared memory"),
        (Schedule((Burst(64 << 20),), 4, 4, flavour="red.bf16x2"), "its sums are not exact"),
        (Schedule((Burst(128),) * 65, 4, 1, start="free", flavour="bulk.128"), "65 bursts"),
    ],
)
def test_what_the_instrument_cannot_hold_is_refused_before_launch(schedule: Schedule, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        layout.check(schedule, SMIDS)


def test_names_of_completions_come_apart() -> None:
    names = every_completion()
    assert names[0] == "fence.sys"
    assert len(set(names)) == 3 * len(INSTRUCTIONS)
    assert [(c.instruction, c.who) for c in map(completion_of, ("fence.gpu", "st.release.sys@warp", "red.release.gpu@sm"))] == [
        ("fence.gpu", "self"),
        ("st.release.sys", "warp"),
        ("red.release.gpu", "sm"),
    ]


def test_an_architecture_knows_what_was_declared_for_it_or_an_older_one() -> None:
    assert "red.v4.f32" not in for_architecture("sm_80")
    assert "bulk.2048" in for_architecture("sm_90")
    assert "st.v8" not in for_architecture("sm_90")
    assert set(for_architecture("sm_120")) == set(FLAVOURS)


@pytest.mark.parametrize("name", ["flavours", "layouts", "fences", "flavour_issue", "flavour_trains", "flavour_holdout", "bulk_fences"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_schedule_of_these_probes_can_be_executed(name: str, quick: bool) -> None:
    schedules = load_probes()[name].schedules(Sweep(HOPPER, 0, 1, quick, np.random.default_rng(0)))
    mine = [s for s in schedules if HOPPER.cannot(s) is None]
    assert len(mine) > 100
    for s in mine:
        layout.check(s, SMIDS)
    assert not [s for s in schedules if FLAVOURS[s.flavour].alias_of is not None], "aliases are one row"


def test_a_device_that_does_not_know_them_leaves_them_out_and_says_so() -> None:
    default = make_plan(HOPPER, Options(SIM, quick=True)).pairs.values()
    assert not {i.probe.name for items in default for i in items} & {"flavours", "layouts", "fences"}, "asked for by name only"
    plan = make_plan(PLAIN, Options(SIM, only=("flavours", "layouts", "fences"), quick=True))
    assert {i.schedule.flavour for items in plan.pairs.values() for i in items} == {"st.v4"}
    assert any("flavour bulk.2048" in note for note in plan.notes)
    assert any("layout rows256" in note for note in plan.notes)
    assert any("completion fence.gpu" in note for note in plan.notes) or any("completion red.release.gpu" in note for note in plan.notes)
    with pytest.raises(UsageError, match=r"this device does not know flavour st\.v2"):
        make_plan(PLAIN, Options(SIM, schedules=(Schedule((Burst(256),), 4, flavour="st.v2"),)))


def test_a_launch_has_one_variant() -> None:
    mixed = [Execution(Schedule((Burst(2048),), 4, flavour=f)) for f in ("st.v4", "st.v4", "st.v2", "st.v4")]
    batches = list(layout.batches(mixed, SMIDS, 1980.0, 0))
    assert [(b.variant.flavour.name, len(b.executions)) for b in batches] == [("st.v4", 2), ("st.v2", 1), ("st.v4", 1)]


def test_one_idle_sm_is_set_apart_for_completions_elsewhere() -> None:
    (batch,) = layout.batches([Execution(Schedule((Burst(512),), k)) for k in (4, 132)], SMIDS, 1980.0, 0)
    assert [(row == layout.ELSEWHERE).sum() for row in batch.producer_of] == [1, 0]
    assert [(row >= 0).sum() for row in batch.producer_of] == [4, 132]


def test_a_run_remembers_the_users_own_flavour_and_layout(own: Flavour, tmp_path: Path) -> None:
    (tmp_path / "layout.cuh").write_text("// xstage-layout: name=own.test function=place_own\n")
    layout = load_layout(tmp_path / "layout.cuh")
    register(own)
    run = record_run(Options(SIM, only=("timer",), quick=True, own=(own, layout)), tmp_path / "run", ["xstage"])
    del FLAVOURS["st.own.test"]
    load_run(run.folder)
    assert FLAVOURS["st.own.test"] == own
    assert LAYOUTS.pop("own.test") == layout
    with pytest.raises(UsageError, match=r"there is a flavour 'st\.own\.test' already"):
        register(Flavour("st.own.test", "other", 16, "store", ("sm_90",), ""))
