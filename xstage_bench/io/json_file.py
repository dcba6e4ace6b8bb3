"""Strict, typed JSON files: what is written always parses, what is read is checked against a dataclass."""

from __future__ import annotations

import gzip
import math
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.other_files import what_it_is

T = TypeVar("T")
#: As a file to read.
STDIN = Path("-")
_PIPED: dict[Path, bytes] = {}


class _Version(msgspec.Struct):
    schema_version: int


def encode_json(obj: Any) -> bytes:
    """Return `obj` (dataclasses, dicts, lists, scalars) as strict, indented JSON; NaN and infinities become null."""
    return msgspec.json.format(msgspec.json.encode(_sound(msgspec.to_builtins(obj))), indent=2) + b"\n"


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` to `path` atomically as strict JSON, compressed where the name ends in ``.gz``; errors as `atomic.write_bytes`."""
    write_bytes(path, _packed(path, encode_json(obj)))


def write_compact(path: Path, obj: Any) -> None:
    """As `write_json`, without line breaks: for documents with many samples."""
    write_bytes(path, _packed(path, msgspec.json.encode(_sound(msgspec.to_builtins(obj))) + b"\n"))


def _packed(path: Path, data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data


def read_json(path: Path, type: type[T], *, newest: int | None = None) -> T:
    """Read a strict JSON file into a typed value.

    Parameters
    ----------
    path : Path
    type : type
        What msgspec shall decode into: a dataclass, or any annotation that it knows.
    newest : int, optional
        The newest ``schema_version`` that this program reads.

    Raises
    ------
    UsageError
        `path` does not exist.
    DataError
        A folder, not JSON, NaN or Infinity in it, of another schema, or of a newer schema version.
    """
    data = read_bytes(path)
    if not data.strip():
        raise DataError(f"{path} is empty", "it was not written completely: make it again")
    if newest is not None:
        check_version(path, data, newest)
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        other = what_it_is(data)
        why = _explain(error, data) + (f"; it looks like {other}" if other and not other.endswith(" of xstage") else "")
        raise DataError(f"{path}: {why}", "mend this place in the file, or make the file again") from error


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file, unpacked where its name ends in ``.gz``; ``-`` is stdin.

    A pipe (``<(...)``, ``/dev/stdin``) can be read once, so its content is kept for who asks again.

    Parameters
    ----------
    path : Path
    most : int, optional
        Refuse a file of more bytes.

    Raises
    ------
    UsageError
        It does not exist, or stdin is closed.
    DataError
        It cannot be read, or is too large.
    """
    try:
        if path == STDIN and sys.stdin is None:
            raise UsageError("- means stdin, which is closed", "name a file")
        if path in _PIPED:
            return _PIPED[path]
        with sys.stdin.buffer if path == STDIN else path.open("rb") as file:
            data = file.read(-1 if most is None else most + 1)
            if path == STDIN or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                _PIPED[path] = data
        if most is not None and len(data) > most:
            raise DataError(f"{path} is larger than {most >> 20} MiB", "split it into several files")
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", "check the path") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not whole, or not compressed ({error})", "take it from a copy, or make the file again") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder, not a file", f"name a file in it: ls {path}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", "check the path and its permissions") from error


def check_version(path: Path, data: bytes, newest: int) -> None:
    """Raise DataError when `data` states a schema version newer than `newest`; anything else is left to the typed decoder."""
    try:
        version = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=_Version).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if version > newest:
        raise DataError(
            f"{path} has schema version {version}; this xstage-bench reads up to {newest}",
            "install a newer xstage-bench, or make it again",
        )
    if version < 1:
        raise DataError(f"{path} has schema version {version}, which never existed", f"use {newest}")


def _explain(error: Exception, data: bytes) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if any(word in data for word in (b"NaN", b"Infinity")) and not isinstance(error, msgspec.ValidationError):
        return f"{error}; NaN and Infinity are not JSON: a missing number is null"
    if isinstance(error, msgspec.ValidationError):
        return f"{error}"
    return f"not JSON ({error})"


def _sound(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")  # of a path that is not UTF-8
    if isinstance(value, dict):
        return {_sound(k): _sound(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(v) for v in value]
    return value
