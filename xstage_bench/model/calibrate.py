"""Fit T0, R and Q of every (K, W) of a run, with intervals: from sample rows to `model.json`.

The statistics and the reasons for them are in docs/burst-gap.md. Nothing here looks at rows of the probe ``holdout``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.model import cells as samples_in
from xstage_bench.model import drain
from xstage_bench.model.arrays import IntArray
from xstage_bench.model.cell_fit import CellFit, fit_cell
from xstage_bench.model.document import SCHEMA_VERSION, CalibratedRange, Model, PairModel
from xstage_bench.model.entry import entry, missing_entry, recipe
from xstage_bench.model.knee import BASE, EXCESS, FREE
from xstage_bench.model.periodic import steady
from xstage_bench.model.release import release_laws
from xstage_bench.model.resample import MIN_PROCESSES, Resampled, combine
from xstage_bench.model.stretches import bad_stretches
from xstage_bench.model.timer import timer_facts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all fits of one call share."""

    sm_clock_mhz: float
    processes: IntArray
    seed: int
    resamples: int


def calibrate(samples: pd.DataFrame, *, backend: str, gpu: str, sm_clock_mhz: float, seed: int = 0, resamples: int = 200) -> Model:
    """Fit the Burst-Gap model to a run.

    Parameters
    ----------
    samples : DataFrame
        Rows as in docs/files.md. Only measured rows with status ``ok`` of the probes ``isolated``, ``local``, ``periodic``,
        ``sustained`` and ``timer`` are used; their order does not matter.
    backend, gpu : str
        Copied into the model.
    sm_clock_mhz : float
        Converts what was measured in cycles to GB/s.
    seed, resamples : int
        Of the intervals; the same samples and seed give the same model.

    Returns
    -------
    Model
        A number that the data does not determine has the status ``not_identified`` and a reason.

    Raises
    ------
    DataError
        A column is missing, or there is no row.
    UsageError
        `sm_clock_mhz` is not positive, or `resamples` is too small for an interval.
    """
    if not sm_clock_mhz > 0:
        raise UsageError(f"sm_clock_mhz is {sm_clock_mhz}, must be positive", "give the SM clock of the run in MHz")
    if resamples < 20:
        raise UsageError(f"{resamples} resamples give no interval", "use 20 or more; 200 is the default")
    samples_in.check_columns(samples)
    asked = samples_in.asked_rows(samples)
    valid = samples_in.valid_rows(asked)
    processes = np.unique(valid["process"].to_numpy(dtype=np.int64))
    setting = _Setting(float(sm_clock_mhz), processes, seed, resamples)
    notes = []
    if processes.size < MIN_PROCESSES:
        notes.append(f"{processes.size} processes: intervals leave out the spread between processes, measure {MIN_PROCESSES} or more")
    if len(valid) < len(asked):
        notes.append(
            f"{len(asked) - len(valid)} of {len(asked)} rows were not valid (throttled, warm-up, timed out or corrupt) and left out"
        )
    disturbed = bad_stretches(valid)
    if disturbed.bad:
        notes.append(f"{disturbed.sentence()}; their {int(disturbed.rows.sum())} rows were left out")
        valid = valid[~disturbed.rows]
    pairs = [_pair(asked, valid, group, setting) for group in samples_in.groups(asked)]
    return Model(
        schema_version=SCHEMA_VERSION,
        backend=backend,
        gpu=gpu,
        sm_clock_mhz=float(sm_clock_mhz),
        pairs=pairs,
        timer=timer_facts(valid, processes, resamples, seed),
        seed=seed,
        resamples=resamples,
        notes=notes,
    )


def _pair(asked: pd.DataFrame, valid: pd.DataFrame, group: samples_in.PairGroup, setting: _Setting) -> PairModel:
    wanted = samples_in.rows_of(asked, group)
    rows = samples_in.rows_of(valid, group)
    seed = [setting.seed, group.source, group.destination % 65536]  # host memory is -1
    clock = setting.sm_clock_mhz
    found = (fit_cell(cell, group.flavour, setting.resamples, seed) for cell in samples_in.cells(rows, setting.processes))
    fits = {(fit.producers, fit.warps): fit for fit in found if fit is not None}
    periodic = steady(rows)
    rates = _rates(rows, periodic, list(fits.values()), setting, seed)
    known = {k: best[0].value for k in rates.producers() if (best := rates.best(k)) is not None}
    flat = drain.plateaus(periodic, known, clock, setting.processes, setting.resamples, seed)
    isolated = wanted[wanted["probe"].isin(samples_in.ISOLATED) & (wanted["bytes"] > 0)]
    measured = set(samples_in.grid(rows))
    entries = []
    for producers, warps in samples_in.grid(isolated):
        fit = fits.get((producers, warps))
        if fit is None:
            reason = "fewer than 2 burst sizes" if (producers, warps) in measured else "no valid samples"
            entries.append(missing_entry(producers, warps, group.flavour, reason))
        else:
            one = entry(fit, group.flavour, rates, fits.get((1, warps)), clock)
            entries.append(replace(one, recipe=recipe(fit, rates, flat, clock)))
    return PairModel(
        pair=group.pair,
        flavour=group.flavour,
        layout=group.layout,
        burst_gap=entries,
        calibrated_range=_range(rows),
        drain=rates.documents(),
        plateaus=flat,
        release=release_laws(rows, clock),
    )


def _rates(rows: pd.DataFrame, periodic: pd.DataFrame, fits: list[CellFit], setting: _Setting, seed: list[int]) -> drain.Rates:
    clock = setting.sm_clock_mhz
    by_cell = {(f.producers, f.warps): rate for f in fits if (rate := f.makespan_gb_per_s(clock)) is not None}
    counts = sorted({k for k, _ in by_cell})
    makespan = {k: drain.pool([r for (n, w), r in by_cell.items() if n == k and w >= 2]) for k in counts}
    slopes: dict[int, list[Resampled]] = {}
    for f in fits:
        if f.fit.saturated:
            volume = f.producers * f.store_bytes * clock / 1e3
            rate = combine(lambda a, b, v=volume: v / (a + b), f.parameter(FREE), f.parameter(EXCESS))
            slopes.setdefault(f.producers, []).append(rate)
    capacity = {
        (f.producers, f.warps): q.value
        for f in fits
        if (r := by_cell.get((f.producers, f.warps))) is not None and (q := f.capacity_bytes(r, clock)) is not None
    }
    free = {(f.producers, f.warps): (float(f.fit.theta[BASE]), float(f.fit.theta[FREE]) / f.store_bytes) for f in fits}
    return drain.Rates(
        makespan={k: r or by_cell[k, 1] for k, r in makespan.items()},
        sustained=drain.sustained_rates(rows, capacity, clock, setting.processes, setting.resamples, seed),
        zero_gap=drain.zero_gap_rates(periodic, free, setting.processes, setting.resamples, seed),
        mean_slope={k: r for k, parts in slopes.items() if (r := drain.pool(parts)) is not None},
    )


def _range(rows: pd.DataFrame) -> CalibratedRange:
    seen = rows[rows["bytes"] > 0]

    def ends(column: str) -> tuple[int, int] | None:
        values = seen[column].dropna() if column in seen else seen["bytes"].iloc[:0]
        return (int(values.min()), int(values.max())) if len(values) else None

    return CalibratedRange(producers=ends("producers"), warps=ends("warps"), bytes=ends("bytes"), gap_cycles=ends("gap_cycles"))
