"""For those who test this tool: time-outs that all scale by one variable, and faults planted in one pair.

``XSTAGE_TIMEOUT_SCALE=20`` lets a run live under a sanitizer or a debugger. ``XSTAGE_DEBUG_FAULT=corrupt@0>1`` plants a wrong word after
the burst that verifies the pair, ``wait@0>1`` lets its kernels wait for something that never comes until their own time-out,
``hang@0>1`` until the host's watchdog ends the process. Both variables are recorded in the manifest; no planted fault leaves a number.
"""

from __future__ import annotations

import math
import os

from xstage_bench.errors import UsageError

TIMEOUT_SCALE, FAULT = "XSTAGE_TIMEOUT_SCALE", "XSTAGE_DEBUG_FAULT"
FAULTS = ("corrupt", "wait", "hang")
#: How long a kernel with the planted ``hang`` waits: longer than any watchdog, and yet not for ever.
HANG_NS = 120_000_000_000


def timeout_scale() -> float:
    """Return the factor on every time-out, 1 when it is not set.

    Raises
    ------
    UsageError
        It is no positive, finite number.
    """
    text = os.environ.get(TIMEOUT_SCALE, "1")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise UsageError(f"{TIMEOUT_SCALE}={text} is no positive number", f"unset {TIMEOUT_SCALE}, or for example {TIMEOUT_SCALE}=20")
    return scale


def planted(source: int, destination: int) -> str | None:
    """Return the fault planted in this pair, one of `FAULTS`, or None.

    Raises
    ------
    UsageError
        The variable names no such fault.
    """
    text = os.environ.get(FAULT)
    if not text:
        return None
    name, at, pair = text.partition("@")
    if name not in FAULTS:
        raise UsageError(f"{FAULT}={text} names no fault", f"use one of: {', '.join(FAULTS)}, then @0>1 for one pair")
    return name if not at or pair == f"{source}>{destination}" else None
