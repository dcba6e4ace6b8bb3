"""A file is whole or absent: written to a temporary name in its own folder, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from xstage_bench.errors import UsageError, XStageError

_SUFFIX = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well, and vanishes when it does not.

    Parameters
    ----------
    path : Path
        Replaced when it exists; its folder must exist.

    Raises
    ------
    UsageError
        The folder does not exist, or `path` is a folder.
    XStageError
        The system refuses: disk full, read-only, no permission. Nothing is left behind and an older `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        _discard(temporary)
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path`, all or nothing; errors as `replacing`."""
    with replacing(path) as file:
        file.write(data)


def write_error(path: Path, error: OSError) -> XStageError:
    """Turn the system's refusal to write `path` into an error that says what to do."""
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path.parent}: no such folder, so {path.name} cannot be written", f"mkdir -p {path.parent}")
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return UsageError(f"{path}: {error.strerror}", "name another file")
    hint = (
        "free some space or write elsewhere" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "write to a folder that you may write to"
    )
    return XStageError(f"cannot write {path}: {error.strerror or error}", hint)


def remove_leftovers(folder: Path) -> int:
    """Remove the temporary files that a killed process left in `folder`; return how many there were."""
    stale = list(folder.glob(f".*{_SUFFIX}"))
    for path in stale:
        _discard(path)
    return len(stale)


def _discard(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return  # never made, or on a disk that takes no change at all


def _sync_folder(folder: Path) -> None:
    # The rename itself must survive a power cut; some network file systems refuse to sync a folder, and nothing is lost then.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
