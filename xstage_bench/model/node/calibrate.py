"""Fit the eight parameters to measured schedules: least squares on the log of issue times, with intervals that say what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.estimate import Estimate, t_quantile
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node.targets import Targets, residuals, targets

ROBUST = 0.05  # residuals beyond this weigh less (soft L1)
_EVALUATIONS = 40
_STEP = 0.02  # relative, of the finite differences: above the kinks of the event loop
_MAX_ERROR = 0.5  # a parameter known no better than this, relative, is not identified


@dataclass(frozen=True, slots=True, eq=False)
class NodeFit:
    """A fitted model and what its numbers rest on.

    Parameters
    ----------
    model : NodeModel
        Values at the optimum; a parameter that the data does not identify kept its starting value, or moved without effect.
    estimates : dict of str to Estimate
        By name; null values where not identified.
    information : ndarray, shape (8, 8)
        Of the relative parameters: inverse covariance of one standard residual.
    schedules : tuple of str
        Keys of the schedules that the fit has seen.
    cost : float
        Of the robust loss at the optimum.
    """

    model: NodeModel
    estimates: dict[str, Estimate]
    information: FloatArray
    schedules: tuple[str, ...]
    cost: float = 0.0


def fit_measured(data: MeasuredSchedules, placement: Placement, start: NodeModel | None = None, fixed: Sequence[str] = ()) -> NodeFit:
    """Fit to measured schedules.

    Parameters
    ----------
    data : MeasuredSchedules
    placement : Placement
    start : NodeModel, optional
        Default is read off the data: the link from the largest bursts, an SM from K = 1.
    fixed : sequence of str
        Parameters that keep their value of `start`; their estimates are missing.

    Returns
    -------
    NodeFit
    """
    from scipy.optimize import least_squares

    goal = targets(data)
    if goal.log_issue.size < len(PARAMETERS):
        raise DataError(f"{goal.log_issue.size} measured bursts cannot fix {len(PARAMETERS)} parameters", "measure more schedules")
    first = start or guess(data, placement)
    spec = list(PARAMETERS.values())
    scale = np.array([p.start for p in spec])

    free = np.array([name not in fixed for name in PARAMETERS])
    kept = first.values()

    def model_at(x: FloatArray) -> NodeModel:
        values = kept.copy()
        values[free] = x * scale[free]
        return first.with_values(values)

    def residual(x: FloatArray) -> FloatArray:
        return residuals(model_at(x), goal)

    low, high = np.array([p.low for p in spec]) / scale, np.array([p.high for p in spec]) / scale
    low, high = low[free], high[free]
    x0 = np.clip(kept[free] / scale[free], low + 1e-6, high - 1e-6)
    # The Jacobian's own scale: the parameters trade off against each other, and any fixed scale stops short of the optimum.
    found = least_squares(
        residual, x0, bounds=(low, high), loss="soft_l1", f_scale=ROBUST, diff_step=_STEP, x_scale="jac", max_nfev=_EVALUATIONS, ftol=1e-4
    )
    linear = _linear(residual, found.x, goal)
    estimates = {name: Estimate.missing(f"{name} was held fixed") for name in fixed}
    for i, name in enumerate(name for name in PARAMETERS if name not in fixed):
        estimates[name] = _estimate(name, float(found.x[i]), PARAMETERS[name].start, linear, i, float(low[i]), float(high[i]))
    return NodeFit(model_at(found.x), {name: estimates[name] for name in PARAMETERS}, linear.information, data.keys, float(found.cost))


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """What one residual moves each scaled parameter by, and the errors that follow. Shapes (8, residuals), (8,), (8,), (8, 8)."""

    scatter: FloatArray
    scatter_quantile: float
    between: FloatArray
    quantile: float
    information: FloatArray


def _linear(residual: Callable[[FloatArray], FloatArray], x: FloatArray, goal: Targets) -> _Linear:
    """Linearise at the optimum with central differences: errors from the scatter over schedules and from that over processes."""
    at = residual(x)
    slope = np.empty((at.size, x.size))
    for i in range(x.size):
        step = np.zeros(x.size)
        step[i] = _STEP * max(abs(x[i]), 0.05)
        slope[:, i] = (residual(x + step) - residual(x - step)) / (2 * step[i])
    weight = 1 / np.sqrt(1 + (at / ROBUST) ** 2)
    normal = slope.T @ (slope * weight[:, None])
    inverse = np.linalg.pinv(normal, rcond=1e-10, hermitian=True)
    pull = inverse @ (slope * weight[:, None]).T
    grouped = np.zeros((x.size, int(goal.owner.max()) + 1))
    np.add.at(grouped.T, goal.owner, (pull * at).T)
    # Clusters are schedules; each parameter fitted takes one from their scatter (the HC1 correction of the sandwich).
    clusters = grouped.shape[1]
    freedom = max(clusters - x.size, 1)
    scatter = np.sqrt((grouped**2).sum(axis=1) * clusters / freedom)
    shifts = np.array([pull @ d for d in goal.process_shift])
    count = len(shifts)
    between = shifts.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(x.size)
    quantile = t_quantile(count - 1) if count > 1 else 0.0
    spread = max(float(np.median(np.abs(at)) / 0.6745), 1e-6)
    return _Linear(scatter, t_quantile(freedom), between, quantile, normal / spread**2)


def _estimate(name: str, x: float, scale: float, linear: _Linear, i: int, low: float, high: float) -> Estimate:
    value = x * scale
    error = float(np.hypot(linear.scatter[i], linear.between[i])) * scale
    half = float(np.hypot(linear.scatter_quantile * linear.scatter[i], linear.quantile * linear.between[i])) * scale
    if linear.information[i, i] <= 1e-6:
        return Estimate.missing(f"no measured schedule depends on {name}")
    if error > _MAX_ERROR * max(abs(value), 0.1 * scale):
        return Estimate.missing(f"{name} = {value:.4g} +- {error:.2g}: the schedules do not determine it")
    if x <= low + 1e-4 or x >= high - 1e-4:
        return Estimate(
            value=value, standard_error=error, low=value - half, high=value + half, status="at_bound", reason="at the edge of its range"
        )
    return Estimate(value=value, standard_error=error, low=value - half, high=value + half)


def guess(data: MeasuredSchedules, placement: Placement, own: IssueLaw | None = None, pace: float | None = None) -> NodeModel:
    """Return a model to start from: what single SMs and the largest bursts show, and `PARAMETERS` for the rest.

    Parameters
    ----------
    data : MeasuredSchedules
    placement : Placement
    own : IssueLaw, optional
        As measured (`issue_fit`); default is the borrowed one of st.v4.
    pace : float, optional
        One warp's interval between its stores; default is read off the bursts of single warps.
    """
    last = np.array([int(f) - 1 for f in data.first[1:]])
    issue, slowest = data.issue_cycles[last], data.issue_max_cycles[last]
    size = np.array([s.bursts[-1].bytes for s in data.schedules], dtype=np.float64)
    producers = np.array([s.producer_count for s in data.schedules], dtype=np.float64)
    warps = np.array([s.warps for s in data.schedules])
    values = {name: p.start for name, p in PARAMETERS.items()}
    clock = data.sm_clock_mhz
    with np.errstate(divide="ignore", invalid="ignore"):
        one = data.isolated & (producers == 1) & (warps >= 2) & (size > 1e5)
        if one.any():
            values["sm_bytes_per_cycle"] = float(np.nanmax(size[one] / issue[one]))
        lone = data.isolated & (warps == 1) & (size > 0) & (size <= 16384) & (producers == producers.min())
        law = IssueLaw() if own is None else own
        stores = size / law.store_bytes
        if pace is not None:
            values["issue_cycles_per_store"] = pace
        elif np.unique(stores[lone]).size >= 2:
            values["issue_cycles_per_store"] = float(np.polyfit(stores[lone], issue[lone], 1)[0])
        rate = producers * size / slowest * clock / 1e3
        full = data.isolated & (producers * values["sm_bytes_per_cycle"] * clock / 1e3 > 1.5 * values["link_gb_per_s"]) & (size > 1e5)
        full = full if full.any() else data.isolated & (size > 1e5)
        if full.any():
            values["link_gb_per_s"] = float(np.nanmedian(rate[full]))
    inside = {name: float(np.clip(v, PARAMETERS[name].low * 1.01, PARAMETERS[name].high * 0.99)) for name, v in values.items()}
    return NodeModel(**inside, placement=placement, sm_clock_mhz=clock, issue=law)


def log_errors(model: NodeModel, data: MeasuredSchedules) -> FloatArray:
    """Return log(predicted / measured) of every burst of `data`, NaN where nothing was measured or the burst is empty."""
    predicted = predict_node(model, data.schedules, sm_clock_mhz=data.sm_clock_mhz).issue_cycles
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(predicted / data.issue_cycles)
    size = np.array([b.bytes for s in data.schedules for b in s.bursts])
    return np.where((size > 0) & np.isfinite(ratio), ratio, np.nan)
