"""What backpressure does to one burst: the physics that the event loops of bursts and of tasks share, interpreted or compiled.

Plain functions of numbers, of what both Python and numba know; `jit` compiles them together with the loop that calls them.
"""

from __future__ import annotations

import math

FAR = 1e300  # later than anything: finite, so that a compiler may reorder sums and minima
TIE = 0.25  # cycles: events closer than this are one, and a queue that empties within it is idle
_WIDE = 34.0  # logaddexp(0, x) is x above this, and 0 below its negative, to double precision


def is_full(level: float, buffer: float) -> bool:
    """Whether the buffer before the link is full, so that its units share the link by weight."""
    return level >= buffer * (1 - 1e-9)


def service_weight(log_weight: float, evens_out: float, stored: float) -> float:
    """Return a unit's weight at the link: service differs by an amount of bytes, so those who store much are served more alike."""
    return math.exp(log_weight * evens_out / (evens_out + stored))


def blurred_excess(over: float, rate: float, late: float, blur: float) -> float:
    """Return by how many bytes the room of a draining producer is exceeded: some of its SMs stall although the mean has room.

    Parameters
    ----------
    over : float
        Excess of the mean, bytes; negative where there is room.
    rate : float
        At which it drains, bytes per cycle.
    late : float
        The credit's way back less the issue time: what drains meanwhile is not known yet.
    blur : float
        Width of the logistic spread of room over the SMs, bytes; positive.

    Returns
    -------
    float
        The mean of max(0, .) over that spread, less what the delay hides.
    """
    hidden = rate * late
    x = (over + hidden) / blur
    if x < -_WIDE:
        return -hidden
    if x < _WIDE:
        return blur * (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) - hidden
    return over


#: What `jit` compiles, callees first.
COMPILED = ("is_full", "service_weight", "blurred_excess")
