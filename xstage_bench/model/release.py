"""What a fence or release costs against the backlog that it meets: it waits for it to drain, up to what the stage can hold.

    cost(V) = empty + min(V, held) / rate

with V the bytes of all producers that were issued right before it, `held` the most that it can find outstanding, and `rate` what they
drain at. results/h200-x2/fences says what was measured and where the law falls short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.estimate import Estimate, with_spread
from xstage_bench.schedule.completion import DEFAULT

if TYPE_CHECKING:
    import pandas as pd

#: Probes whose bursts end in a completion that is to be priced.
PROBES = ("fences", "bulk_fences")
STATISTIC = "drain_mean"
_MIN_SIZES = 4
#: The largest backlog must cost this much more than the empty completion for the cost to count as growing with it.
_GROWTH = 1.3
_CANDIDATES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLaw:
    """The law of one completion, by K producers of W warps.

    Parameters
    ----------
    completion : str
        Instruction and who executes it (`xstage_bench.schedule.completion`).
    producers, warps : int
    empty_cycles : Estimate
        Its cost when nothing is outstanding.
    drain_gb_per_s : Estimate
        What the backlog drains at while it waits; not identified where the cost does not grow with the backlog.
    held_bytes : Estimate
        Backlog, of all producers, beyond which the cost no longer grows.
    saturated_cycles : Estimate
        Its cost there.
    median_error, largest_error : float or None
        Of the law over the sizes measured, as fractions.
    sizes, processes : int
    """

    completion: str
    producers: int
    warps: int
    empty_cycles: Estimate
    drain_gb_per_s: Estimate
    held_bytes: Estimate
    saturated_cycles: Estimate
    median_error: float | None = None
    largest_error: float | None = None
    sizes: int = 0
    processes: int = 0

    def cost_cycles(self, backlog_bytes: float, sm_clock_mhz: float) -> float | None:
        """Return the cost after `backlog_bytes` of all producers; None when the law was not identified at all."""
        empty, rate, held = self.empty_cycles.value, self.drain_gb_per_s.value, self.held_bytes.value
        if empty is None or rate is None or held is None:
            return empty
        return empty + min(backlog_bytes, held) / rate * sm_clock_mhz * 1e-3


class _Fit(NamedTuple):
    empty: float
    cycles_per_byte: float
    held: float

    def at(self, volume: FloatArray) -> FloatArray:
        return np.asarray(self.empty + np.minimum(volume, self.held) * self.cycles_per_byte)


def fit_release(volume: FloatArray, cost: FloatArray) -> tuple[float, float, float]:
    """Fit the law to one cost per volume.

    Parameters
    ----------
    volume : ndarray, shape (sizes,)
        Bytes of all producers, ascending.
    cost : ndarray, shape (sizes,)
        Cycles.

    Returns
    -------
    empty_cycles, cycles_per_byte, held_bytes
        By relative least squares; `held` from the best of a grid, refined.
    """
    from scipy.optimize import minimize_scalar

    candidates = np.geomspace(volume[volume > 0][0], volume[-1], _CANDIDATES)
    losses = [_loss(volume, cost, held) for held in candidates]
    at = int(np.argmin(losses))
    ends = float(candidates[max(at - 1, 0)]), float(candidates[min(at + 1, _CANDIDATES - 1)])
    held = float(minimize_scalar(lambda h: _loss(volume, cost, h), bounds=ends, method="bounded").x)
    return _line(volume, cost, held)


def _line(volume: FloatArray, cost: FloatArray, held: float) -> _Fit:
    """Relative least squares for this `held`; a slope below zero becomes zero."""
    design = np.column_stack([np.ones_like(volume), np.minimum(volume, held)]) / cost[:, None]
    (empty, slope), *_ = np.linalg.lstsq(design, np.ones_like(cost), rcond=None)
    return _Fit(float(empty), float(slope), held) if slope >= 0 else _Fit(float(np.median(cost)), 0.0, held)


def _loss(volume: FloatArray, cost: FloatArray, held: float) -> float:
    return float((((_line(volume, cost, held).at(volume) - cost) / cost) ** 2).sum())


def release_laws(rows: pd.DataFrame, sm_clock_mhz: float) -> list[ReleaseLaw]:
    """Fit every completion in the rows of one pair, flavour and layout.

    Parameters
    ----------
    rows : DataFrame
        Valid sample rows; those of other probes are left out.
    sm_clock_mhz : float
    """
    if "completion" not in rows:
        return []
    mine = rows[rows["probe"].isin(PROBES) & (rows["start"] == "isolated") & (rows["burst"] == 0)]
    done = mine["completed_mean_cycles"].fillna(0.0) if "completed_mean_cycles" in mine else 0.0
    mine = mine.assign(cost=mine["drain_mean_cycles"] - done)  # of the completion alone, after a bulk copy's own wait
    return list(_laws(mine[np.isfinite(mine["cost"].to_numpy(dtype=np.float64))], sm_clock_mhz))


def _laws(rows: pd.DataFrame, sm_clock_mhz: float) -> Iterator[ReleaseLaw]:
    groups: Any = rows.groupby(["completion", "producers", "warps"], sort=True)
    for (completion, producers, warps), part in groups:
        per_process = part.groupby(["process", "bytes"])["cost"].median().unstack("bytes").dropna()
        volume = per_process.columns.to_numpy(dtype=np.float64) * producers
        if len(per_process) == 0 or volume.size < _MIN_SIZES or not volume[-1] > 0:
            continue
        costs = per_process.to_numpy(dtype=np.float64)
        yield _law(str(completion or DEFAULT), int(producers), int(warps), volume, costs, sm_clock_mhz)


def _law(completion: str, producers: int, warps: int, volume: FloatArray, costs: FloatArray, clock: float) -> ReleaseLaw:
    centre = costs.mean(axis=0)
    head = {"completion": completion, "producers": producers, "warps": warps}
    size = {"sizes": int(volume.size), "processes": len(costs)}
    if centre[-1] < _GROWTH * centre[0] and centre.max() < _GROWTH * centre[0]:
        why = "the cost does not grow with the backlog"
        flat = [float(np.median(c)) for c in costs]
        error = np.abs(np.median(centre) - centre) / centre
        none = Estimate.missing(why, STATISTIC)
        level = with_spread(float(np.median(centre)), flat, STATISTIC)
        return ReleaseLaw(
            **head,  # type: ignore[arg-type]
            empty_cycles=level,
            drain_gb_per_s=none,
            held_bytes=none,
            saturated_cycles=level,
            median_error=float(np.median(error)),
            largest_error=float(error.max()),
            **size,  # type: ignore[arg-type]
        )
    fits = [_Fit(*fit_release(volume, cost)) for cost in costs]
    whole = _Fit(*fit_release(volume, centre))
    error = np.abs(whole.at(volume) - centre) / centre

    def rate(fit: _Fit) -> float:
        return clock * 1e-3 / max(fit.cycles_per_byte, 1e-12)

    last = volume[-1:]
    return ReleaseLaw(
        **head,  # type: ignore[arg-type]
        empty_cycles=with_spread(whole.empty, [f.empty for f in fits], STATISTIC),
        drain_gb_per_s=_positive(with_spread(rate(whole), [rate(f) for f in fits], STATISTIC)),
        held_bytes=_positive(with_spread(whole.held, [f.held for f in fits], STATISTIC)),
        saturated_cycles=with_spread(float(whole.at(last)[0]), [float(f.at(last)[0]) for f in fits], STATISTIC),
        median_error=float(np.median(error)),
        largest_error=float(error.max()),
        **size,  # type: ignore[arg-type]
    )


def _positive(e: Estimate) -> Estimate:
    return Estimate.missing("the processes do not agree on it", STATISTIC) if e.low is not None and e.low <= 0 else e
