"""Fixtures that several rooms use."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml

TESTS = Path(__file__).parent


@pytest.fixture
def fake_nvml() -> Callable[..., Any]:
    """Make an NVML over the hand-made node with 2 x H200; it may be changed before it is asked."""
    return FakeNvml


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
