"""A file is whole or absent: written to a temporary name in its own folder, flushed to disk, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

from xstage_bench.errors import UsageError, XStageError

_SUFFIX = ".tmp"


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path`, all or nothing.

    Parameters
    ----------
    path : Path
        Replaced when it exists; its folder must exist.
    data : bytes or memoryview

    Raises
    ------
    UsageError
        The folder does not exist, or `path` is a folder.
    XStageError
        The system refuses: disk full, read-only, no permission. Nothing is left behind and an older `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        _write_through(temporary, memoryview(data))
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_error(path: Path, error: OSError) -> XStageError:
    """Turn the system's refusal to write `path` into an error that says what to do."""
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path.parent}: no such folder, so {path.name} cannot be written", f"mkdir -p {path.parent}")
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return UsageError(f"{path}: {error.strerror}", "name another file")
    hint = "free some space or write elsewhere" if error.errno in (28, 122) else "write to a folder that you may write to"
    return XStageError(f"cannot write {path}: {error.strerror or error}", hint)


def remove_leftovers(folder: Path) -> int:
    """Remove the temporary files that a killed process left in `folder`; return how many there were."""
    stale = list(folder.glob(f".*{_SUFFIX}"))
    for path in stale:
        path.unlink(missing_ok=True)
    return len(stale)


def _write_through(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    # The rename itself must survive a power cut; some network file systems refuse to sync a folder, and nothing is lost then.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
