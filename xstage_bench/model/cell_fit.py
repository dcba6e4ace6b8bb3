"""The fit of one (K, W), with its parameters recomputed on every resample and on every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.cells import Cell
from xstage_bench.model.knee import (
    BASE,
    FREE,
    KNEE,
    MAKESPAN,
    KneeFit,
    fit_knee,
    fit_knee_free,
    law,
    makespan_slopes,
    refit,
)
from xstage_bench.model.onset import Onset, find_onset
from xstage_bench.model.resample import Resampled, beyond_noise, combine, resample_medians
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
    issue_mean_cycles : tuple of ndarray, shapes (sizes,), (resamples, sizes) and (processes, sizes)
        Typical mean over producers, on the whole data, on each resample and on each process alone.
    fit : KneeFit
        On the whole data.
    onset : Onset
    draws, per_process : ndarray, shapes (resamples, 6) and (processes, 6)
        The parameters refitted on each resample, and on each process alone.
    errors : ndarray, shape (sizes,)
        |fitted - measured| / measured of the mean issue time.
    repetitions : int
        Valid repetitions of the scarcest size, over all processes.
    repetitions_per_process : int
    makespan_choice : float
        Standard error of the makespan slope by the choice of sizes, cycles per warp-store: the jackknife over them, as far as noise does
        not explain it.
    """

    producers: int
    warps: int
    store_bytes: int
    stores: FloatArray
    issue_mean_cycles: tuple[FloatArray, FloatArray, FloatArray]
    fit: KneeFit
    onset: Onset
    draws: FloatArray
    per_process: FloatArray
    errors: FloatArray
    repetitions: int
    repetitions_per_process: int
    makespan_choice: float = 0.0

    def parameter(self, index: int) -> Resampled:
        """One fitted parameter, by its place in `knee.NAMES`."""
        choice = self.makespan_choice if index == MAKESPAN else 0.0
        value, draws, apart = float(self.fit.theta[index]), self.draws[:, index], self.per_process[:, index]
        return Resampled(value, draws, apart, self.repetitions_per_process, choice)

    def issue(self, size: int) -> Resampled:
        """Measured mean issue time of the size of this index, cycles."""
        return self._of_issue(lambda m: m[..., size])

    def _of_issue(self, function: Callable[[FloatArray], FloatArray]) -> Resampled:
        value, draws, apart = (np.asarray(function(m)) for m in self.issue_mean_cycles)
        return Resampled(float(value), draws, apart, self.repetitions_per_process)

    def free_size(self, most_bytes: int, alone: CellFit | None = None) -> int:
        """Index of the largest size below the knee, of at most `most_bytes` per producer.

        The knee is rounded. Where `alone`, the fewest producers with these warps, had the same size, it may not take longer than theirs.
        """
        issue = self.issue_mean_cycles[0]
        size = max(0, min(self.onset.free, int((self.stores * self.store_bytes <= most_bytes).sum()) - 1))
        usual = {} if alone is None else dict(zip(alone.stores.tolist(), alone.issue_mean_cycles[0].tolist(), strict=True))
        while size > 0 and issue[size] > STALLED * usual.get(float(self.stores[size]), np.inf):
            size -= 1
        return size

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
        """Q = V - R*T0 where issue first stalls, all producers together (never negative), or None when the sweep does not saturate.

        What was issued by then and had not drained. A sweep without two sizes that clearly stall gives it at the crossing of the two
        lines that were fitted to all of its sizes.
        """
        if not self.fit.saturated:
            return None
        per_store, onset = self.producers * self.store_bytes, self.onset
        if onset.stalled is not None:
            stores = self._of_issue(lambda m: onset.stores(self.stores, m))
            # How far a bend of the stalled line would move the onset: the ends of a uniform distribution.
            bend = self._of_issue(lambda m: onset.bend(self.stores, m))
            stores = replace(stores, choice=beyond_noise(bend.value, bend.draws) / np.sqrt(3))
            free = self._of_issue(lambda m: onset.free_cycles(self.stores, m, onset.stores(self.stores, m)))
            return combine(lambda n, t0, r: np.maximum(0.0, n * per_store - r * 1e3 / sm_clock_mhz * t0), stores, free, rate)
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
    refitted = refit(fit, cell.stores, draws[:, :sizes], draws[:, sizes:])
    counts = np.isfinite(cell.issue_mean_cycles).sum(axis=1)
    return CellFit(
        cell.producers,
        cell.warps,
        cell.warps * WARP_STORE_BYTES[flavour],
        cell.stores,
        (mean, draws[:, :sizes], apart[:, :sizes]),
        fit,
        find_onset(fit, cell.stores, mean),
        refitted,
        refit(fit, cell.stores, apart[:, :sizes], apart[:, sizes:]),
        np.abs(law(fit.theta, cell.stores) - mean) / mean,
        int(counts.sum(axis=0).min()),
        int(max(1, counts.max(axis=1).min(initial=counts.max()))),
        beyond_noise(_jackknife_error(makespan_slopes(fit, cell.stores, longest)), refitted[:, MAKESPAN]),
    )


def _jackknife_error(without_each: FloatArray) -> float:
    return float(np.sqrt(without_each.size - 1) * without_each.std()) if without_each.size > 1 else 0.0
