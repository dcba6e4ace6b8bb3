"""Fixtures that several rooms use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_nvml import FakeNvml
from sass import kernels


@pytest.fixture
def fake_nvml() -> Callable[..., Any]:
    """Make an NVML over the hand-made node with 2 x H200; it may be changed before it is asked."""
    return FakeNvml


@pytest.fixture
def sass_of() -> Callable[[bytes, str], list[str]]:
    """Disassemble one kernel of a CUBIN: its instructions and labels, one a line."""
    return lambda cubin, kernel: kernels(cubin)[kernel]
