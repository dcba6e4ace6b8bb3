"""Plain Python functions of several modules compiled by numba as one program. numba is loaded by the first call, never before."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from xstage_bench.errors import UsageError

#: No numba, one that is too old for this numpy, no memory to map it into, or nowhere to keep what it compiles.
_UNAVAILABLE = (ImportError, RuntimeError, OSError)


@cache
def compiled(modules: tuple[ModuleType, ...], entry: str, *, fastmath: bool = False) -> Callable[..., Any]:
    """Return a function compiled together with those that it calls.

    Parameters
    ----------
    modules : tuple of module
        Each names in `COMPILED` what is compiled of it, callees first, and may call those of the modules before it.
    entry : str
        A name of the last module. numba keeps its machine code beside that module's source.
    fastmath : bool
        Sums and minima may be reordered.

    Notes
    -----
    Functions call each other by name, so each is made anew over the compiled ones before it. numba looks at one source file only to tell
    whether what it has kept is stale, so the name of the entry carries a digest of all of them.
    """
    from numba import njit

    space: dict[str, Any] = {}
    for module in modules:
        space |= vars(module)
    digest = _digest(modules)
    for module in modules:
        for name in module.COMPILED:
            function = FunctionType(space[name].__code__, space, name)
            function.__qualname__ = f"{name}_{digest}"
            space[name] = njit(cache=name == entry, nogil=True, fastmath=fastmath, error_model="numpy")(function)
    found: Callable[..., Any] = space[entry]
    return found


@cache
def is_kept(modules: tuple[ModuleType, ...], entry: str) -> bool:
    """Whether the machine code of `entry` lies beside the source, so that loading it takes a second and not the half minute of compiling.

    Where numba keeps its code elsewhere (``NUMBA_CACHE_DIR``, an installation that may not be written to) only numba knows, so it is asked.
    """
    folder = Path(str(modules[-1].__file__)).parent
    place = folder / "__pycache__"
    if os.environ.get("NUMBA_CACHE_DIR") or not os.access(folder, os.W_OK):
        try:
            place = Path(compiled(modules, entry).stats.cache_path)  # type: ignore[attr-defined]
        except _UNAVAILABLE:
            return False
    return any(place.glob(f"*.{entry}_{_digest(modules)}-*.nbi"))


@cache
def _digest(modules: tuple[ModuleType, ...]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for module in modules:
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()


def compiled_if(wanted: bool | None, worth_it: bool, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any] | None:
    """Return what `make` compiles, or None where it is not wanted, not worth loading numba, or cannot be had.

    Parameters
    ----------
    wanted : bool or None
        None: as `worth_it` says. Not by what is loaded already: the last digits must not hang on what ran before.
    worth_it : bool
    make : callable

    Raises
    ------
    UsageError
        It is wanted and cannot be had.
    """
    if wanted is False or (wanted is None and not worth_it):
        return None
    try:
        return make()
    except _UNAVAILABLE as error:
        if wanted:
            raise UsageError(f"the compiled event loop cannot be had: {error}", "pip install 'xstage-bench[fast]'") from error
        _say_once(str(error))
        return None


@cache
def _say_once(why: str) -> None:
    logging.getLogger(__name__).warning("without numba this takes several times as long (%s); try: pip install 'xstage-bench[fast]'", why)
