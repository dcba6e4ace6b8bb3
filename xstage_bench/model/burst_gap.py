"""The closed forms of the Burst-Gap model (X-Stage, arXiv 2607.23264), vectorised.

K producers each inject B bytes per burst, V = K * B in all, with a gap G of useful work between the bursts. Three numbers
describe the stage after issue: T0, the issue time without backpressure; R, the rate at which the stage drains, all producers
together; and Q, the bytes that can be issued and not yet drained before issue stalls.

All functions broadcast. Times are in ns, sizes in bytes for all producers together, rates in GB/s: 1 GB/s (10^9) is exactly
1 byte per ns, so no factor appears. What an SM does is known in cycles; `cycles_to_ns` and `ns_to_cycles` convert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.errors import UsageError
from xstage_bench.model.arrays import BoolArray, FloatArray

#: A burst is called stalled when it takes longer than this many times its T0.
STALLED = 1.1


def asked_clock(own_mhz: float, asked_mhz: float | None) -> float:
    """Return the SM clock that is asked for, by default the model's own; UsageError when it is not positive."""
    clock = own_mhz if asked_mhz is None else float(asked_mhz)
    if not (np.isfinite(clock) and clock > 0):
        raise UsageError(f"sm_clock_mhz is {asked_mhz}, must be positive", f"the model's own is {own_mhz:g}")
    return clock


def cycles_to_ns(cycles: ArrayLike, sm_clock_mhz: ArrayLike) -> FloatArray:
    """Convert SM cycles to ns."""
    return _f(cycles) * 1e3 / _f(sm_clock_mhz)


def ns_to_cycles(time_ns: ArrayLike, sm_clock_mhz: ArrayLike) -> FloatArray:
    """Convert ns to SM cycles."""
    return _f(time_ns) * _f(sm_clock_mhz) / 1e3


def isolated_issue_ns(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike, capacity_bytes: ArrayLike) -> FloatArray:
    """Issue time of a burst that starts on a drained stage: max(T0, (V - Q)/R).

    Parameters
    ----------
    t0_ns : array_like
        Backpressure-free issue time of this burst.
    volume_bytes : array_like
        V, all producers together.
    drain_gb_per_s : array_like
        R, all producers together; positive.
    capacity_bytes : array_like
        Q, all producers together.

    Returns
    -------
    ndarray
        ns, broadcast shape.

    Notes
    -----
    Isolated-burst law of X-Stage, arXiv 2607.23264.
    """
    return np.maximum(_f(t0_ns), (_f(volume_bytes) - _f(capacity_bytes)) / _f(drain_gb_per_s))


def knee_bytes(t0_ns: ArrayLike, drain_gb_per_s: ArrayLike, capacity_bytes: ArrayLike) -> FloatArray:
    """Volume at which an isolated burst begins to stall when its T0 is `t0_ns`: Q + R*T0.

    Notes
    -----
    The same law solved for V at the knee; the paper reads Q from it: Q = V_knee - R*T0.
    """
    return _f(capacity_bytes) + _f(drain_gb_per_s) * _f(t0_ns)


def periodic_period_ns(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike, gap_ns: ArrayLike) -> FloatArray:
    """Steady period of equal bursts with a gap between them: max(T0 + G, V/R), not G + V/R.

    Notes
    -----
    Periodic-burst law of X-Stage, arXiv 2607.23264.
    """
    return np.maximum(_f(t0_ns) + _f(gap_ns), _f(volume_bytes) / _f(drain_gb_per_s))


def periodic_issue_ns(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike, gap_ns: ArrayLike) -> FloatArray:
    """Steady issue time of equal bursts with a gap between them: max(T0, V/R - G).

    Notes
    -----
    Periodic-burst law of X-Stage, arXiv 2607.23264: the period less the gap.
    """
    return np.maximum(_f(t0_ns), _f(volume_bytes) / _f(drain_gb_per_s) - _f(gap_ns))


def issue_overhead_ns(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike, gap_ns: ArrayLike) -> FloatArray:
    """Time that backpressure adds to each periodic burst: [V/R - G - T0]+ (X-Stage, arXiv 2607.23264)."""
    return np.maximum(0.0, _f(volume_bytes) / _f(drain_gb_per_s) - _f(gap_ns) - _f(t0_ns))


def recovery_gap_ns(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike) -> FloatArray:
    """Shortest gap G* at which periodic bursts cost no more than T0: [V/R - T0]+ (X-Stage, arXiv 2607.23264)."""
    return np.maximum(0.0, _f(volume_bytes) / _f(drain_gb_per_s) - _f(t0_ns))


def peak_backlog_bytes(t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike) -> FloatArray:
    """Backlog at the end of a burst that did not stall: [V - R*T0]+ (X-Stage, arXiv 2607.23264)."""
    return np.maximum(0.0, _f(volume_bytes) - _f(drain_gb_per_s) * _f(t0_ns))


def is_free_of_backpressure(
    t0_ns: ArrayLike, volume_bytes: ArrayLike, drain_gb_per_s: ArrayLike, capacity_bytes: ArrayLike, gap_ns: ArrayLike
) -> BoolArray:
    """Whether periodic bursts never stall: V/(T0+G) <= R and [V - R*T0]+ <= Q.

    Notes
    -----
    X-Stage, arXiv 2607.23264: the first condition is on the average, the second on the single burst.
    """
    keeps_up = _f(volume_bytes) <= _f(drain_gb_per_s) * (_f(t0_ns) + _f(gap_ns))
    fits = peak_backlog_bytes(t0_ns, volume_bytes, drain_gb_per_s) <= _f(capacity_bytes)
    return np.asarray(keeps_up & fits)


def _f(x: Any) -> FloatArray:
    return np.asarray(x, dtype=np.float64)
