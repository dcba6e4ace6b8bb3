"""What identifies an instrument: the text that one kernel is compiled from, its macros, the compiler and the architecture.

Two numbers measured by kernels of one identity came out of the same machine code; nothing less says so. Editing another kernel does not
change it, and neither do comments. Needs no GPU, and no compiler either: what was recorded can be looked up in another tree.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from xstage_bench.io.assets import asset_dir

#: Every include counts, whatever surrounds it: whether an ``#if`` takes it is for the compiler to know.
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_COMMENT_OR_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//(?:\\\n|[^\n])*|/\*.*?\*/', re.DOTALL)
#: Where the expression above could take code for a comment, or where a line's number is part of the program.
_UNSAFE = re.compile(r"R\"|\d'\w|__LINE__|\bassert\b")
#: The macro of a layout that places each lane by a function: ``placements.cuh`` then stands in for ``layouts.cuh``.
PLACED = "XSTAGE_PLACE"
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel as it was compiled for a recording.

    Parameters
    ----------
    source : str
        File of ``cuda/``.
    arch : str
    compiler : str or None
        Name and version; null where no compiler was there and the kernel came from the cache.
    identity : str
        24 hex digits, `kernel_identity`.
    defines : dict of str to str
        Macros: flavour, layout, completion and what else makes the variant.
    own : bool
        Whether a source that is no file of ``cuda/`` went in: a user's own flavour.
    """

    source: str
    arch: str
    compiler: str | None
    identity: str
    defines: dict[str, str] = field(default_factory=dict)
    own: bool = False


@lru_cache(maxsize=1)
def compiler_version() -> str | None:
    """Return the compiler's name and version, or None where it is not installed. Builds of one release differ, so the wheel's counts."""
    try:
        from cuda.bindings import nvrtc

        status, *numbers = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):
        return None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None
    release = ".".join(str(int(n)) for n in numbers)
    for wheel in _WHEELS:
        try:
            if version(wheel).startswith(f"{release}."):
                return f"NVRTC {version(wheel)}"
        except PackageNotFoundError:
            continue
    return f"NVRTC {release}"


@lru_cache(maxsize=128)
def without_comments(code: str) -> str:
    """Return code without comments, blank lines and trailing blanks; unchanged where that could change what it means."""
    if _UNSAFE.search(code):
        return code
    bare = _COMMENT_OR_LITERAL.sub(lambda m: " " if m[0].startswith("/") else m[0], code)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def sources_of(source: str, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the text that a kernel is compiled from: a file of ``cuda/`` and what it includes, and so on, by name.

    Parameters
    ----------
    source : str
        File of ``cuda/``.
    headers : mapping of str to str, optional
        Sources that are no file of ``cuda/``, by the name under which they are included. A name that is neither of both is left out:
        the compiler will say so if it needs it.
    """
    folder, given = asset_dir("cuda"), headers or {}
    found: dict[str, str] = {}
    todo = [source]
    while todo:
        name = todo.pop()
        if name in found or not (name in given or (folder / name).is_file()):
            continue
        text = found[name] = given[name] if name in given else (folder / name).read_text()
        todo += _INCLUDE.findall(text)
    return found


def stand_ins(defines: Mapping[str, str]) -> dict[str, str]:
    """Return files of ``cuda/`` that are compiled under the name of another, by that name."""
    return {"layouts.cuh": (asset_dir("cuda") / "placements.cuh").read_text()} if PLACED in defines else {}


def kernel_identity(
    source: str, arch: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None, *, compiler: str | None
) -> str:
    """Return 24 hex digits over everything that decides a kernel's machine code.

    Parameters
    ----------
    source, arch, defines, headers
        As for `compile.compile_kernel`.
    compiler : str or None
        `compiler_version`, or the one of a recording.
    """
    texts = sorted((name, without_comments(text)) for name, text in sources_of(source, headers).items())
    return hashlib.blake2b(repr((source, arch, sorted((defines or {}).items()), compiler, texts)).encode(), digest_size=12).hexdigest()


def kernel_of(source: str, arch: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> Kernel:
    """Return the kernel as this machine's compiler would make it; parameters as for `compile.compile_kernel`."""
    compiler = compiler_version()
    identity = kernel_identity(source, arch, defines, headers, compiler=compiler)
    own = any(not (asset_dir("cuda") / name).is_file() for name in headers or {})
    return Kernel(source=source, arch=arch, compiler=compiler, identity=identity, defines=dict(defines or {}), own=own)


def in_tree(kernel: Kernel) -> bool:
    """Whether the sources here would make the kernel of a recording, by the compiler of that recording. Never one of a user's own."""
    if kernel.own or not (asset_dir("cuda") / kernel.source).is_file():
        return False
    return kernel.identity == kernel_identity(
        kernel.source, kernel.arch, kernel.defines, stand_ins(kernel.defines), compiler=kernel.compiler
    )


def merged(*groups: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels of several processes or runs, each once, in order of first appearance."""
    return list({kernel.identity: kernel for group in groups for kernel in group}.values())


def plain(kernels: Iterable[Kernel]) -> list[dict[str, Any]]:
    """Return the kernels as a document holds them."""
    return [asdict(kernel) for kernel in kernels]


def in_words(kernels: Iterable[Kernel]) -> list[str]:
    """Return a line for each source: the identity of its first variant in short, how many more, where and by what they were compiled.

    Says of each whether the sources here are those of the recording.
    """
    by_source: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_source.setdefault(kernel.source, []).append(kernel)
    lines = []
    for source, mine in by_source.items():
        more = f" and {len(mine) - 1} more variants" if len(mine) > 1 else ""
        what = ", ".join(dict.fromkeys(word for k in mine for word in (k.arch, k.compiler or "compiler unknown")))
        own = "" if all(in_tree(k) for k in mine if not k.own) else "; not the source of this installation"
        lines.append(f"{source} {mine[0].identity[:8]}{more} ({what}){own}")
    return lines
