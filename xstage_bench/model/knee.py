"""The law of one (K, W): two lines for the mean over producers, one for the slowest producer, fitted jointly and robustly.

With n warp-stores per warp::

    mean(n) = base + free * n + excess * max(0, n - knee)      all sizes
    max(n)  = offset + makespan * n                            sizes well past the knee

The free line is T0(n). Past the knee the mean grows by ``free + excess`` cycles per warp-store and the slowest producer by
``makespan``; R is read from the latter, because producers are served unequally and the mean overstates R (docs/burst-gap.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray

NAMES = ("base", "free", "excess", "knee", "offset", "makespan")
BASE, FREE, EXCESS, KNEE, OFFSET, MAKESPAN = range(6)

#: Relative residual at which the soft-L1 loss turns from square to linear: the law's own error, a few per cent.
LOSS_SCALE = 0.02
#: A sweep saturates when stores past the knee cost this much more than free ones,
_MIN_RATIO = 1.1
#: and the largest burst takes this much longer than without the knee,
_MIN_STALL = 1.1
#: and as many sizes lie past the knee,
_MIN_SIZES_PAST = 2
#: and the knee takes away more than this share of the loss of a single line; less is noise that two more parameters follow.
_MIN_GAIN = 0.3
#: The makespan line uses the sizes within this factor of the largest, and this far past the knee,
_MAKESPAN_SPAN = 4.0
_PAST_KNEE = 1.3
#: when there are so many.
_MIN_MAKESPAN_SIZES = 3
_REFIT_STEPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class KneeFit:
    """Result of `fit_knee`.

    Parameters
    ----------
    theta : ndarray, shape (6,)
        In the order of `NAMES`; NaN for what is not identified.
    saturated : bool
        False when the sweep never stalls; then only base and free are fitted.
    makespan_sizes : ndarray of bool, shape (sizes,)
        The sizes on the makespan line; none when there were too few.
    at_bound : tuple of str
        Names of the parameters that ended on their bound.
    """

    theta: FloatArray
    saturated: bool
    makespan_sizes: BoolArray
    at_bound: tuple[str, ...] = ()


def law(theta: FloatArray, stores: FloatArray) -> FloatArray:
    """Mean issue time in cycles of isolated bursts of `stores` warp-stores per warp; the free line when never saturated."""
    base, free, excess, knee = theta[:4]
    line = base + free * stores
    return line if np.isnan(knee) else np.asarray(line + excess * np.maximum(0.0, stores - knee))


def fit_knee(stores: FloatArray, issue_mean_cycles: FloatArray, issue_max_cycles: FloatArray, least_knee: float = 0.0) -> KneeFit:
    """Fit the law to one value per size, by relative residuals under a soft-L1 loss.

    Parameters
    ----------
    stores : ndarray, shape (sizes,)
        Warp-stores per warp, ascending, positive, distinct; at least two.
    issue_mean_cycles, issue_max_cycles : ndarray, shape (sizes,)
        Mean over producers, and slowest producer.
    least_knee : float
        A knee below this many stores is the instrument's (the remainder of its unrolled loop costs more per store), not the link's:
        then the sweep counts as never saturated.

    Returns
    -------
    KneeFit
        All parameters but ``offset`` are bounded to be non-negative, so that a negative time or rate, as netgauge's LogGP
        fits give on noisy data, cannot come out.
    """
    from scipy.optimize import least_squares

    start, loss = _start(stores, issue_mean_cycles)
    free_line = fit_knee_free(stores, issue_mean_cycles)
    gain = 1 - loss / max(_loss(law(free_line.theta, stores) / issue_mean_cycles - 1), 1e-300)
    saturated = _is_saturated(start, stores) and gain > _MIN_GAIN
    past = _makespan_sizes(stores, start[KNEE]) if saturated else np.zeros(stores.size, dtype=bool)
    if past.any():
        n, y = stores[past], issue_max_cycles[past]
        slope, offset = np.polyfit(n, y, 1, w=1 / y)
        start[OFFSET], start[MAKESPAN] = offset, max(slope, 1e-3)
    active = _active(saturated, past)
    lower = np.array([0.0, 0.0, 0.0, stores[1], -np.inf, 0.0])[active]
    upper = np.array([np.inf, np.inf, np.inf, stores[-1], np.inf, np.inf])[active]
    mean, longest = issue_mean_cycles[None], issue_max_cycles[None]

    def residuals(free: FloatArray) -> FloatArray:
        return np.asarray(_residuals(_full(free, active)[None], stores, mean, longest, past)[0])

    def jacobian(free: FloatArray) -> FloatArray:
        return np.asarray(_jacobian(_full(free, active)[None], stores, mean, longest, past)[0][:, active])

    begin = np.clip(start[active], np.where(np.isfinite(lower), lower, -np.inf) + 1e-6, upper - 1e-6)
    found = least_squares(
        residuals,
        begin,
        jac=jacobian,
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        x_scale=np.maximum(np.abs(begin), 1e-3),
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=500,
    )
    theta = _full(found.x, active)
    names = np.flatnonzero(active)
    near_low = found.x - lower <= 1e-4 * np.maximum(1.0, np.abs(found.x))
    near_high = upper - found.x <= 1e-4 * np.maximum(1.0, np.abs(found.x))
    bound = tuple(NAMES[i] for i, low, high in zip(names, near_low, near_high, strict=True) if low or high)
    if saturated and (theta[KNEE] < least_knee or not _is_saturated(theta, stores)):
        return free_line
    theta[~active] = np.nan
    return KneeFit(theta, saturated, past, bound)


def fit_knee_free(stores: FloatArray, issue_mean_cycles: FloatArray) -> KneeFit:
    """Fit the free line alone, for a sweep that never stalls."""
    from scipy.optimize import nnls

    weighted = np.stack([np.ones_like(stores), stores], axis=1) / issue_mean_cycles[:, None]
    found, _ = nnls(weighted, np.ones_like(stores))
    theta = np.full(6, np.nan)
    theta[:2] = found
    bound = tuple(NAMES[i] for i in range(2) if found[i] == 0.0)
    return KneeFit(theta, False, np.zeros(stores.size, dtype=bool), bound)


def refit(fit: KneeFit, stores: FloatArray, issue_mean_cycles: FloatArray, issue_max_cycles: FloatArray) -> FloatArray:
    """Fit many resamples at once, from the fit of the whole: a few reweighted Gauss-Newton steps, vectorised over resamples.

    Parameters
    ----------
    fit : KneeFit
        Of the whole data; parameters at a bound stay there.
    stores : ndarray, shape (sizes,)
    issue_mean_cycles, issue_max_cycles : ndarray, shape (resamples, sizes)

    Returns
    -------
    ndarray, shape (resamples, 6)
        NaN rows where a size is missing.
    """
    past = fit.makespan_sizes
    active = _active(fit.saturated, past)
    for name in fit.at_bound:
        active[NAMES.index(name)] = False
    theta = np.repeat(np.where(np.isnan(fit.theta), 0.0, fit.theta)[None], len(issue_mean_cycles), axis=0)
    whole = np.isfinite(issue_mean_cycles).all(axis=1) & np.isfinite(issue_max_cycles[:, past]).all(axis=1)
    mean, longest, work = issue_mean_cycles[whole], issue_max_cycles[whole], theta[whole]
    scale = np.maximum(np.abs(work[:1, active]), 1e-3)
    for _ in range(_REFIT_STEPS if whole.any() and active.any() else 0):
        residual = _residuals(work, stores, mean, longest, past)
        jacobian = _jacobian(work, stores, mean, longest, past)[:, :, active] * scale[:, None, :]
        weight = 1 / np.sqrt(1 + (residual / LOSS_SCALE) ** 2)
        normal = np.einsum("bsi,bs,bsj->bij", jacobian, weight, jacobian, optimize=True)
        normal += 1e-10 * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(normal.shape[1])
        right = np.einsum("bsi,bs->bi", jacobian, weight * residual)
        step = np.clip(-np.linalg.solve(normal, right[..., None])[..., 0], -0.3, 0.3)
        work[:, active] += step * scale
        work[:, KNEE] = np.clip(work[:, KNEE], stores[0], stores[-1]) if fit.saturated else 0.0
        for i in (BASE, FREE, EXCESS):
            work[:, i] = np.maximum(work[:, i], 0.0)
    theta[whole] = work
    theta[~whole] = np.nan
    theta[:, np.isnan(fit.theta)] = np.nan
    return theta


def makespan_slopes(fit: KneeFit, stores: FloatArray, issue_max_cycles: FloatArray) -> FloatArray:
    """Return the slope of the makespan line without each of its sizes in turn, shape (makespan sizes,); empty when two are not left."""
    used = np.flatnonzero(fit.makespan_sizes)
    left = [np.delete(used, i) for i in range(used.size)] if used.size > 2 else []
    return np.array([np.polyfit(stores[u], issue_max_cycles[u], 1, w=1 / issue_max_cycles[u])[0] for u in left])


def _loss(relative: FloatArray) -> float:
    return float((np.sqrt(1 + (relative / LOSS_SCALE) ** 2) - 1).sum())


def _start(stores: FloatArray, cycles: FloatArray) -> tuple[FloatArray, float]:
    """Best knee of a fine grid, each with its linear least-squares lines, non-negative solutions only; and its loss.

    The knee lies above the second size, because one size below it shows no line.
    """
    knees = np.geomspace(stores[1], max(stores[-2], stores[1]), 120)
    hinge = np.maximum(0.0, stores[None] - knees[:, None])
    ones = np.ones_like(hinge)
    design = np.stack([ones, ones * stores, hinge], axis=2) / cycles[None, :, None]
    scale = np.linalg.norm(design, axis=1, keepdims=True)
    scaled = design / scale
    normal = np.einsum("ksi,ksj->kij", scaled, scaled) + 1e-12 * np.eye(3)
    solution = np.linalg.solve(normal, scaled.sum(axis=1)[..., None])[..., 0] / scale[:, 0]
    solution = np.maximum(solution, [0.0, 1e-6, 0.0])
    relative = np.einsum("ksi,ki->ks", design, solution) - 1
    loss = (np.sqrt(1 + (relative / LOSS_SCALE) ** 2) - 1).sum(axis=1)
    best = int(np.argmin(loss))
    return np.array([*solution[best], knees[best], 0.0, 0.0]), float(loss[best])


def _is_saturated(theta: FloatArray, stores: FloatArray) -> bool:
    base, free, excess, knee = theta[:4]
    unstalled = base + free * stores[-1]
    stalled = unstalled + excess * max(0.0, stores[-1] - knee)
    past = int((stores > knee).sum())
    return bool(free + excess >= _MIN_RATIO * free and stalled >= _MIN_STALL * unstalled and past >= _MIN_SIZES_PAST)


def _makespan_sizes(stores: FloatArray, knee: float) -> BoolArray:
    saturated = stores >= _PAST_KNEE * knee
    upper = saturated & (stores >= stores[-1] / _MAKESPAN_SPAN)
    for chosen in (upper, saturated):
        if chosen.sum() >= _MIN_MAKESPAN_SIZES:
            return np.asarray(chosen)
    return np.zeros(stores.size, dtype=bool)


def _active(saturated: bool, past: BoolArray) -> BoolArray:
    return np.array([True, True, saturated, saturated, bool(past.any()), bool(past.any())])


def _full(free: FloatArray, active: BoolArray) -> FloatArray:
    theta = np.zeros(6)
    theta[active] = free
    return theta


def _residuals(theta: FloatArray, stores: FloatArray, mean: FloatArray, longest: FloatArray, past: BoolArray) -> FloatArray:
    """Relative residuals, shape (batch, sizes + makespan sizes)."""
    base, free, excess, knee, offset, makespan = (theta[:, i : i + 1] for i in range(6))
    first = (base + free * stores + excess * np.maximum(0.0, stores - knee)) / mean - 1
    second = (offset + makespan * stores[past]) / longest[:, past] - 1
    return np.concatenate([first, second], axis=1)


def _jacobian(theta: FloatArray, stores: FloatArray, mean: FloatArray, longest: FloatArray, past: BoolArray) -> FloatArray:
    """Derivatives of `_residuals`, shape (batch, sizes + makespan sizes, 6)."""
    excess, knee = theta[:, EXCESS : EXCESS + 1], theta[:, KNEE : KNEE + 1]
    sizes = stores.size
    out = np.zeros((len(theta), sizes + int(past.sum()), 6))
    out[:, :sizes, BASE] = 1 / mean
    out[:, :sizes, FREE] = stores / mean
    out[:, :sizes, EXCESS] = np.maximum(0.0, stores - knee) / mean
    out[:, :sizes, KNEE] = -excess * (stores > knee) / mean
    out[:, sizes:, OFFSET] = 1 / longest[:, past]
    out[:, sizes:, MAKESPAN] = stores[past] / longest[:, past]
    return out
