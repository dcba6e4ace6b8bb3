"""Load probes and figures by path: one file is one object, and a user adds a folder of their own.

Each folder becomes a synthetic package in `sys.modules`, and each file is registered there *before* it is executed: without
that, dataclasses and relative imports fail. So a file ``_name.py`` beside a probe is a helper (``from ._name import ...``) and
is not loaded by itself. Classes defined in such files cannot be found again by another process: their objects must not cross.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.assets import asset_dir

PACKAGE_PREFIX = "xstage_loaded"


class Named(Protocol):
    """What a loaded file must define: anything with a name."""

    @property
    def name(self) -> str:
        """The name by which it is asked for."""
        ...


T = TypeVar("T", bound=Named)


def load_named(group: str, attribute: str, kind: type[T], extra_dirs: Sequence[Path] = ()) -> dict[str, T]:
    """Load every file of an asset folder and of the user's folders, and return the object that each defines.

    Parameters
    ----------
    group : str
        The asset folder: ``"probes"`` or ``"analysis"``.
    attribute : str
        The module attribute to take, for example ``"PROBE"``.
    kind : type
        Its class, which has a `name`.
    extra_dirs : sequence of Path
        The user's folders, after the built-in one.

    Returns
    -------
    dict of str to object
        By name, in order of folder and file name.

    Raises
    ------
    UsageError
        A folder does not exist, or two files define the same name.
    DataError
        A file cannot be executed, or does not define `attribute`.
    """
    found: dict[str, T] = {}
    origin: dict[str, Path] = {}
    for folder in [asset_dir(group), *(Path(d) for d in extra_dirs)]:
        for path, module in load_folder(folder).items():
            item = getattr(module, attribute, None)
            if not isinstance(item, kind):
                what = "does not define" if item is None else f"defines as a {type(item).__name__}, not a {kind.__name__},"
                raise DataError(
                    f"{path} {what} {attribute}",
                    f"add '{attribute} = {kind.__name__}(...)', or rename the file to _{path.name} if it is a helper",
                )
            if item.name in found:
                raise UsageError(
                    f"the name '{item.name}' is defined twice: in {origin[item.name]} and in {path}", f"change the name in {path}"
                )
            found[item.name], origin[item.name] = item, path
    return found


def load_folder(folder: Path) -> dict[Path, ModuleType]:
    """Execute every ``*.py`` of a folder that does not start with an underscore, in order of name.

    A folder that was loaded before is loaded afresh, helpers included.

    Raises
    ------
    UsageError
        The folder does not exist or is not a folder.
    DataError
        A file cannot be executed; the message names the file, the line and the error.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is {'not a folder' if folder.exists() else 'missing'}", "name a folder that holds *.py files")
    folder = folder.resolve()
    package = _new_package(folder)
    paths = sorted(p for p in folder.glob("*.py") if p.is_file() and not p.name.startswith("_"))
    return {path: _execute(path, f"{package}.{path.stem}") for path in paths}


def _new_package(folder: Path) -> str:
    """Register an empty package whose `__path__` is the folder; the name carries a hash, as two folders may share theirs."""
    name = f"{PACKAGE_PREFIX}_{hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()}"
    for old in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
        del sys.modules[old]
    importlib.invalidate_caches()
    package = ModuleType(name, f"Files of {folder}.")
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return name


def _execute(path: Path, name: str) -> ModuleType:
    if not path.stem.isidentifier():
        raise DataError(f"{path}: a file that is loaded needs a Python name", f"rename it, for example {_as_identifier(path.stem)}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path} cannot be loaded as Python", "name a folder that holds *.py files")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that calls sys.exit() must not set the exit status of the command
        sys.modules.pop(name, None)
        where, what = _locate(error, path)
        raise DataError(f"{where}: {type(error).__name__}: {what}", "correct the file, or take its folder out of the call") from error
    return module


def _locate(error: BaseException, path: Path) -> tuple[str, str]:
    """Say in which line of the folder's files the error arose: the last frame there, as a helper may be at fault."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}", error.msg
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == path.parent]
    text = str(error).splitlines()[0] if str(error) else "no message"
    return (f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(path)), text


def _as_identifier(stem: str) -> str:
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in stem)
    return name if name.isidentifier() else f"x_{name}"
