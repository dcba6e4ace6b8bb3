"""Whether two fits say the same: on another CPU, or with another numpy or scipy, the last digits differ and a search ends elsewhere."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from xstage_bench.model.estimate import Estimate

#: Of an interval, by which its number and ends may differ; and of a number without one, relative and in itself (errors are fractions).
SHARE, RELATIVE, ABSOLUTE = 0.05, 0.01, 5e-4


def assert_alike(a: Any, b: Any, where: str = "fit", *, share: float = SHARE, relative: float = RELATIVE) -> None:
    """Compare dataclasses, dicts and lists of them part by part: what is no number must be equal, but for digits in a reason."""
    if isinstance(a, Estimate) and isinstance(b, Estimate):
        assert (a.status, a.level, a.statistic) == (b.status, b.level, b.statistic), where
        width = None if a.low is None or a.high is None else share * (a.high - a.low)
        for name in ("value", "low", "high"):
            _number(getattr(a, name), getattr(b, name), f"{where}.{name}", width, relative)
        _number(a.standard_error, b.standard_error, f"{where}.standard_error", width, relative)
        assert_alike(a.reason, b.reason, f"{where}.reason")
    elif dataclasses.is_dataclass(a) and type(a) is type(b):
        for f in dataclasses.fields(a):
            assert_alike(getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}", share=share, relative=relative)
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_alike(a[key], b[key], f"{where}[{key}]", share=share, relative=relative)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_alike(x, y, f"{where}[{i}]", share=share, relative=relative)
    elif isinstance(a, float):
        _number(a, b, where, None, relative)
    elif isinstance(a, str) and isinstance(b, str):
        assert re.sub(r"[\d.]+", "#", a) == re.sub(r"[\d.]+", "#", b), where
    else:
        assert a == b, where


def _number(a: float | None, b: float | None, where: str, width: float | None, relative: float) -> None:
    if a is None or b is None:
        assert a is b, where
    elif width is None:
        assert b == pytest.approx(a, rel=relative, abs=ABSOLUTE), where
    else:
        assert b == pytest.approx(a, rel=1e-6, abs=width), where
