"""Judge a model on what no fit has seen, and each closed form in its own regime: from sample rows to `validation.json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model import laws
from xstage_bench.model.arrays import BoolArray, FloatArray
from xstage_bench.model.cells import HOLDOUT, TINY, PairGroup, asked_rows, check_columns, rows_of, valid_rows
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
from xstage_bench.model.interpolate import law_at
from xstage_bench.model.loggp import fit_loggp
from xstage_bench.model.node.data import CALIBRATION_PROBES, measured
from xstage_bench.model.predict import free_cycles, predict_all, time_line
from xstage_bench.model.prediction import Form, total_ns
from xstage_bench.schedule.bursts import Schedule

if TYPE_CHECKING:
    import pandas as pd

#: A held-out burst counts as stalled above this many times T0(n), which itself is up to 20 % off at sizes with a remainder of the loop.
STALLED_ABOVE = 1.25
_LEVEL = 0.9
#: Bursts of at most so many warp-stores a warp are what the family `TINY` is about; the large ones before them only fill the stage.
TINY_STORES = 2


@dataclass(frozen=True, slots=True, eq=False)
class _HeldOut:
    """A held-out schedule with medians over its valid executions; `keep` leaves out empty bursts."""

    schedule: Schedule
    issue_cycles: FloatArray
    total_ns: float
    keep: BoolArray


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
        Models ``node`` where it was fitted, ``burst_gap``, ``bandwidth_only`` (V/R) and ``loggp`` (fitted to the calibration probes of
        these samples) for each pair of the model that was measured. Null numbers have a reason.

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
        _judge(out, model, pair, rows_of(heldout, group), samples)
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
    measured = [] if family is None or not _identified(pair) else _held_out(mine[mine["probe"] == family])
    return _errors(measured, _predicted(_forms(pair)[0], model, pair, measured)) if measured else None


def main_family(rows: pd.DataFrame) -> str | None:
    """Return the family that makes the headline scores of these held-out rows."""
    present = set(rows["probe"].unique())
    return next((name for name in HOLDOUT if name != TINY and name in present), None)


def _judge(out: Validation, model: Model, pair: PairModel, mine: pd.DataFrame, samples: pd.DataFrame) -> None:
    """Add the scores of one pair on its held-out rows; the rivals are fitted to other rows of `samples`."""
    if not len(mine):
        return
    if not _identified(pair):
        out.notes.append(f"{pair.pair}: nothing was identified, so no held-out schedule can be predicted")
        return
    main = main_family(mine)
    for family in HOLDOUT:
        rows = mine[mine["probe"] == family]
        held = _held_out(rows, TINY_STORES if family == TINY else None) if len(rows) else []
        if not held:
            if len(rows):
                out.notes.append(f"{pair.pair}: no valid samples of held-out schedules" + (f" ({family})" if family != main else ""))
            continue
        apart = [m for m in held if not m.schedule.warps_meet]
        if apart:
            out.warps_apart.extend(_score(form, pair, family, apart, _predicted(form, model, pair, apart)) for form in _forms(pair))
            out.notes.append(f"{pair.pair}: warps of {len(apart)} held-out schedules do not meet; these are in warps_apart only")
            held = [m for m in held if m.schedule.warps_meet]
            if not held:
                continue
        scores = [_score(form, pair, family, held, _predicted(form, model, pair, held)) for form in _forms(pair)]
        out.families.extend(scores)
        out.noise_floor.append(noise_floor(rows, group_of(pair), family))
        if family == main:
            out.models.extend(scores)
            _score_rivals(out, model, pair, family, held, samples)


def _score_rivals(out: Validation, model: Model, pair: PairModel, family: str, held: Sequence[_HeldOut], samples: pd.DataFrame) -> None:
    """Add V/R, and LogGP as fitted to the calibration probes: never to what is held out."""
    schedules = [m.schedule for m in held]
    laws_of = [law_at(pair, s.producer_count, s.warps, model.sm_clock_mhz) for s in schedules]
    cycles: dict[ModelName, list[FloatArray]] = {"bandwidth_only": []}
    for schedule, law in zip(schedules, laws_of, strict=True):
        volume = np.array([b.bytes for b in schedule.bursts], dtype=np.float64) * schedule.producer_count
        cycles["bandwidth_only"].append(volume / law.drain_gb_per_s * model.sm_clock_mhz / 1e3)
    group = group_of(pair)
    try:
        data = measured(samples, group.source, group.destination, CALIBRATION_PROBES, group.flavour, group.layout)
        ends = np.cumsum([len(s.bursts) for s in schedules])[:-1]
        cycles["loggp"] = np.split(fit_loggp(data).issue_cycles(schedules), ends)
    except DataError as error:
        out.notes.append(f"{pair.pair}: no LogGP beside it: {error.message}")
    for name, issue in cycles.items():
        guesses = []
        for schedule, law, mine in zip(schedules, laws_of, issue, strict=True):
            start, end = time_line(schedule, model.sm_clock_mhz, _known(mine * (1e3 / model.sm_clock_mhz)))
            guesses.append(_Predicted(mine, free_cycles(law, schedule), total_ns(schedule, start, end)))
        out.models.append(_score(name, pair, family, held, guesses))


def _identified(pair: PairModel) -> bool:
    return any(e.issue_cycles_per_warp_store.value for e in pair.burst_gap)


def _forms(pair: PairModel) -> tuple[Form, ...]:
    """The models of a pair, first the one that predicts."""
    return ("node", "burst_gap") if pair.node_basis is not None else ("burst_gap",)


def _predicted(form: Form, model: Model, pair: PairModel, measured: Sequence[_HeldOut]) -> list[_Predicted]:
    found = predict_all(model, [m.schedule for m in measured], pair.pair, form=form)
    return [_Predicted(p.issue_cycles, p.t0_cycles, p.total_ns, p.issue_low_cycles, p.issue_high_cycles) for p in found]


def _held_out(rows: pd.DataFrame, most_stores: int | None = None) -> list[_HeldOut]:
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
            out.append(_HeldOut(schedule, cycles, float(totals[key]), keep))
    return out


def _known(issue_ns: FloatArray) -> Callable[[int, float, float], float]:
    """Issue times that do not depend on when a burst starts, as `time_line` asks for them."""
    return lambda burst, _start, _previous: float(issue_ns[burst])


def _errors(measured: Sequence[_HeldOut], predicted: Sequence[_Predicted]) -> Errors:
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


def _interval_score(measured: Sequence[_HeldOut], predicted: Sequence[_Predicted]) -> float | None:
    parts = []
    for m, p in zip(measured, predicted, strict=True):
        if p.low_cycles is None or p.high_cycles is None:
            return None
        issue, low, high = (x[m.keep] for x in (m.issue_cycles, p.low_cycles, p.high_cycles))
        outside = np.maximum(0.0, low - issue) + np.maximum(0.0, issue - high)
        parts.append((high - low + 2 / (1 - _LEVEL) * outside) / issue)
    return float(np.concatenate(parts).mean())


def _score(name: ModelName, pair: PairModel, family: str, measured: Sequence[_HeldOut], predicted: Sequence[_Predicted]) -> ModelScore:
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
