"""The text of a schedule file, whatever it describes: JSON when it begins with a brace or a bracket, else CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.json_file import check_version, read_bytes
from xstage_bench.io.other_files import what_it_is

T = TypeVar("T")
LARGEST_FILE_BYTES = 512 << 20
_HINT = 'JSON such as {"producers": 132, "warps": 4, "bursts": [{"bytes": 65536}]}, or CSV with at least the columns producers,bytes'


def read_either(path: Path, from_json: Callable[[Path, str], list[T]], from_csv: Callable[[str], list[T]], what: str, hint: str) -> list[T]:
    """Return what a file of JSON or CSV holds, at least one of it; errors of either reader name the file."""
    text = read_text(path)
    try:
        found = from_json(path, text) if is_json(text) else from_csv(text)
    except XStageError as error:
        raise DataError(error.message if error.message.startswith(str(path)) else f"{path}: {error.message}", error.hint) from error
    if not found:
        raise DataError(f"{path} holds no {what}", hint)
    return found


def is_json(text: str) -> bool:
    """Whether the text of a file, which is not blank, is JSON rather than CSV."""
    return text.lstrip()[0] in "{["


def read_text(path: Path) -> str:
    """Return the text of a schedule file.

    Raises
    ------
    UsageError
        `path` does not exist or is a folder.
    DataError
        Empty, larger than `LARGEST_FILE_BYTES`, or not UTF-8 text.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a schedule file", f"name a file in it: ls {path}")
    data = read_bytes(path, LARGEST_FILE_BYTES)
    if not data.strip() or data == b"\xef\xbb\xbf":
        raise DataError(f"{path} is empty", _HINT)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is UTF-16 text", "save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')")
    if data.startswith(b"PAR1"):
        return _csv_of_parquet(path, data)
    if (what := what_it_is(data)) is not None:
        raise DataError(f"{path}: this is {what}, not a schedule file", _HINT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})", _HINT) from error
    if "\0" in text:
        raise DataError(f"{path} is a binary file, not a schedule file", _HINT)
    if not text.strip():
        raise DataError(f"{path} is empty", _HINT)
    return text


def _csv_of_parquet(path: Path, data: bytes) -> str:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        out = pa.BufferOutputStream()
        csv.write_csv(parquet.read_table(pa.BufferReader(data)), out)
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]})", "columns of numbers and text only") from error
    return bytes(out.getvalue()).decode()


def _plain(value: Any) -> Any:
    """Return JSON with whole floats as integers, and without the nulls that stand for a default."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def entries_of(
    path: Path, text: str, key: str, many: type[Any], one: type[T], version: int, fields: str, example: str
) -> list[tuple[str, T]]:
    """Return the entries of a JSON file, each with the words that say where it stands: one alone, several in a list, or under a key.

    Parameters
    ----------
    path : Path
        For messages.
    text : str
    key : str
        What a file of several calls them.
    many, one : type
        msgspec's types of a whole file of several, and of one entry.
    version : int
        The newest ``schema_version`` that is read.
    fields, example : str
        Hints for what is no such entry, and for what is no JSON.

    Raises
    ------
    DataError
        Neither of both.
    """
    data = text.encode()
    check_version(path, data, version)
    try:
        head = _plain(msgspec.json.decode(data))
        if isinstance(head, list):
            return [(f"[{i}]", msgspec.convert(entry, one)) for i, entry in enumerate(head)]
        if isinstance(head, dict) and key in head:
            return [(f"{key}[{i}]", entry) for i, entry in enumerate(getattr(msgspec.convert(head, many), key))]
        if isinstance(head, dict):
            head.pop("schema_version", None)
        return [("", msgspec.convert(head, one))]
    except msgspec.ValidationError as error:
        raise DataError(str(error), fields) from error
    except (msgspec.DecodeError, RecursionError) as error:
        why = "; NaN and Infinity are not JSON" if "NaN" in text or "Infinity" in text else ""
        raise DataError(f"not JSON ({error}){why}", f"for example {example}") from error
