"""Durations of kernels: from a PyTorch trace, an Nsight Compute or an Nsight Systems table, reduced to one time and its spread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from statistics import median

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.csv_rows import check_width, header_names, rows_of
from xstage_bench.measure.profiles.slices import TraceSlice

_EXPORT = "ncu --import FILE.ncu-rep --csv --page raw, or nsys stats --report cuda_gpu_trace --format csv"
#: Nanoseconds of a unit, as ncu's versions write it.
_UNITS = {
    "ns": 1.0, "nsecond": 1.0, "nanosecond": 1.0, "us": 1e3, "usecond": 1e3, "microsecond": 1e3, "ms": 1e6, "msecond": 1e6,
    "millisecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
_DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration", "Duration")
_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One launch: its kernel, how long it took, ns, and how many blocks it had where that is known."""

    name: str
    duration_ns: float
    blocks: int | None = None


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """Launches of one kernel: the median, and the half width of the middle half over it as their noise."""

    name: str
    duration_ns: float
    noise: float
    launches: int
    blocks: int | None


def runs_of_trace(slices: Iterable[TraceSlice]) -> list[KernelRun]:
    """Return the kernels of a PyTorch trace: events of the category ``kernel``."""
    return [
        KernelRun(s.name, s.dur * 1e3, _blocks((s.args or {}).get("grid"))) for s in slices if s.cat.lower() in ("kernel", "gpu_kernel")
    ]


def runs_of_csv(path: Path, data: bytes) -> list[KernelRun]:
    """Return the kernels of a table that ncu or nsys wrote.

    Raises
    ------
    DataError
        It is neither, cut short, or has no duration.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is neither a trace nor a table", _EXPORT) from error
    lines = [line for line in text.splitlines() if not line.startswith("==")]  # what ncu says of itself
    while any(line.startswith('"ID"') for line in lines[1:]):  # and what the program said
        del lines[0]
    try:
        rows = list(rows_of("\n".join(lines)))
        head = header_names(rows[0][1]) if rows else []
        for line, cells in rows[1:]:
            check_width(cells, len(head), line)
        if "Metric Name" in head:
            return _long(head, rows[1:])
        if "Kernel Name" in head and any(name in head for name in _DURATIONS):
            return _wide(head, rows[1:])
        if "Name" in head and any(name.startswith("Duration") for name in head):
            return _systems(head, rows[1:])
    except DataError as error:
        raise DataError(f"{path}: {error.message}", _EXPORT) from error
    raise DataError(f"{path} has no duration of a kernel: its columns are {', '.join(head[:5]) or 'none'}", _EXPORT)


def timing_of(runs: Sequence[KernelRun], wanted: str | None, path: Path, option: str, hint: str = "") -> KernelTiming:
    """Reduce the launches of one kernel.

    Parameters
    ----------
    runs : sequence of KernelRun
    wanted : str or None
        Its name, or a part that only one kernel has; None: `hint`, or the only kernel there is.
    path : Path
    option : str
        That names a kernel.
    hint : str
        A word that the name should hold where several kernels are there.
    """
    names = list(dict.fromkeys(r.name for r in runs))
    if not names:
        raise DataError(f"{path} has no kernel in it", "profile the GPU too: activities=[ProfilerActivity.CUDA]")
    part = wanted if wanted is not None else hint if len(names) > 1 else ""
    chosen = [n for n in names if n == part] or [n for n in names if (part in n if wanted is not None else part in n.lower())]
    if len(chosen) != 1 or (len(names) > 1 and not part):
        shown = ", ".join(n[:60] for n in (chosen or names)[:_NAMES_SHOWN])
        what = "no kernel" if not chosen else f"{len(chosen)} kernels"
        raise UsageError(f"{path} has {what} whose name holds '{part}': {shown}", f"{option} NAME")
    mine = [r for r in runs if r.name == chosen[0]]
    times = sorted(r.duration_ns for r in mine)
    middle = median(times)
    if not middle > 0:
        raise DataError(f"{path}: kernel '{chosen[0][:60]}' took no time", _EXPORT)
    quarter = len(times) // 4
    noise = (times[-1 - quarter] - times[quarter]) / 2 / middle
    return KernelTiming(chosen[0], middle, noise, len(times), mine[0].blocks)


def _long(head: list[str], rows: list[tuple[int, list[str]]]) -> list[KernelRun]:
    at = _places(head, "ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
    grid = head.index("Grid Size") if "Grid Size" in head else None
    found: dict[str, KernelRun] = {}
    for line, cells in rows:
        if cells[at["Metric Name"]] in _DURATIONS:
            ns = _ns(cells[at["Metric Value"]], cells[at["Metric Unit"]], line)
            found[cells[at["ID"]]] = KernelRun(cells[at["Kernel Name"]], ns, None if grid is None else _blocks(cells[grid]))
    return list(found.values())


def _wide(head: list[str], rows: list[tuple[int, list[str]]]) -> list[KernelRun]:
    name, took = head.index("Kernel Name"), next(head.index(n) for n in _DURATIONS if n in head)
    grid = next((head.index(n) for n in ("Grid Size", "launch__grid_size") if n in head), None)
    if not rows:
        return []
    unit = rows[0][1][took]  # the second row of ncu's raw page has the units
    return [KernelRun(c[name], _ns(c[took], unit, line), None if grid is None else _blocks(c[grid])) for line, c in rows[1:]]


def _systems(head: list[str], rows: list[tuple[int, list[str]]]) -> list[KernelRun]:
    took = next(i for i, n in enumerate(head) if n.startswith("Duration"))
    unit = (re.findall(r"\((\w+)\)", head[took]) or ["ns"])[0]
    grid = [head.index(n) for n in ("GrdX", "GrdY", "GrdZ") if n in head]
    return [
        KernelRun(c[head.index("Name")], _ns(c[took], unit, line), _blocks([c[i] for i in grid]) if grid else None)
        for line, c in rows
        if not grid or c[grid[0]].strip()  # copies have no grid
    ]


def _places(head: list[str], *names: str) -> dict[str, int]:
    for name in names:
        if name not in head:
            raise DataError(f"column '{name}' is missing", _EXPORT)
    return {name: head.index(name) for name in names}


def _ns(text: str, unit: str, line: int) -> float:
    try:
        value = float(text.replace(",", "")) * _UNITS[unit.strip()]
    except (ValueError, KeyError):
        raise DataError(f"line {line}: '{text[:20]}' of unit '{unit[:20]}' is no duration", _EXPORT) from None
    if not (isfinite(value) and value >= 0):
        raise DataError(f"line {line}: a duration of {text[:20]}", _EXPORT)
    return value


def _blocks(grid: object) -> int | None:
    """Return the blocks of a grid: ``[8, 4, 1]``, ``(8, 4, 1)`` or ``32``."""
    numbers = [int(n) for n in re.findall(r"\d{1,10}", str(grid))] if grid is not None else []
    return prod(numbers) if numbers else None
