"""Repetition by rule: what is noisy is repeated more, what is sure is left, and the manifest says which rule ended what."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xstage_bench.cli import run as xstage
from xstage_bench.device.backend import BackendChoice
from xstage_bench.judge.check import criticise
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options, make_plan
from xstage_bench.measure.rounds import Progress
from xstage_bench.measure.until import CEILING, FLOOR, Certainty
from xstage_bench.record.manifest import load_manifest

SIM = BackendChoice("sim:h200-nv18-x2", "test", True)


def trace(mean: float, longest: float | None = None, status: str = "ok") -> Any:
    """As much of a Trace as the rule looks at."""
    found = {"issue_mean_cycles": np.array([mean]), "issue_max_cycles": np.array([mean if longest is None else longest])}
    return SimpleNamespace(status=status, summary=lambda: found)


def test_the_half_width_is_that_of_the_textbook() -> None:
    rule, cell = Certainty(0.02, 3), ("p", "k")
    assert rule.is_open(cell, 0)
    for process, values in enumerate(([98, 100, 102], [198, 200, 202], [298, 300, 302])):  # alike within, apart between
        for value in values:
            rule.take(cell, process, trace(value))
    # Squares sum to 24 over six degrees of freedom, nine values, t = 2.447, mean 200.
    assert rule.half_width(cell, 2) == pytest.approx(2.4469 * np.sqrt(24 / 6 / 9) / 200, rel=1e-3)
    assert not rule.is_open(cell, 2)
    assert Certainty(0.008, 3, rule._cells).is_open(cell, 2)


@pytest.mark.parametrize(
    ("traces", "wanted"),
    [
        ([trace(100)], True),  # below the floor
        ([trace(100), trace(100.01)], False),
        ([trace(100), trace(103)], True),
        ([trace(100, 150), trace(100, 170)], True),  # the slowest producers are not sure
        ([trace(100), trace(900, status="throttled")], True),  # what is marked says nothing
        ([trace(0), trace(0)], False),  # the timer's empty bursts
    ],
)
def test_who_is_repeated_again(traces: list[Any], wanted: bool) -> None:
    rule = Certainty(0.01, 3)
    for each in traces:
        rule.take(("p", "k"), 0, each)
    assert rule.is_open(("p", "k"), 0) is wanted


def test_a_run_stops_where_it_is_sure_and_says_so(tmp_path: Path) -> None:
    loose, tight = (Options(SIM, pairs=((0, 1),), only=("issue",), quick=True, seed=3, until=u) for u in (0.05, 0.0005))
    runs = [record_run(o, tmp_path / str(o.until), ["xstage"]) for o in (loose, tight)]
    executions = []
    for run, options in zip(runs, (loose, tight), strict=True):
        planned = [i for i in make_plan(run.manifest.node, options).pairs[0, 1] if not i.timeline]
        measured = run.samples().query("kind == 'measure' and burst == 0")
        count = measured.groupby(["probe", "schedule", "process"], observed=True).size()
        assert not measured.duplicated(["schedule", "repetition", "probe"]).any()
        assert count.groupby(["probe", "schedule"], observed=True).size().eq(3).all(), "every process has its part"
        assert count.min() >= FLOOR
        assert count.max() <= CEILING * 3
        stopping = run.manifest.stopping
        assert stopping is not None
        assert (stopping["until"], stopping["floor"], list(stopping["pairs"])) == (options.until, 3 * FLOOR, ["0>1"])
        ends = stopping["pairs"]["0>1"]
        assert ends["budget"] == {}
        late = {(probe, key) for probe, cells in ends["ceiling"].items() for key in cells}
        assert ends["sure"] + len(late) == len(planned)
        assert all(width is None or width >= options.until for cells in ends["ceiling"].values() for width in cells.values())
        per_process = {(i.probe.name, i.schedule.key()): i.repetitions for i in planned}
        assert all(count[probe, key, 2] == per_process[probe, key] for probe, key in late), "the last process used its ceiling"
        executions.append(len(measured))
    assert executions[0] < 0.75 * executions[1]
    assert load_manifest(runs[0].folder).stopping == runs[0].manifest.stopping
    said = [{f.check: f for f in criticise(run, None)}["repetitions"] for run in runs]
    assert [f.status for f in said] == ["ok" if not runs[0].manifest.stopping["pairs"]["0>1"]["ceiling"] else "warn", "warn"]  # type: ignore[index]
    assert "0.05 %" in said[1].detail


def test_a_resumed_run_remembers_how_sure_it_was(tmp_path: Path) -> None:
    options = Options(SIM, pairs=((0, 1),), only=("timer", "issue"), quick=True, seed=3, until=0.05)
    whole = record_run(options, tmp_path / "whole", ["xstage"])
    calls = iter([None] * 6)

    def stop(progress: Progress) -> None:
        if next(calls, KeyboardInterrupt) is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_run(options, tmp_path / "run", ["xstage"], progress=stop)
    resumed = record_run(options, tmp_path / "run", ["xstage"], resume=True)
    ends, asked = resumed.manifest.stopping["pairs"]["0>1"], whole.manifest.stopping["pairs"]["0>1"]  # type: ignore[index]
    assert ends["sure"] == pytest.approx(asked["sure"], abs=3), "its device's noise is not that of the run in one go"
    assert len(resumed.samples()) < 1.2 * len(whole.samples())
    assert ends["budget"] == {}


def test_a_budget_is_named_as_what_ended_a_schedule(tmp_path: Path) -> None:
    options = Options(SIM, pairs=((0, 1),), only=("isolated",), quick=True, until=1e-6, budget_s=0.05)
    ends = record_run(options, tmp_path / "run", ["xstage"]).manifest.stopping["pairs"]["0>1"]  # type: ignore[index]
    assert ends["sure"] == 0
    assert len(ends["budget"]["isolated"]) > 100


@pytest.mark.parametrize("verb", [("run", "--only", "timer"), ("measure", "timer")])
def test_every_verb_that_runs_probes_takes_the_counts(tmp_path: Path, verb: tuple[str, ...]) -> None:
    out = tmp_path / "run"
    words = ["--until", "2%", "--repetitions", "8", "--processes", "2", "--warmup", "5", "--quick", "--pairs", "0:1"]
    assert xstage([*verb, "--backend", "sim", *words, "--out", str(out)]) == 0
    options = load_manifest(out).options
    assert {name: options[name] for name in ("until", "repetitions", "processes", "warmup")} == {
        "until": 0.02, "repetitions": 8, "processes": 2, "warmup": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--backend", "sim", "--until", "0"], "not between 0 and 100"),
        (["run", "--backend", "replay:h200-nv18", "--until", "1%"], "a recording has the repetitions that it has"),
    ],
)
def test_what_cannot_be_asked(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert xstage([*words, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
