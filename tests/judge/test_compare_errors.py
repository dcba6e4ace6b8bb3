"""Comparing the errors of two models: what is worse, what chance is, and what the same schedules on both sides are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_world import World, model_of, record

from xstage_bench.cli import run
from xstage_bench.judge.compare import FALSE_ALARMS, Comparison, Side, compare, load_side
from xstage_bench.judge.compare_errors import SCORES, changes
from xstage_bench.model.document import IssueTimeError, ModelScore, TotalTimeError, Validation
from xstage_bench.model.holdout import Errors, draw_times, resampled, standard_errors

MODEL = model_of(World())
QUANTILE = 3.7


def drawn(rng: np.random.Generator, count: int, *, worse: float = 1.0, per_schedule: float = 0.4) -> Errors:
    """Errors as real ones are: a few bursts of each schedule, heavy-tailed, and alike within a schedule."""
    sizes = rng.integers(2, 17, count)
    owner = np.repeat(np.arange(count), sizes)
    level = np.exp(per_schedule * rng.standard_normal(count))[owner]
    tail = np.where(rng.random(owner.size) < 0.25, 0.15, 0.022)
    stalled = rng.random(owner.size) < 0.5
    right = rng.random(owner.size) > 0.02 * worse
    return Errors(
        tuple(map(str, range(count))), owner, worse * level * tail * np.abs(rng.standard_normal(owner.size)), stalled, right, None
    )


def score_of(errors: Errors, pair: str = "0>1") -> ModelScore:
    plain = {name: v[0] for name, v in resampled(errors, np.ones((1, errors.owner.max() + 1))).items()}
    return ModelScore(
        model="node", pair=pair, flavour="st.v4", statistic="issue_mean", n_schedules=len(errors.schedules), n_bursts=errors.error.size,
        issue_time=IssueTimeError(median_error=float(plain["median_error"]), p90_error=0.1, p95_error=float(plain["p95_error"])),
        total_time=TotalTimeError(median_error=0.01, p95_error=0.05), regime_balanced_accuracy=float(plain["regime_balanced_accuracy"]),
        interval_coverage_90=0.9, interval_score=0.4, standard_errors=standard_errors(errors),
    )  # fmt: skip


def side(errors: Errors | None) -> Side:
    seen = None if errors is None else Validation(schema_version=1, backend=MODEL.backend, models=[score_of(errors)])
    return Side("x", MODEL, None, seen)


def verdicts(done: Comparison) -> dict[str, str]:
    return {d.parameter: d.verdict for d in done.differences if d.parameter in {s.name for s in SCORES}}


def test_what_is_worse_the_same_and_undetermined() -> None:
    rng = np.random.default_rng(1)
    good, again, bad = side(drawn(rng, 260)), side(drawn(rng, 260)), side(drawn(rng, 260, worse=4.0))
    assert verdicts(compare(good, bad)) == dict.fromkeys(("median_error", "p95_error", "stall_misses"), "worse")
    assert set(verdicts(compare(bad, good)).values()) == {"better"}
    assert compare(good, bad).verdict == "worse"
    same = verdicts(compare(good, again))
    assert (same["median_error"], same["p95_error"]) == ("same", "same")
    small = compare(side(drawn(rng, 20)), side(drawn(rng, 20)))
    assert "undetermined" in verdicts(small).values()
    assert all(d.reason for d in small.differences if d.verdict == "undetermined")


def test_one_model_compared_with_itself_raises_no_alarm() -> None:
    """1 000 A/A comparisons, each side with schedules of its own and a fit that differs by some per cent: at most 1 %."""
    rng = np.random.default_rng(3)
    scores = [score_of(drawn(rng, int(count), worse=float(np.exp(0.05 * rng.standard_normal())))) for count in rng.choice((60, 260), 120)]
    pairs = [(a, b) for i, a in enumerate(scores) for b in scores[i + 1 : i + 10]]
    assert len(pairs) > 1000
    alarms = sum(any(c.verdict() in ("better", "worse") for c in changes(a, b, None, QUANTILE)) for a, b in pairs)
    assert alarms / len(pairs) <= FALSE_ALARMS


def test_the_same_schedules_on_both_sides_cancel() -> None:
    """A few schedules that are hard for any model widen an unpaired interval, and not one of the same schedules."""
    rng = np.random.default_rng(4)
    errors = drawn(rng, 120, per_schedule=1.2)
    worse = replace(errors, error=errors.error * 2.0 * np.exp(0.1 * rng.standard_normal(errors.error.size)))
    apart, together = (changes(score_of(errors), score_of(worse), both, QUANTILE)[1] for both in (None, (errors, worse)))
    assert apart.low is not None
    assert together.low is not None
    assert apart.low < together.low
    assert together.verdict() == "worse"
    assert apart.change == together.change


def test_resamples_are_of_whole_schedules() -> None:
    """One schedule with all the large errors: its bursts come and go together."""
    owner = np.repeat(np.arange(10), 10)
    errors = Errors(tuple(map(str, range(10))), owner, np.where(owner == 0, 5.0, 0.01), owner < 5, np.ones(100, dtype=bool), None)
    p95 = resampled(errors, draw_times(10, 2000))["p95_error"]
    assert set(np.round(p95, 3)) == {0.01, 5.0}
    assert np.mean(p95 == 0.01) == pytest.approx(0.9**10, abs=0.03)
    assert errors.only(["3", "0"]).error.tolist() == [0.01] * 10 + [5.0] * 10


def test_without_a_validation_the_comparison_says_so() -> None:
    done = compare(side(None), side(drawn(np.random.default_rng(5), 60)))
    assert verdicts(done) == {}
    assert "x has no validation of this fit" in done.notes[0]
    bare = replace(side(drawn(np.random.default_rng(5), 60)), validation=Validation(schema_version=1, backend="b", models=[]))
    assert "no hold-out on both sides" in compare(bare, bare).notes[0]


def test_compare_exits_5_for_a_model_that_got_worse(tmp_path, capsysbinary) -> None:
    """Two runs of one node, by two instruments; and a validation that is of another fit counts as none."""
    good, bad = (record(World(seed=7, issued=issued, probes=("holdout",)), tmp_path / str(issued)) for issued in (False, True))
    for folder in (good, bad):
        assert run(["validate", str(folder)]) == 0
    assert run(["compare", str(good), str(good)]) == 0
    assert run(["compare", str(good), str(bad)]) == 5
    assert b"p95_error" in capsysbinary.readouterr().out
    model = (bad / "model.json").read_text()
    (bad / "model.json").write_text(model.replace('"resamples": 20', '"resamples": 21'))
    assert load_side(bad).validation is None
    assert run(["compare", str(good), str(bad)]) == 0
    assert b"has no validation of this fit" in capsysbinary.readouterr().err
