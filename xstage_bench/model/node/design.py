"""Which schedules fix the eight parameters with little measuring: the short list of ``profile --quick``, and what n schedules tell.

Each group is there for certain parameters (the effects of `docs/node-model.md`): one SM alone for what an SM does; bursts around the knee
at small, middle and full K for capacities, credit and buffer; long ones for the link; periodic and timed trains for the spread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.parameters import PARAMETERS
from xstage_bench.schedule.bursts import Burst, Schedule

FloatArray = NDArray[np.float64]
_STORE = 512
#: Stores per warp of isolated bursts by (share of all SMs, warps).
_ALONE = {
    (0.0, 1): (4, 8, 16, 32),
    (0.0, 4): (16, 64, 256),
    (0.09, 4): (16, 32, 64, 128),
    (0.12, 2): (24, 48, 96, 256),
    (0.18, 1): (48, 64, 96, 192),
    (0.24, 2): (24, 32, 48, 96, 256),
    (0.36, 4): (12, 16, 24, 48),
    (0.48, 1): (48, 56, 64, 96, 192),
    (0.73, 4): (10, 12, 16, 32, 128),
    (1.0, 1): (40, 44, 48, 64, 128),
    (1.0, 4): (11, 12, 16, 32, 128),
    (1.0, 8): (6, 8, 12, 64),
}
#: Trains of equal bursts: (share of all SMs, warps, stores per warp, period over what the link needs).
_PERIODIC = (
    (0.12, 4, 32, 0.8),
    (0.24, 4, 16, 0.4),
    (0.24, 1, 64, 0.5),
    (0.48, 4, 32, 0.7),
    (1.0, 4, 16, 0.6),
    (1.0, 4, 8, 0.2),
    (1.0, 1, 64, 0.9),
)
_TIMED = (
    (0.24, 4, 16, 0.7),
    (0.24, 1, 64, 0.9),
    (0.24, 4, 8, 0.55),
    (0.48, 1, 32, 0.9),
    (0.48, 4, 16, 0.6),
    (0.48, 1, 64, 0.75),
    (1.0, 1, 32, 0.8),
    (1.0, 4, 16, 0.95),
    (1.0, 4, 24, 0.5),
    (1.0, 1, 48, 0.88),
    (1.0, 4, 8, 0.67),
)
_BURSTS = 12


def quick_schedules(
    sm_count: int, source: int, destination: int, *, link_gb_per_s: float = 370.0, sm_clock_mhz: float = 1980.0
) -> list[Schedule]:
    """Return the short list for one pair.

    Parameters
    ----------
    sm_count : int
    source, destination : int
    link_gb_per_s, sm_clock_mhz : float
        Expected; they set the trains' gaps and periods, and need not be right within 30 %.
    """

    def count(share: float) -> int:
        return max(1, round(share * sm_count))

    pair = (source, destination)
    out = [Schedule((Burst(n * warps * _STORE),), count(share), warps, *pair) for (share, warps), sizes in _ALONE.items() for n in sizes]
    for share, warps, n, factor in _PERIODIC:
        size = n * warps * _STORE
        gap = round(factor * count(share) * size / link_gb_per_s * sm_clock_mhz / 1e3)
        out.append(Schedule((Burst(size, gap),) * _BURSTS, count(share), warps, *pair, "free"))
    for share, warps, n, factor in _TIMED:
        size = n * warps * _STORE
        period = round(factor * count(share) * size / link_gb_per_s)
        out.append(Schedule(tuple(Burst(size, start_ns=i * period) for i in range(_BURSTS)), count(share), warps, *pair, "timed"))
    return out


def nearest(data: Measured, wanted: list[Schedule]) -> Measured:
    """Return the measured schedules most like these: same start rule, nearest in log K, W, size and period."""
    have = np.array([_features(s) for s in data.schedules])
    rule = np.array([s.start for s in data.schedules])
    taken: list[int] = []
    for s in wanted:
        far = np.abs(have - _features(s)).sum(axis=1)
        far[rule != s.start] = np.inf
        far[taken] = np.inf
        best = int(np.argmin(far))
        if np.isfinite(far[best]):
            taken.append(best)
    return data.take(np.sort(np.array(taken, dtype=np.int64)))


def _features(s: Schedule) -> FloatArray:
    b = s.bursts[min(1, len(s.bursts) - 1)]
    stores = b.bytes / (s.warps * _STORE)
    pause = b.gap_cycles if s.start == "free" else b.start_ns
    return np.log([s.producer_count, s.warps, max(stores, 0.5), pause + 500.0])


def relative_errors(information: FloatArray, values: FloatArray) -> dict[str, float]:
    """Return the relative standard error of each parameter that an information matrix promises (inf: not identified).

    Parameters
    ----------
    information : ndarray, shape (8, 8)
        Of the parameters over their `start`, as in `NodeFit`.
    values : ndarray, shape (8,)
    """
    variance = np.diag(np.linalg.pinv(information, rcond=1e-12, hermitian=True))
    scale = np.array([p.start for p in PARAMETERS.values()])
    known = np.diag(information) > 1e-6
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(np.maximum(variance, 0.0)) * scale / np.abs(values)
    return {name: float(e) if ok else float("inf") for name, e, ok in zip(PARAMETERS, error, known, strict=True)}
