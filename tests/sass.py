"""The machine code of a CUBIN, by nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path


def disassemble(cubin: bytes) -> str:
    """Return what nvdisasm prints, all kernels and their comments."""
    bundled = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    tool = str(bundled) if bundled.exists() else shutil.which("nvdisasm")
    assert tool is not None, "nvdisasm is missing: pip install nvidia-cuda-nvdisasm (part of the dev extra)"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-c", file.name], check=True, capture_output=True, text=True).stdout


def lines_of(text: str) -> list[str]:
    """Return lines without their comments."""
    return [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]


def kernels(cubin: bytes) -> dict[str, list[str]]:
    """Return the instructions and labels of each kernel, one a line."""
    parts = re.split(r"^\.text\.(\w+):$", disassemble(cubin), flags=re.MULTILINE)
    return {
        name: [line for line in lines_of(body) if (line and not line.startswith((".", "//"))) or line.startswith(".L")]
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
