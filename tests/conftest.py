"""Fixtures that several rooms use."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
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


@pytest.fixture
def sass_of(tmp_path: Path) -> Callable[[bytes, str], list[str]]:
    """Disassemble one kernel of a CUBIN: its instructions and labels, one a line."""
    bundled = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    tool = str(bundled) if bundled.exists() else shutil.which("nvdisasm")
    assert tool is not None, "nvdisasm is missing: pip install nvidia-cuda-nvdisasm (part of the dev extra)"

    def lines(cubin: bytes, kernel: str) -> list[str]:
        (tmp_path / "k.cubin").write_bytes(cubin)
        text = subprocess.run([tool, "-c", str(tmp_path / "k.cubin")], check=True, capture_output=True, text=True).stdout
        parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
        body = dict(zip(parts[1::2], parts[2::2], strict=True))[kernel]
        found = (re.sub(r"/\*.*?\*/", "", line).strip() for line in body.splitlines())
        return [line for line in found if (line and not line.startswith((".", "//"))) or line.startswith(".L")]

    return lines
