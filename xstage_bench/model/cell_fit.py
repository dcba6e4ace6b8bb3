"""The fit of one (K, W), with its parameters recomputed on every resample and on every process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.cells import Cell
from xstage_bench.model.knee import BASE, FREE, KNEE, MAKESPAN, KneeFit, fit_knee, fit_knee_free, law, refit
from xstage_bench.model.resample import Resampled, combine, resample_medians
from xstage_bench.schedule.bursts import WARP_STORE_BYTES

#: Fewer sizes than these cannot show a knee, or not even a line.
_MIN_SIZES_KNEE = 5
#: Two unrolled groups of the instrument, per producer.
_LEAST_KNEE_WARP_STORES = 8
_MIN_SIZES = 2


@dataclass(frozen=True, slots=True, eq=False)
class CellFit:
    """Result of `fit_cell`.

    Parameters
    ----------
    producers, warps : int
    store_bytes : int
        Bytes of one warp-store of every warp of a producer: warps * bytes per warp-store.
    stores : ndarray, shape (sizes,)
    fit : KneeFit
        On the whole data.
    draws, per_process : ndarray, shapes (resamples, 6) and (processes, 6)
        The parameters refitted on each resample, and on each process alone.
    errors : ndarray, shape (sizes,)
        |fitted - measured| / measured of the mean issue time.
    repetitions : int
        Valid repetitions of the scarcest size, over all processes.
    repetitions_per_process : int
    """

    producers: int
    warps: int
    store_bytes: int
    stores: FloatArray
    fit: KneeFit
    draws: FloatArray
    per_process: FloatArray
    errors: FloatArray
    repetitions: int
    repetitions_per_process: int

    def parameter(self, index: int) -> Resampled:
        """One fitted parameter, by its place in `knee.NAMES`."""
        return Resampled(float(self.fit.theta[index]), self.draws[:, index], self.per_process[:, index], self.repetitions_per_process)

    def free_cycles(self, stores: float) -> Resampled:
        """T0 of a burst of `stores` warp-stores per warp."""
        return combine(lambda base, free: base + free * stores, self.parameter(BASE), self.parameter(FREE))

    def makespan_gb_per_s(self, sm_clock_mhz: float) -> Resampled | None:
        """R by the slope of the slowest producer, or None when too few sizes lie past the knee."""
        if not self.fit.makespan_sizes.any():
            return None
        volume = self.producers * self.store_bytes * sm_clock_mhz / 1e3
        return combine(lambda slope: volume / slope, self.parameter(MAKESPAN))

    def capacity_bytes(self, rate: Resampled, sm_clock_mhz: float) -> Resampled | None:
        """Q = V - R*T0 at the knee, all producers together (never negative), or None when the sweep does not saturate."""
        if not self.fit.saturated:
            return None
        per_store = self.producers * self.store_bytes
        return combine(
            lambda base, free, knee, r: np.maximum(0.0, knee * per_store - r * 1e3 / sm_clock_mhz * (base + free * knee)),
            self.parameter(BASE),
            self.parameter(FREE),
            self.parameter(KNEE),
            rate,
        )


def fit_cell(cell: Cell, flavour: str, resamples: int, seed: list[int]) -> CellFit | None:
    """Fit the law to one (K, W) and recompute it on resamples; None when there are fewer than two sizes.

    Parameters
    ----------
    cell : Cell
    flavour : str
    resamples : int
    seed : list of int
        Makes the resamples depend on the cell alone, not on which others are in the run.
    """
    if cell.stores.size < _MIN_SIZES:
        return None
    both = np.concatenate([cell.issue_mean_cycles, cell.issue_max_cycles], axis=2)
    centre, draws, apart = resample_medians(both, resamples, np.random.default_rng([*seed, 0, cell.producers, cell.warps]))
    sizes = cell.stores.size
    mean, longest = centre[:sizes], centre[sizes:]
    least_knee = _LEAST_KNEE_WARP_STORES / cell.warps
    fit = fit_knee(cell.stores, mean, longest, least_knee) if sizes >= _MIN_SIZES_KNEE else fit_knee_free(cell.stores, mean)
    counts = np.isfinite(cell.issue_mean_cycles).sum(axis=1)
    return CellFit(
        cell.producers,
        cell.warps,
        cell.warps * WARP_STORE_BYTES[flavour],
        cell.stores,
        fit,
        refit(fit, cell.stores, draws[:, :sizes], draws[:, sizes:]),
        refit(fit, cell.stores, apart[:, :sizes], apart[:, sizes:]),
        np.abs(law(fit.theta, cell.stores) - mean) / mean,
        int(counts.sum(axis=0).min()),
        int(max(1, counts.max(axis=1).min(initial=counts.max()))),
    )
