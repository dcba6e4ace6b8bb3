"""Judge a model on what no fit has seen, and each closed form in its own regime: from sample rows to `validation.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model import laws
from xstage_bench.model.cells import HOLDOUT, TINY, asked_rows, check_columns, rows_of, valid_rows
from xstage_bench.model.cells import Group as PairGroup
from xstage_bench.model.document import (
    SCHEMA_VERSION,
    IssueTimeError,
    Model,
    ModelName,
    ModelScore,
    PairModel,
    TotalTimeError,
    Validation,
    digest,
)
from xstage_bench.model.holdout import Errors, noise_floor, standard_errors
from xstage_bench.model.interpolate import Law, law_at
from xstage_bench.model.predict import Form, free_cycles, predict_all, time_line, total_ns
from xstage_bench.schedule.bursts import Schedule

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
#: A held-out burst counts as stalled above this many times T0(n), which itself is up to 20 % off at sizes with a remainder of the loop.
STALLED_ABOVE = 1.25
_LEVEL = 0.9
BASELINES: tuple[ModelName, ...] = ("bandwidth_only", "loggp")
#: Bursts of at most so many warp-stores a warp are what the family `TINY` is about; the large ones before them only fill the stage.
TINY_STORES = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A held-out schedule with medians over its valid executions; `keep` leaves out empty bursts."""

    schedule: Schedule
    issue_cycles: FloatArray
    total_ns: float
    keep: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Predicted:
    issue_cycles: FloatArray
    t0_cycles: FloatArray
    total_ns: float
    low_cycles: FloatArray | None = None
    high_cycles: FloatArray | None = None


def validate(model: Model, samples: pd.DataFrame) -> Validation:
    """Score a model and two baselines on held-out schedules, and the closed forms by regime.

    Parameters
    ----------
    model : Model
    samples : DataFrame
        Rows as in docs/files.md; schedules of the probes `cells.HOLDOUT` are held out. Only valid rows count.

    Returns
    -------
    Validation
        Models ``node`` where it was fitted, ``burst_gap``, ``bandwidth_only`` (V/R) and ``loggp`` (base + max(issue cost, V/R), no
        capacity, no backlog) for each pair of the model that was measured. Null numbers have a reason.

    Raises
    ------
    DataError
        A column is missing, there is no row, or the rows of a schedule do not describe one.
    """
    check_columns(samples)
    valid = valid_rows(asked_rows(samples))
    heldout = samples[samples["probe"].isin(HOLDOUT) & (samples["kind"] == "measure")]
    out = Validation(schema_version=SCHEMA_VERSION, backend=model.backend, models=[], fitted=digest(model))
    for pair in model.pairs:
        group = group_of(pair)
        rows = rows_of(valid, group)
        out.isolated_law.extend(laws.isolated_laws(pair, rows))
        out.periodic_law.extend(laws.periodic_laws(pair, rows, model.sm_clock_mhz))
        out.timed_stall.extend(laws.timed_stalls(pair, rows, model.sm_clock_mhz))
        _judge(out, model, pair, rows_of(heldout, group))
    if not heldout["probe"].ne(TINY).any():
        out.notes.append("the run has no held-out schedule: measure the probe holdout")
    return out


def group_of(pair: PairModel) -> PairGroup:
    """Return what a pair's model is about."""
    source, _, destination = pair.pair.partition(">")
    return PairGroup(int(source), int(destination), pair.flavour, pair.layout)


def holdout_errors(model: Model, pair: PairModel, samples: pd.DataFrame) -> Errors | None:
    """Return the errors of the model that predicts a pair, on its main hold-out; None where there is none.

    Parameters
    ----------
    model : Model
    pair : PairModel
        One of `model`.
    samples : DataFrame
        Of the run that the model was fitted on.
    """
    mine = rows_of(samples[samples["probe"].isin(HOLDOUT) & (samples["kind"] == "measure")], group_of(pair))
    family = main_family(mine)
    measured = [] if family is None or not _identified(pair) else _measured(mine[mine["probe"] == family])
    return _errors(measured, _predicted(_forms(pair)[0], model, pair, measured)) if measured else None


def main_family(rows: pd.DataFrame) -> str | None:
    """Return the family that makes the headline scores of these held-out rows."""
    present = set(rows["probe"].unique())
    return next((name for name in HOLDOUT if name != TINY and name in present), None)


def _judge(out: Validation, model: Model, pair: PairModel, mine: pd.DataFrame) -> None:
    """Add the scores of one pair."""
    if not len(mine):
        return
    if not _identified(pair):
        out.notes.append(f"{pair.pair}: nothing was identified, so no held-out schedule can be predicted")
        return
    main = main_family(mine)
    for family in HOLDOUT:
        rows = mine[mine["probe"] == family]
        measured = _measured(rows, TINY_STORES if family == TINY else None) if len(rows) else []
        if not measured:
            if len(rows):
                out.notes.append(f"{pair.pair}: no valid samples of held-out schedules" + (f" ({family})" if family != main else ""))
            continue
        apart = [m for m in measured if not m.schedule.warps_meet]
        if apart:
            out.warps_apart.extend(_score(form, pair, family, apart, _predicted(form, model, pair, apart)) for form in _forms(pair))
            out.notes.append(f"{pair.pair}: warps of {len(apart)} held-out schedules do not meet; these are in warps_apart only")
            measured = [m for m in measured if m.schedule.warps_meet]
            if not measured:
                continue
        scores = [_score(form, pair, family, measured, _predicted(form, model, pair, measured)) for form in _forms(pair)]
        out.families.extend(scores)
        out.noise_floor.append(noise_floor(rows, group_of(pair), family))
        if family == main:
            out.models.extend(scores)
            for name in BASELINES:
                out.models.append(_score(name, pair, family, measured, [_baseline(name, model, m.schedule, pair) for m in measured]))


def _identified(pair: PairModel) -> bool:
    return any(e.issue_cycles_per_warp_store.value for e in pair.burst_gap)


def _forms(pair: PairModel) -> tuple[Form, ...]:
    """The models of a pair, first the one that predicts."""
    return ("node", "burst_gap") if pair.node_basis is not None else ("burst_gap",)


def _predicted(form: Form, model: Model, pair: PairModel, measured: Sequence[_Measured]) -> list[_Predicted]:
    found = predict_all(model, [m.schedule for m in measured], pair.pair, form=form)
    return [_Predicted(p.issue_cycles, p.t0_cycles, p.total_ns, p.issue_low_cycles, p.issue_high_cycles) for p in found]


def _measured(rows: pd.DataFrame, most_stores: int | None = None) -> list[_Measured]:
    """Reduce held-out rows to schedules; of bursts with more than `most_stores` warp-stores a warp no issue time is kept."""
    from xstage_bench.record.reader import schedules_of

    valid = valid_rows(rows)
    schedules = schedules_of(rows)
    issue = valid.groupby(["schedule", "burst"])["issue_mean_cycles"].median()
    per_execution = valid.groupby(["schedule", "process", "repetition"])
    summed = (
        (valid["issue_mean_cycles"] * 1e3 / valid["sm_clock_mhz"]).groupby([valid["schedule"], valid["process"], valid["repetition"]]).sum()
    )
    last = valid[valid["burst"] == valid["bursts"] - 1]
    end = (last["start_mean_ns"] + last["issue_mean_cycles"] * 1e3 / last["sm_clock_mhz"]).groupby(last["schedule"]).median()
    sums = summed[per_execution.size() == per_execution["bursts"].first()].groupby(level="schedule").median()
    out = []
    for key, schedule in schedules.items():
        totals = sums if schedule.start == "isolated" else end
        if key not in totals.index:
            continue
        cycles = issue[key].reindex(range(len(schedule.bursts))).to_numpy(dtype=np.float64)
        keep = np.isfinite(cycles) & (cycles > 0) & np.array([b.bytes > 0 for b in schedule.bursts])
        if most_stores is not None:
            keep &= schedule.stores_per_warp() <= most_stores
        if keep.any():
            out.append(_Measured(schedule, cycles, float(totals[key]), keep))
    return out


def _baseline(name: ModelName, model: Model, schedule: Schedule, pair: PairModel) -> _Predicted:
    law: Law = law_at(pair, schedule.producer_count, schedule.warps, model.sm_clock_mhz)
    per_cycle = 1e3 / model.sm_clock_mhz
    drained = np.array([b.bytes for b in schedule.bursts], dtype=np.float64) * schedule.producer_count / law.drain_gb_per_s
    t0 = free_cycles(law, schedule)
    if name == "loggp":
        stores = schedule.stores_per_warp()
        drained = (stores > 0) * law.issue_base_cycles * per_cycle + np.maximum(law.issue_cycles_per_store * stores * per_cycle, drained)
    start, end = time_line(schedule, model.sm_clock_mhz, lambda burst, _start, _previous: float(drained[burst]))
    return _Predicted(drained / per_cycle, t0, total_ns(schedule, start, end))


def _errors(measured: Sequence[_Measured], predicted: Sequence[_Predicted]) -> Errors:
    both = list(zip(measured, predicted, strict=True))
    issue = np.concatenate([m.issue_cycles[m.keep] for m in measured])
    guess = np.concatenate([p.issue_cycles[m.keep] for m, p in both])
    t0 = np.concatenate([p.t0_cycles[m.keep] for m, p in both])
    stalled = issue > STALLED_ABOVE * t0
    covered = None
    bounds = [(p.low_cycles[m.keep], p.high_cycles[m.keep]) for m, p in both if p.low_cycles is not None and p.high_cycles is not None]
    if bounds:
        low, high = (np.concatenate(end) for end in zip(*bounds, strict=True))
        covered = (issue >= low) & (issue <= high)
    return Errors(
        schedules=tuple(m.schedule.key() for m in measured),
        owner=np.repeat(np.arange(len(both)), [int(m.keep.sum()) for m in measured]),
        error=np.abs(guess - issue) / issue,
        stalled=stalled,
        right=stalled == (guess > STALLED_ABOVE * t0),
        covered=covered,
    )


def _interval_score(measured: Sequence[_Measured], predicted: Sequence[_Predicted]) -> float | None:
    parts = []
    for m, p in zip(measured, predicted, strict=True):
        if p.low_cycles is None or p.high_cycles is None:
            return None
        issue, low, high = (x[m.keep] for x in (m.issue_cycles, p.low_cycles, p.high_cycles))
        outside = np.maximum(0.0, low - issue) + np.maximum(0.0, issue - high)
        parts.append((high - low + 2 / (1 - _LEVEL) * outside) / issue)
    return float(np.concatenate(parts).mean())


def _score(name: ModelName, pair: PairModel, family: str, measured: Sequence[_Measured], predicted: Sequence[_Predicted]) -> ModelScore:
    errors = _errors(measured, predicted)
    total = np.array([abs(p.total_ns - m.total_ns) / m.total_ns for m, p in zip(measured, predicted, strict=True) if m.total_ns > 0])
    accuracy = laws.balanced_accuracy(errors.stalled, errors.stalled == errors.right)
    reasons = {} if accuracy is not None else {"regime_balanced_accuracy": "all held-out bursts are of one regime"}
    if errors.covered is None:
        reasons |= dict.fromkeys(("interval_coverage_90", "interval_score"), "this baseline has no interval")
    return ModelScore(
        model=name,
        pair=pair.pair,
        flavour=pair.flavour,
        statistic="issue_mean",
        n_schedules=len(measured),
        n_bursts=int(errors.error.size),
        issue_time=IssueTimeError(
            median_error=float(np.median(errors.error)),
            p90_error=float(np.quantile(errors.error, 0.9)),
            p95_error=float(np.quantile(errors.error, 0.95)),
        ),
        total_time=TotalTimeError(
            median_error=float(np.median(total)) if total.size else None,
            p95_error=float(np.quantile(total, 0.95)) if total.size else None,
        ),
        regime_balanced_accuracy=accuracy,
        interval_coverage_90=None if errors.covered is None else float(errors.covered.mean()),
        interval_score=_interval_score(measured, predicted),
        reasons=reasons,
        family=family,
        standard_errors=standard_errors(errors),
    )
