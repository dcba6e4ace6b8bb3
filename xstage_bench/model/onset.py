"""Where issue first stalls, by the sizes around the knee alone: the largest free burst gives T0, the onset gives Q.

The two lines of the joint fit (`knee`) share one loss over all sizes. Their crossing therefore moves with the sizes that were swept: the
mean over producers bends far behind the knee, where fast producers have finished. Nothing here looks further than three sizes past it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.knee import EXCESS, FREE, KNEE, KneeFit

#: A size is clearly stalled, beyond the rounding of the knee, when it takes this many times its T0,
_CLEARLY = 1.3
#: and a store on the step to it costs this share of a stalled one.
_STEEP = 0.5
#: It says where issue first stalls when it is at most so many times as large as the knee of the joint fit.
_NEAR = 2.0


@dataclass(frozen=True, slots=True)
class Onset:
    """Which sizes of a sweep lie next to its onset.

    Parameters
    ----------
    free : int
        Index of the largest size below the knee.
    stalled : int or None
        Index of the smallest size that clearly stalls and has another one behind it; None when there is none.
    free_step_cycles : float
        Cycles per warp-store of T0 where only one size is free.
    """

    free: int
    stalled: int | None
    free_step_cycles: float

    def free_cycles(self, stores: FloatArray, issue_mean_cycles: FloatArray, at: FloatArray | float) -> FloatArray:
        """Return T0 of `at` warp-stores per warp, on the line through the two largest free sizes; `issue_mean_cycles` (..., sizes)."""
        t0 = issue_mean_cycles[..., self.free]
        return np.asarray(t0 + self._step(stores, issue_mean_cycles) * (at - stores[self.free]))

    def stores(self, stores: FloatArray, issue_mean_cycles: FloatArray) -> FloatArray:
        """Return the warp-stores per warp at which issue first stalls: where the line through two stalled sizes meets T0; (..., sizes)."""
        assert self.stalled is not None
        first, second = stores[self.stalled], stores[self.stalled + 1]
        late = issue_mean_cycles[..., self.stalled]
        slope = (issue_mean_cycles[..., self.stalled + 1] - late) / (second - first)
        over = late - self.free_cycles(stores, issue_mean_cycles, first)
        excess = np.maximum(slope - self._step(stores, issue_mean_cycles), 1e-9)
        return np.asarray(np.clip(first - over / excess, stores[self.free], first))

    def bend(self, stores: FloatArray, issue_mean_cycles: FloatArray) -> FloatArray:
        """Return how far the onset moves, in warp-stores, when the stalled line bends as its third size shows; 0 without one."""
        if self.stalled is None or self.stalled + 2 >= stores.size:
            return np.zeros(issue_mean_cycles.shape[:-1])
        n, m = stores[self.stalled : self.stalled + 3], issue_mean_cycles[..., self.stalled : self.stalled + 3]
        near, far = np.moveaxis(np.diff(m) / np.diff(n), -1, 0)
        at = self.stores(stores, issue_mean_cycles)
        remainder = (far - near) / (n[2] - n[0]) * (at - n[0]) * (at - n[1])  # Newton's next term
        return np.asarray(remainder / np.maximum(near - self._step(stores, issue_mean_cycles), 1e-9))

    def _step(self, stores: FloatArray, issue_mean_cycles: FloatArray) -> FloatArray:
        if self.free == 0:
            return np.full(issue_mean_cycles.shape[:-1], self.free_step_cycles)
        below = issue_mean_cycles[..., self.free - 1]
        return np.asarray((issue_mean_cycles[..., self.free] - below) / (stores[self.free] - stores[self.free - 1]))


def find_onset(fit: KneeFit, stores: FloatArray, issue_mean_cycles: FloatArray) -> Onset:
    """Find the sizes next to the onset: the joint fit says about where it is, the sizes there say where exactly.

    Parameters
    ----------
    fit : KneeFit
    stores, issue_mean_cycles : ndarray, shape (sizes,)
    """
    last, step = stores.size - 1, float(fit.theta[FREE])
    if not fit.saturated:
        return Onset(last, None, step)
    about = Onset(max(0, int((stores < fit.theta[KNEE]).sum()) - 1), None, step)
    clearly = issue_mean_cycles >= _CLEARLY * about.free_cycles(stores, issue_mean_cycles, stores)
    # Where the smallest bursts cost a floor, the line through them lies far below T0 of the next size; its step tells it from a stall.
    clearly[1:] &= np.diff(issue_mean_cycles) / np.diff(stores) >= _STEEP * (step + fit.theta[EXCESS])
    later = np.flatnonzero(clearly & (np.arange(stores.size) > about.free))
    if not later.size or later[0] == last or stores[later[0]] > _NEAR * fit.theta[KNEE]:
        return about
    found = replace(about, stalled=int(later[0]))
    return replace(found, free=int((stores <= found.stores(stores, issue_mean_cycles)).sum()) - 1)
