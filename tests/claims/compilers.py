"""Whether both stamps mean the same by every NVRTC that PyPI has for CUDA 12 and 13: ``make compilers ARGS=[FOLDER]``.

Each wheel is fetched into FOLDER (default: a temporary one; 90 MB each), its library loaded in a process of its own, the burst kernel
compiled for sm_90, and its machine code read as ``tests/device/test_cuda_kernels.py`` does. Prints a row for each; exits 1 if one differs.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kernel_code import reads_behind, stamps_of, waits_of_issued
from sass import instructions

from xstage_bench.device.cuda.variant import Variant
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS

PACKAGES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
FLAVOUR, ARCH = "st.v4", "sm_90"


def versions(package: str) -> list[str]:
    """Return what PyPI has of CUDA 12 or 13, newest first."""
    text = subprocess.run([sys.executable, "-m", "pip", "index", "versions", package], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Available versions: (.*)", text)
    return [] if found is None else [v for v in found.group(1).split(", ") if v.startswith(("12.", "13."))]


def library(package: str, version: str, folder: Path) -> Path:
    """Return libnvrtc of one version, fetched when it is not there."""
    at = folder / version
    if not at.exists():
        with tempfile.TemporaryDirectory() as wheels:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", wheels]
            subprocess.run([*command, f"{package}=={version}"], check=True, capture_output=True)
            for wheel in Path(wheels).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(at)
    return next(at.glob("nvidia/*/lib/libnvrtc.so.1?"))


def compiled(path: Path) -> bytes:
    """Compile the burst kernel with this library; run in a process of its own, so that no two libraries meet."""
    for more in path.parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(more), mode=ctypes.RTLD_GLOBAL)
    nvrtc, program, size = ctypes.CDLL(str(path)), ctypes.c_void_p(), ctypes.c_size_t()
    variant = Variant(FLAVOURS[FLAVOUR])
    words = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0))}
    options = [f"--gpu-architecture={ARCH}", "-std=c++17", f"--include-path={asset_dir('cuda')}"]
    options += [f"-D{k}={v}" for k, v in words.items()]
    code = (asset_dir("cuda") / "burst.cu").read_bytes()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, b"burst.cu", 0, None, None):
        raise RuntimeError(f"{path}: no program could be made")
    if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options))):
        raise RuntimeError(f"{path}: burst.cu was rejected")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def main(folder: Path) -> int:
    """Print a row for each compiler; return 1 if one gives a stamp another meaning."""
    wrong = 0
    print("| NVRTC | instructions | stores in a turn | waits before 'issued' | 'taken' waits |\n|---|---|---|---|---|")
    for package in PACKAGES:
        for version in versions(package):
            path = library(package, version, folder)
            cubin = subprocess.run([sys.executable, __file__, "--compile", path], check=True, capture_output=True).stdout
            code, store = instructions(cubin, "xstage_burst"), FLAVOURS[FLAVOUR].sass
            waits, behind = waits_of_issued(code, store), reads_behind(code, store)
            wrong += bool(waits) or not behind
            print(
                f"| {version} | {len(code)} | {len(stamps_of(code, store)[0])} | {len(waits)} | {'yes' if behind else 'NO'} |", flush=True
            )
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        sys.stdout.buffer.write(compiled(Path(sys.argv[2])))
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
