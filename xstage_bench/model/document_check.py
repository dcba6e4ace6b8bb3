"""Whether a document that was read can be: every pair is ``A>B``, every interval holds its value, every number is finite and in its range.

The typed reader has checked types and keys; this checks what they hold, and names file, key and value of the first that cannot be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from xstage_bench.errors import DataError
from xstage_bench.model.estimate import Estimate

T = TypeVar("T")
_PAIR = re.compile(r"\d{1,6}>(-1|\d{1,6})")
#: Beyond these no number of a document has a meaning, and arithmetic with it ends in infinities.
_LARGEST = 1e30
_LARGEST_WHOLE = 2**53  # a double holds it exactly; beyond 64 bits numpy has no logarithm of it
_COUNTS = ("producers", "warps")
_POSITIVE = (*_COUNTS, "sm_clock_mhz")
_NEVER_NEGATIVE = (
    *("bytes", "sizes", "repetitions", "processes", "n_schedules", "n_bursts", "n_points", "n_stalled", "n_free", "resamples"),
    *("median_error", "p90_error", "p95_error", "largest_error", "interval_score", "median", "p90", "p95"),
)
_SHARES = ("regime_balanced_accuracy", "balanced_accuracy", "interval_coverage_90")
#: Estimates that are rates or sizes.
_ESTIMATES_ABOVE = {"drain_gb_per_s": 0.0, "capacity_bytes": -1e-9, "capacity_bytes_per_producer": -1e-9, "knee_bytes": -1e-9}


def checked(path: Path, document: T) -> T:
    """Return the document, whose number, interval and pair may each be.

    Raises
    ------
    DataError
        One cannot be; file, key and value are named.
    """
    for key, value, why in _wrong(document, ""):
        raise DataError(f"{path}: {key} is {value!r}, {why}", "mend this place in the file, or make it again: xstage fit, xstage validate")
    return document


def _wrong(node: Any, key: str) -> Iterator[tuple[str, Any, str]]:
    if isinstance(node, bool | str) or node is None:
        return
    if isinstance(node, int | float):
        if not (math.isfinite(node) and abs(node) < (_LARGEST_WHOLE if isinstance(node, int) else _LARGEST)):
            yield key, node, "which is no number that was measured"
    elif isinstance(node, Estimate):
        yield from _estimate(node, key)
    elif is_dataclass(node):
        for field in fields(node):
            value, name = getattr(node, field.name), f"{key}.{field.name}" if key else field.name
            yield from _wrong(value, name)
            if (why := _field(field.name, value)) is not None:
                yield name, value, why
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _wrong(value, f"{key}.{name}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from _wrong(value, f"{key}[{i}]")


def _field(name: str, value: Any) -> str | None:
    """Say why a field of this name cannot have this value."""
    if name == "pair" and not _PAIR.fullmatch(value):
        return "which is not a pair A>B"
    if isinstance(value, Estimate):
        least = _ESTIMATES_ABOVE.get(name)
        return None if least is None or value.value is None or value.value > least else f"whose value {value.value} is not positive"
    if isinstance(value, tuple) and name in (*_COUNTS, "bytes", "gap_cycles"):  # of CalibratedRange
        return None if 0 <= value[0] <= value[1] else "which is not a range, lowest first"
    if not isinstance(value, int | float):
        return None
    if name in _POSITIVE and not value > 0:
        return "which is not positive"
    if name in _NEVER_NEGATIVE and value < 0:
        return "which is negative"
    return "which is no share, 0 to 1" if name in _SHARES and not 0 <= value <= 1 else None


def _estimate(e: Estimate, key: str) -> Iterator[tuple[str, Any, str]]:
    for name in ("value", "standard_error", "low", "high"):
        yield from _wrong(getattr(e, name), f"{key}.{name}")
    if not 0 < e.level < 1:
        yield f"{key}.level", e.level, "which is no level of an interval"
    if e.standard_error is not None and e.standard_error < 0:
        yield f"{key}.standard_error", e.standard_error, "which is negative"
    if e.status == "not_identified" and e.value is not None:
        yield f"{key}.value", e.value, "though its status is not_identified"
    if e.status != "not_identified" and e.value is None:
        yield f"{key}.value", e.value, f"though its status is {e.status}"
    if e.low is not None and e.high is not None and e.low > e.high:
        yield f"{key}.low", e.low, f"which is above its high, {e.high!r}"
    if e.value is not None:
        slack = 1e-6 * abs(e.value)
        if e.low is not None and e.value < e.low - slack:
            yield f"{key}.value", e.value, f"which is below its low, {e.low!r}"
        if e.high is not None and e.value > e.high + slack:
            yield f"{key}.value", e.value, f"which is above its high, {e.high!r}"
