"""Errors on held-out bursts: how much other schedules would change the scores, and what no model can be better than."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.cells import PairGroup, valid_rows
from xstage_bench.model.document import NoiseFloor

if TYPE_CHECKING:
    import pandas as pd

#: What is scored, by the names of `ModelScore` and its parts.
SCORES = ("median_error", "p95_error", "regime_balanced_accuracy", "interval_coverage_90")
RESAMPLES = 200
_SEED = 1  # of the resampling alone: the same rows give the same standard errors


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """One model on held-out bursts, the bursts of a schedule together; all arrays have shape (bursts,).

    Parameters
    ----------
    schedules : tuple of str
        Keys.
    owner : ndarray of int
        Index of each burst's schedule.
    error : ndarray of float
        |predicted - measured| / measured of the issue time.
    stalled, right : ndarray of bool
        Whether the burst stalled, and whether the model said so.
    covered : ndarray of bool or None
        Whether the 90 % interval held it; None for a model without intervals.
    """

    schedules: tuple[str, ...]
    owner: IntArray
    error: FloatArray
    stalled: BoolArray
    right: BoolArray
    covered: BoolArray | None

    def only(self, schedules: Iterable[str]) -> Errors:
        """Return these schedules only, in the order given."""
        place = {key: i for i, key in enumerate(self.schedules)}
        keys = tuple(schedules)
        where = [np.flatnonzero(self.owner == place[key]) for key in keys]
        index = np.concatenate(where) if where else np.zeros(0, dtype=np.int64)
        owner = np.repeat(np.arange(len(keys)), [w.size for w in where])
        covered = None if self.covered is None else self.covered[index]
        return Errors(keys, owner, self.error[index], self.stalled[index], self.right[index], covered)


def resampled(errors: Errors, times: FloatArray) -> dict[str, FloatArray]:
    """Score the bursts with each schedule counted so many times.

    Parameters
    ----------
    errors : Errors
    times : ndarray, shape (resamples, schedules)

    Returns
    -------
    dict of str to ndarray, shape (resamples,)
        By `SCORES`; NaN where a resample leaves nothing to score.
    """
    weight = times[:, errors.owner]
    order = np.argsort(errors.error)
    ranked, level = errors.error[order], np.cumsum(weight[:, order], axis=1)

    def quantile(q: float) -> FloatArray:
        at = (level >= q * level[:, -1:]).argmax(axis=1)
        return np.asarray(ranked[at])

    def share(hits: BoolArray, among: BoolArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((weight @ (hits & among)) / (weight @ among))

    everything = np.ones(errors.error.size, dtype=bool)
    nothing = np.full(len(times), np.nan)
    return {
        "median_error": quantile(0.5),
        "p95_error": quantile(0.95),
        "regime_balanced_accuracy": (share(errors.right, errors.stalled) + share(errors.right, ~errors.stalled)) / 2,
        "interval_coverage_90": nothing if errors.covered is None else share(errors.covered, everything),
    }


def draw_times(schedules: int, resamples: int = RESAMPLES) -> FloatArray:
    """Return how often each schedule is drawn in each resample, shape (resamples, schedules); always the same draws."""
    rng = np.random.default_rng(_SEED)
    return rng.multinomial(schedules, np.full(schedules, 1 / schedules), size=resamples).astype(np.float64)


def standard_errors(errors: Errors) -> dict[str, float]:
    """Return the standard error of each score by resampling whole schedules; none for a score that is not defined in all resamples."""
    if len(errors.schedules) < 2:
        return {}
    drawn = resampled(errors, draw_times(len(errors.schedules)))
    return {name: float(values.std(ddof=1)) for name, values in drawn.items() if np.isfinite(values).all()}


def noise_floor(rows: pd.DataFrame, group: PairGroup, family: str) -> NoiseFloor:
    """Predict each process by the others: what remains is noise of the measurement and of fresh processes.

    Parameters
    ----------
    rows : DataFrame
        Held-out rows of one pair and flavour.
    group : PairGroup
    family : str
        The probe they are of.
    """
    valid = valid_rows(rows)
    valid = valid[valid["bytes"] > 0]
    found: list[FloatArray] = []
    processes = sorted(valid["process"].unique().tolist())
    for process in processes if len(processes) > 1 else ():
        mine = valid["process"] == process
        one, others = (valid[chosen].groupby(["schedule", "burst"])["issue_mean_cycles"].median() for chosen in (mine, ~mine))
        ratio = (one / others).to_numpy(dtype=np.float64)  # aligned on schedule and burst; NaN where either is missing
        found.append(np.abs(ratio[np.isfinite(ratio)] - 1))
    apart = np.concatenate(found) if found else np.zeros(0)
    middle, p90, p95 = np.quantile(apart, [0.5, 0.9, 0.95]).tolist() if apart.size else (None, None, None)
    return NoiseFloor(
        pair=group.pair, flavour=group.flavour, family=family, processes=len(processes), n_bursts=int(apart.size), median=middle, p90=p90,
        p95=p95, reason=None if apart.size else "one process: nothing to hold it against",
    )  # fmt: skip
