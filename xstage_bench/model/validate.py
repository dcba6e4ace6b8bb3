"""Judge a model on what no fit has seen, and each closed form in its own regime: from sample rows to `validation.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model import laws
from xstage_bench.model.cells import HOLDOUT, asked_rows, check_columns, rows_of, valid_rows
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
)
from xstage_bench.model.interpolate import Law, law_at
from xstage_bench.model.predict import Form, free_cycles, predict_all, time_line, total_ns
from xstage_bench.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
#: A held-out burst counts as stalled above this many times T0(n), which itself is up to 20 % off at sizes with a remainder of the loop.
STALLED_ABOVE = 1.25
_LEVEL = 0.9
BASELINES: tuple[ModelName, ...] = ("bandwidth_only", "loggp")


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
        Rows as in docs/file-format.md; schedules of the probe ``holdout`` are the held-out ones. Only valid rows count.

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
    out = Validation(schema_version=SCHEMA_VERSION, backend=model.backend, models=[])
    for pair in model.pairs:
        source, _, destination = pair.pair.partition(">")
        group = PairGroup(int(source), int(destination), pair.flavour, pair.layout)
        rows = rows_of(valid, group)
        out.isolated_law.extend(laws.isolated_laws(pair, rows))
        out.periodic_law.extend(laws.periodic_laws(pair, rows, model.sm_clock_mhz))
        out.timed_stall.extend(laws.timed_stalls(pair, rows, model.sm_clock_mhz))
        mine = rows_of(heldout, group)
        if not len(mine):
            continue
        if not any(e.issue_cycles_per_warp_store.value for e in pair.burst_gap):
            out.notes.append(f"{pair.pair}: nothing was identified, so no held-out schedule can be predicted")
            continue
        measured = _measured(mine)
        if not measured:
            out.notes.append(f"{pair.pair}: no valid samples of held-out schedules")
            continue
        out.models.extend(_scores(model, pair, [m for m in measured if m.schedule.warps_meet]))
        apart = [m for m in measured if not m.schedule.warps_meet]
        if apart:
            out.warps_apart.extend(_scores(model, pair, apart))
            out.notes.append(f"{pair.pair}: warps of {len(apart)} held-out schedules do not meet; these are in warps_apart only")
    if not len(heldout):
        out.notes.append("the run has no held-out schedule: measure the probe holdout")
    return out


def _scores(model: Model, pair: PairModel, measured: list[_Measured]) -> list[ModelScore]:
    """Score every form and baseline on these schedules; none of them gives no score."""
    if not measured:
        return []
    forms: tuple[Form, ...] = ("node", "burst_gap") if pair.node_basis is not None else ("burst_gap",)
    out = []
    for form in forms:
        found = predict_all(model, [m.schedule for m in measured], pair.pair, form=form)
        scored = [_Predicted(p.issue_cycles, p.t0_cycles, p.total_ns, p.issue_low_cycles, p.issue_high_cycles) for p in found]
        out.append(_score(form, pair, measured, scored))
    return out + [_score(name, pair, measured, [_baseline(name, model, m.schedule, pair) for m in measured]) for name in BASELINES]


def _measured(rows: pd.DataFrame) -> list[_Measured]:
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


def _score(name: ModelName, pair: PairModel, measured: Sequence[_Measured], predicted: Sequence[_Predicted]) -> ModelScore:
    both = list(zip(measured, predicted, strict=True))
    issue = np.concatenate([m.issue_cycles[m.keep] for m in measured])
    guess = np.concatenate([p.issue_cycles[m.keep] for m, p in both])
    t0 = np.concatenate([p.t0_cycles[m.keep] for m, p in both])
    total = np.array([abs(p.total_ns - m.total_ns) / m.total_ns for m, p in both if m.total_ns > 0])
    error = np.abs(guess - issue) / issue
    accuracy = laws.balanced_accuracy(issue > STALLED_ABOVE * t0, guess > STALLED_ABOVE * t0)
    reasons = {} if accuracy is not None else {"regime_balanced_accuracy": "all held-out bursts are of one regime"}
    coverage, score = None, None
    lows = [p.low_cycles[m.keep] for m, p in both if p.low_cycles is not None]
    highs = [p.high_cycles[m.keep] for m, p in both if p.high_cycles is not None]
    if lows and highs:
        low, high = np.concatenate(lows), np.concatenate(highs)
        coverage = float(((issue >= low) & (issue <= high)).mean())
        outside = np.maximum(0.0, low - issue) + np.maximum(0.0, issue - high)
        score = float(((high - low + 2 / (1 - _LEVEL) * outside) / issue).mean())
    else:
        reasons |= dict.fromkeys(("interval_coverage_90", "interval_score"), "this baseline has no interval")
    return ModelScore(
        model=name,
        pair=pair.pair,
        flavour=pair.flavour,
        statistic="issue_mean",
        n_schedules=len(both),
        n_bursts=int(issue.size),
        issue_time=IssueTimeError(
            median_error=float(np.median(error)), p90_error=float(np.quantile(error, 0.9)), p95_error=float(np.quantile(error, 0.95))
        ),
        total_time=TotalTimeError(
            median_error=float(np.median(total)) if total.size else None,
            p95_error=float(np.quantile(total, 0.95)) if total.size else None,
        ),
        regime_balanced_accuracy=accuracy,
        interval_coverage_90=coverage,
        interval_score=score,
        reasons=reasons,
    )
