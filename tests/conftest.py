"""Fixtures that several rooms use."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent


def _fake_module() -> Any:
    name = "xstage_tests_fake_nvml"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TESTS / "fake_nvml.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def fake_nvml() -> Callable[..., Any]:
    """Make an NVML over the hand-made node with 2 x H200; it may be changed before it is asked."""
    return _fake_module().FakeNvml
