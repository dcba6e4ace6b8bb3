"""The judge of a model: each limit from both sides, whose errors it is held against, and what check, validate and predict then say."""

import json
from dataclasses import replace

import pytest
from gate_world import World, model_of, record

from xstage_bench.cli import run
from xstage_bench.judge.gate import ReferenceErrors, Yardstick, findings, judge_model, judged, with_verdicts, yardstick_for, yardsticks
from xstage_bench.model.document import (
    IssueTimeError,
    Model,
    ModelScore,
    NoiseFloor,
    TotalTimeError,
    Validation,
    digest,
    load_model,
    load_validation,
)
from xstage_bench.schedule.bursts import Burst, Schedule


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(World())


def errors(**change: object) -> ReferenceErrors:
    made = ReferenceErrors(
        flavour="st.v4", family="holdout", model="node", median_error=0.02, p95_error=0.18, regime_balanced_accuracy=0.98,
        interval_coverage_90=0.92,
    )  # fmt: skip
    return replace(made, **change)


OURS = Yardstick(name="ours", gpus=["NVIDIA H200"], destination="gpu", source="here", errors=[errors()], default=True)
TINY = errors(family="holdout_tiny", median_error=None, p95_error=0.3, regime_balanced_accuracy=None, interval_coverage_90=None, bar=True)


def score(median=0.02, p95=0.18, regime=0.98, coverage=0.92, spread=None, **change: object) -> ModelScore:
    made = ModelScore(
        model="node", pair="0>1", flavour="st.v4", statistic="issue_mean", n_schedules=260, n_bursts=2400,
        issue_time=IssueTimeError(median_error=median, p90_error=p95, p95_error=p95),
        total_time=TotalTimeError(median_error=0.01, p95_error=0.05), regime_balanced_accuracy=regime, interval_coverage_90=coverage,
        interval_score=0.4, standard_errors=spread or {},
    )  # fmt: skip
    return replace(made, **change)


def validation(*scores: ModelScore, floor: float | None = None) -> Validation:
    noise = NoiseFloor(pair="0>1", flavour="st.v4", family="holdout", processes=3, n_bursts=9, median=floor, p90=floor, p95=floor)
    return Validation(
        schema_version=1, backend="sim:known-truth", models=[s for s in scores if s.family == "holdout"], families=list(scores),
        noise_floor=[noise],
    )  # fmt: skip


def statuses(model: Model, *scores: ModelScore, floor: float | None = None, known: tuple[Yardstick, ...] = (OURS,)) -> dict[str, str]:
    return {f"{g.family} {g.quantity}": g.status for g in judge_model(model, validation(*scores, floor=floor), known) if g.status != "pass"}


@pytest.mark.parametrize(
    ("inside", "outside", "quantity", "yardstick"),
    [
        ({"median": 0.0399}, {"median": 0.0401}, "median error", OURS),
        ({"p95": 0.3599}, {"p95": 0.3601}, "p95 error", OURS),
        ({"regime": 0.9601}, {"regime": 0.9599}, "stall or not", OURS),
        ({"coverage": 0.8001}, {"coverage": 0.7999}, "interval coverage", OURS),
        ({"coverage": 0.71}, {"coverage": 0.69}, "interval coverage", replace(OURS, errors=[errors(interval_coverage_90=0.80)])),
    ],
)
def test_each_limit_is_twice_the_yardsticks_error_and_seen_from_both_sides(model, inside, outside, quantity, yardstick):
    assert statuses(model, score(**inside), known=(yardstick,)) == {}
    assert statuses(model, score(**outside), known=(yardstick,)) == {f"holdout {quantity}": "fail"}


def test_no_model_is_asked_to_be_better_than_the_noise(model):
    bad = score(median=0.055, p95=0.18)
    assert statuses(model, bad, floor=0.02) == {"holdout median error": "fail"}
    assert statuses(model, bad, floor=0.03) == {}
    (gate,) = (g for g in judge_model(model, validation(bad, floor=0.03), (OURS,)) if g.quantity == "median error")
    assert gate.limit == pytest.approx(0.06)
    assert "noise floor" in gate.sentence()


def test_what_chance_may_explain_is_undetermined(model):
    assert statuses(model, score(median=0.044, spread={"median_error": 0.003})) == {"holdout median error": "undetermined"}
    assert statuses(model, score(median=0.046, spread={"median_error": 0.003})) == {"holdout median error": "fail"}
    gates = judge_model(model, validation(score(median=0.044, spread={"median_error": 0.003})), (OURS,))
    (said,) = findings(model, validation(), gates)
    assert (said.status, "too few held-out bursts" in said.detail) == ("warn", True)


def test_tiny_bursts_are_judged_on_their_own(model):
    known = (replace(OURS, errors=[errors(), TINY]),)
    good, bad = score(p95=0.59, median=0.3, regime=0.5, family="holdout_tiny"), score(p95=0.61, family="holdout_tiny")
    assert statuses(model, score(), good, known=known) == {}
    assert statuses(model, score(), bad, known=known) == {"holdout_tiny p95 error": "fail"}
    (gate,) = (g for g in judge_model(model, validation(score(), bad), known) if g.status == "fail")
    assert "the bar for holdout_tiny" in gate.sentence(), "a bar is not passed off as a recording"


def test_a_flavour_is_judged_by_its_own_errors_or_by_those_of_plain_stores_where_larger(model):
    other = replace(model, pairs=[replace(p, flavour="st.v2") for p in model.pairs])
    for own, limit in ((0.05, 0.10), (0.001, 0.04)):
        known = (replace(OURS, errors=[errors(), errors(flavour="st.v2", median_error=own)]),)
        assert statuses(other, score(flavour="st.v2", median=limit * 0.99), known=known) == {}
        assert statuses(other, score(flavour="st.v2", median=limit * 1.01), known=known) == {"holdout median error": "fail"}


def test_only_the_model_that_predicts_is_judged(model):
    rough = score(median=0.2, p95=4.0, model="burst_gap")
    both = (replace(OURS, errors=[errors(), errors(model="burst_gap", median_error=0.1, p95_error=1.8, interval_coverage_90=None)]),)
    assert statuses(model, score(), rough, known=both) == {}
    bare = replace(model, pairs=[replace(p, node_basis=None) for p in model.pairs])
    assert set(statuses(bare, score(), rough, known=both)) == {"holdout p95 error"}


def test_another_gpu_is_held_against_the_default_which_is_named():
    other = yardstick_for("NVIDIA B200", "gpu", (OURS,))
    assert "no node of NVIDIA B200 is recorded" in other.name
    assert yardstick_for("NVIDIA H200", "gpu", (OURS,)).name == "ours"
    for destination in ("gpu", "host"):
        assert sum(y.default for y in yardsticks() if y.destination == destination) == 1
    assert all(y.source for y in yardsticks())


def test_without_a_hold_out_nothing_is_judged_and_that_is_said(model):
    for seen in (None, validation()):
        (said,) = findings(model, seen, judge_model(model, seen, (OURS,)))
        assert (said.status, said.detail.startswith("not judged")) == ("warn", True)
        assert said.hint
    assert {p.holdout_status for p in with_verdicts(model, []).pairs} == {"not_judged"}


def test_another_fits_validation_judges_nothing(model):
    seen = replace(validation(score(median=0.5)), fitted=digest(model))
    assert [f.status for f in judged(model, seen)[1]] == ["fail"]
    again = replace(model, seed=model.seed + 1)
    ((said,), verdicts) = judged(again, seen)[1], {p.holdout_status for p in judged(again, seen)[0].pairs}
    assert (said.status, said.hint, verdicts) == ("warn", "xstage validate RUN", {"not_judged"})
    assert digest(judged(model, seen)[0]) == digest(model), "a verdict is no part of the fit"


#: As runs on two H200 went, to a GPU and to host memory: what was wrong with the stamp, and what the model then missed.
RUNS = {
    "issued": (World(seed=0, issued=True), {"p95 error", "stall or not", "p95 error of tiny bursts"}),
    "as recorded": (World(seed=7771), set()),
    "fenced": (World(seed=7771, fence_cycles=18), {"median error"}),
    "host, issued": (
        World(seed=5151, issued=True, host=True),
        {"p95 error", "stall or not", "interval coverage", "p95 error of tiny bursts"},
    ),
    "host, fenced": (World(seed=5151, tail=0.62, fence_cycles=18, host=True), {"p95 error"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_check_fails_exactly_those_runs_that_miss(name, tmp_path, capsysbinary):
    """From samples to verdict: the run folder is written, validated and checked as a user would."""
    world, missed = RUNS[name]
    folder = record(world, tmp_path / "run")
    assert run(["validate", str(folder)]) == 0
    capsysbinary.readouterr()
    status = run(["check", str(folder), "--json"])
    document = json.loads(capsysbinary.readouterr().out)
    assert status == (4 if missed else 0), document
    assert document["verdict"] == ("fail" if missed else "warn")
    said = load_model(folder / "model.json").pairs[0].holdout
    assert said is not None
    assert said.status == ("fail" if missed else "pass")
    for words in missed:
        assert any(f"node model, {words} " in reason for reason in said.reasons), (words, said.reasons)
    if world.fence_cycles and not world.host:
        assert len(said.reasons) <= 2, "what misses is the median, of the run or of its tiny bursts"


def test_a_prediction_by_a_model_that_missed_says_so(tmp_path, capsysbinary):
    import xstage_bench

    folder = record(World(seed=3, issued=True, probes=("holdout",)), tmp_path / "run")
    schedule = tmp_path / "s.json"
    schedule.write_text(json.dumps({"producers": 132, "warps": 4, "bursts": [{"bytes": 65536}]}))

    def ask() -> tuple[dict[str, object], bytes]:
        assert run(["predict", str(folder), str(schedule), "--json"]) == 0
        out, err = capsysbinary.readouterr()
        return json.loads(out), err

    document, err = ask()
    assert document["model_gate"] == {"0>1 st.v4": None}
    assert b"MISSED" not in err
    assert run(["validate", str(folder)]) == 0
    capsysbinary.readouterr()
    document, err = ask()
    assert document["model_gate"]["0>1 st.v4"]["status"] == "fail"
    assert document["schedules"][0]["holdout"] == "fail"
    assert b"MISSED: the model of 0>1 st.v4 missed its own hold-out: node model, p95 error" in err
    found = xstage_bench.predict(xstage_bench.load_model(folder / "model.json"), Schedule((Burst(65536),), 132, 4))
    assert found.holdout == "fail"


def test_the_noise_floor_is_what_one_process_says_of_the_others(tmp_path, capsysbinary):
    folder = record(World(seed=5, noise=0.05, probes=("holdout",)), tmp_path / "run")
    assert run(["validate", str(folder)]) == 0
    capsysbinary.readouterr()
    found = load_validation(folder / "validation.json")
    (floor,) = found.noise_floor
    # |a / median(b, c) - 1| of three normal deviates of 5 %: a standard deviation of 0.05 * sqrt(1 + 1/2).
    assert floor.median == pytest.approx(0.6745 * 0.05 * 1.5**0.5, rel=0.06)
    assert floor.p95 == pytest.approx(1.96 * 0.05 * 1.5**0.5, rel=0.1)
    assert (floor.processes, floor.family) == (3, "holdout")
    errors_of = {s.model: s for s in found.models}["node"].standard_errors
    assert 0.02 < errors_of["p95_error"] / errors_of["median_error"] < 50
