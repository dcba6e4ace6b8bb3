"""Compile the kernels of ``cuda/`` to machine code with NVRTC; needs no GPU.

The device, the tests and ``make kernels`` compile through this one function, so what is checked is what runs. CuPy's own disk
cache ignores files that a source includes; here the key is the kernel's identity: another NVRTC makes another measured loop of the same
source (docs/method.md). Every kernel that a process compiles is noted, since a recording names what measured it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from xstage_bench.errors import XStageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.io.identity import Kernel, kernel_of

#: Architectures for which every plain kernel must compile.
ARCHITECTURES: tuple[str, ...] = ("sm_80", "sm_90", "sm_100")
#: Architectures of other GPUs of the registry: plain kernels compile for them too (``make kernels``), their machine code is not looked at.
ALSO: tuple[str, ...] = ("sm_86", "sm_89", "sm_103", "sm_120")
#: The architecture of kernels that use warpgroup products and the tensor copy engine.
HOPPER = "sm_90a"
_COMPILED: dict[str, Kernel] = {}
_told = 0


def architectures_of(source: str) -> tuple[str, ...]:
    """Return the architectures that a file of ``cuda/`` is written for: only Hopper where it includes a ``hopper_`` header."""
    return (HOPPER,) if '#include "hopper_' in (asset_dir("cuda") / source).read_text() else ARCHITECTURES


def sources_hash() -> str:
    """Return 16 hex digits over the names and contents of all files in ``cuda/``."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(asset_dir("cuda").glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled() -> list[Kernel]:
    """Return the kernels that this process has compiled or taken from the cache, in that order."""
    return list(_COMPILED.values())


def newly_compiled() -> list[Kernel]:
    """Return those of `compiled` that no earlier call returned: what a worker has to tell its parent."""
    global _told
    new, _told = compiled()[_told:], len(_COMPILED)
    return new


def _cache_dir() -> Path:
    own = os.environ.get("XSTAGE_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return (Path(own) if own else Path(shared) / "xstage-bench") / "kernels"


def compile_kernel(
    source: str, arch: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None, *, cache: bool = True
) -> bytes:
    """Compile one file of ``cuda/`` and return its CUBIN.

    Parameters
    ----------
    source : str
        File name, for example ``"burst.cu"``.
    arch : str
        Real architecture, for example ``"sm_90"``.
    defines : mapping of str to str, optional
        Preprocessor definitions.
    headers : mapping of str to str, optional
        Sources that are no file of ``cuda/``, by the name under which they are included.
    cache : bool
        Keep the result under ``$XSTAGE_CACHE_DIR`` (default: the user's cache folder), keyed by its identity.

    Raises
    ------
    XStageError
        NVRTC is not installed, or rejects the source; the message is its log.
    """
    definitions = dict(defines or {})
    kernel = kernel_of(source, arch, definitions, headers)
    _COMPILED[kernel.identity] = kernel
    cached = _cache_dir() / f"{Path(source).stem}-{arch}-{kernel.identity}.cubin"
    if cache and cached.is_file():
        return cached.read_bytes()
    cubin = compile_source((asset_dir("cuda") / source).read_text(), source, arch, definitions, headers)
    if cache:
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            partial = cached.with_suffix(f".{os.getpid()}.tmp")
            partial.write_bytes(cubin)
            os.replace(partial, cached)
        except OSError:
            pass  # a read-only home costs half a second per start, nothing else
    return cubin


def compile_source(
    code: str, name: str, arch: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Compile a source that need not be a file, with the headers of ``cuda/`` in reach; errors as `compile_kernel`.

    Parameters
    ----------
    code : str
    name : str
        What messages call it.
    arch, defines, headers
        As for `compile_kernel`.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise XStageError("the CUDA compiler library is not installed", "pip install 'xstage-bench[cuda13]' (or cuda12)") from error
    inline = dict(headers or {})
    words = [f"-D{k}={v}" for k, v in (defines or {}).items()]
    options = [f"--gpu-architecture={arch}", "-std=c++17", f"--include-path={asset_dir('cuda')}", *words]

    def call(result: tuple[object, ...]) -> tuple[object, ...]:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise XStageError(f"NVRTC failed on {name} for {arch}: {result[0]}", "check that the NVRTC wheel matches the driver")
        return result[1:]

    (program,) = call(
        nvrtc.nvrtcCreateProgram(
            code.encode(), name.encode(), len(inline), [t.encode() for t in inline.values()], [n.encode() for n in inline]
        )
    )
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            (size,) = call(nvrtc.nvrtcGetProgramLogSize(program))
            log = b" " * int(size)  # type: ignore[call-overload]
            call(nvrtc.nvrtcGetProgramLog(program, log))
            raise XStageError(f"NVRTC rejected {name} for {arch}:\n{log.decode(errors='replace').strip()}", f"fix {name}")
        (size,) = call(nvrtc.nvrtcGetCUBINSize(program))
        cubin = b" " * int(size)  # type: ignore[call-overload]
        call(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
