"""The runner: what is planned is executed and recorded, in random order, and one pair's failure is not the others'."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import xstage_bench.measure.bursts as runner
from xstage_bench.device.backend import BackendChoice, open_device
from xstage_bench.device.sim import SimDevice
from xstage_bench.errors import DeviceLostError, UsageError
from xstage_bench.measure.plan import Options, make_plan
from xstage_bench.measure.planned import summary as summary_of
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution, Node
from xstage_bench.schedule.trace import Trace

SIM = BackendChoice("sim:h200-nv18-x2", "test", True)


@pytest.fixture(scope="module")
def node() -> Node:
    return SimDevice().node()


def test_the_full_plan_has_the_grid_the_model_is_judged_on(node: Node) -> None:
    plan = make_plan(node, Options(SIM))
    assert list(plan.pairs) == [(0, 1), (1, 0)]
    isolated = {(i.schedule.producer_count, i.schedule.warps) for i in plan.pairs[0, 1] if i.probe.name == "isolated" and not i.timeline}
    assert isolated == {(k, w) for k in (1, 8, 12, 16, 24, 32, 48, 64, 96, 132) for w in (1, 2, 4, 8, 16)}
    held = [i.schedule for i in plan.pairs[0, 1] if i.probe.holdout]
    assert len(held) >= 250
    assert {s.start for s in held} == {"isolated", "free", "timed"}
    assert len({s.key() for s in held}) == len(held)
    summary = summary_of(SimDevice(), plan, Options(SIM))
    assert summary["schedules"] >= 2000
    asked = sum(0 if i.timeline else i.repetitions * 3 for items in plan.pairs.values() for i in items)
    assert summary["executions"] == asked + summary["probes"]["runner"]["executions"]


def test_plans_are_seeded_and_differ_between_pairs(node: Node) -> None:
    def held(seed: int, pair: tuple[int, int]) -> list[tuple[Burst, ...]]:
        items = make_plan(node, Options(SIM, only=("holdout",), quick=True, seed=seed)).pairs[pair]
        return [i.schedule.bursts for i in items]

    assert held(1, (0, 1)) == held(1, (0, 1))
    assert held(1, (0, 1)) != held(2, (0, 1))
    assert held(1, (0, 1)) != held(1, (1, 0))


def test_a_local_control_is_measured_once_per_source(node: Node) -> None:
    eight = SimDevice("h200-nvswitch-x8").node()
    plan = make_plan(eight, Options(BackendChoice("sim:h200-nvswitch-x8", "test", True), quick=True))
    items = [i for planned in plan.pairs.values() for i in planned if i.schedule.is_local]
    local = Counter((i.probe.name, i.schedule.source, i.schedule.key()) for i in items)
    assert len(plan.pairs) == 56
    assert set(local.values()) == {1}
    assert {source for _, source, _ in local} == set(range(8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("isolatd",)}, "unknown probe 'isolatd'"),
        ({"pairs": ((0, 5),)}, "pair 0>5 cannot be measured"),
        ({"schedules": (Schedule((Burst(512),), 133),)}, "133 producers asked for, but GPU 0 has 132 SMs"),
        ({"schedules": (Schedule((Burst(512),), 1, source=0, destination=7),)}, "GPU 7 asked for"),
    ],
)
def test_what_cannot_be_planned_is_refused(node: Node, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(node, Options(SIM, **options))


def test_a_run_records_every_planned_execution_once(tmp_path: Path) -> None:
    options = Options(SIM, quick=True, only=("timer", "periodic", "local"), repetitions=6)
    run = runner.record_run(options, tmp_path / "run", ["xstage", "run"])
    samples = run.samples()
    measured = samples[(samples["kind"] == "measure") & (samples["burst"] == 0)]
    plan = make_plan(run.manifest.node, options)
    expected = Counter({(i.probe.name, i.schedule.key()): i.repetitions * 3 for items in plan.pairs.values() for i in items})
    assert Counter(zip(measured["probe"], measured["schedule"], strict=True)) == expected
    assert not measured.duplicated(["schedule", "repetition", "probe"]).any()
    assert set(measured["process"]) == {0, 1, 2}
    first = measured[(measured["process"] == 0) & (measured["source"] == 0)].sort_values("order")
    assert len(set(first["probe"].head(20))) > 1, "probes are mixed at random, so that drift falls on none alone"
    assert (samples["kind"] == "sentinel").any()
    assert set(samples.loc[samples["kind"] == "warmup", "status"]) == {"warmup"}
    assert run.manifest.complete
    assert run.manifest.simulated


def failing(*how: Any, **facts: Any) -> Any:
    """A simulated node on which one pair dies in its second chunk."""
    device, chunks = open_device(*how, **facts), Counter()
    inner = device.measure

    def measure(executions: Sequence[Execution]) -> Iterator[Trace]:
        chunks[executions[0].schedule.source] += 1
        if chunks[0] == 3 and executions[0].schedule.source == 0:
            raise DeviceLostError("pair 0>1: gone", "look")
        return inner(executions)

    device.measure = measure
    return device


def test_a_lost_pair_keeps_what_was_measured_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xstage_bench.measure.order.CHUNK", 100)
    monkeypatch.setattr(runner, "open_device", failing)
    run = runner.record_run(Options(SIM, quick=True, only=("isolated",)), tmp_path / "run", ["xstage", "run"])
    assert run.manifest.failed_pairs == {"0>1": "pair 0>1: gone"}
    samples = run.samples()
    ok = samples[samples["kind"] == "measure"]
    assert (ok["source"] == 0).sum() == 100, "the first chunk of the lost pair is on disk"
    assert set(ok.loc[ok["source"] == 1, "process"]) == {0, 1, 2}


def test_an_interrupt_keeps_what_was_measured_and_resume_finishes_it(tmp_path: Path) -> None:
    options = Options(SIM, quick=True, only=("isolated", "timer"))
    calls = iter([None, None, None])

    def stop(progress: runner.Progress) -> None:
        if next(calls, KeyboardInterrupt) is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.record_run(options, tmp_path / "run", ["xstage"], progress=stop)
    partial = runner.load_run(tmp_path / "run")
    assert not partial.manifest.complete
    assert len(partial.samples()) > 500
    run = runner.record_run(options, tmp_path / "run", ["xstage"], resume=True)
    assert run.manifest.complete
    measured = run.samples().query("kind == 'measure'")
    assert not measured.duplicated(["schedule", "repetition", "burst"]).any()
    planned = [i for items in make_plan(run.manifest.node, options).pairs.values() for i in items if not i.timeline]
    assert len(measured) == 3 * sum(i.repetitions * len(i.schedule.bursts) for i in planned)
