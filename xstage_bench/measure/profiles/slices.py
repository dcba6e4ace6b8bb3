"""The Trace Event Format (Chrome, Perfetto): what PyTorch's profiler and Proton write. Only complete events count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.errors import DataError

_BEGINS = "the file is an object with a list 'traceEvents', or that list: prof.export_chrome_trace, proton.finalize"


class TraceSlice(msgspec.Struct, frozen=True):
    """One event of a trace; times are in the format's unit, microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[TraceSlice]  # noqa: N815 - the format's name


def slices_of(path: Path, data: bytes) -> list[TraceSlice]:
    """Return the complete events of a trace.

    Raises
    ------
    DataError
        It is no such trace, cut short, or has no complete event.
    """
    body = data.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        if body.startswith(b"["):
            events = msgspec.json.decode(body, type=list[TraceSlice])
        else:
            events = msgspec.json.decode(body, type=_Trace).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is no whole trace: {error}", _BEGINS) from error
    found = [e for e in events if e.ph == "X"]
    if not found:
        raise DataError(f"{path}: none of its {len(events)} events has a begin and a duration (ph X)", _BEGINS)
    for e in found:
        if not e.dur >= 0 or abs(e.ts) > 1e18 or e.dur > 1e15:
            raise DataError(f"{path}: event '{e.name[:40]}' has a time of {e.ts:g} and a duration of {e.dur:g}", "times are microseconds")
    return found
