"""Bursts of producers that all do the same, to a Schedule with free gaps, and the Trace of its execution."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.measure.stamps.bursts import BURST, Parts, parts_of
from xstage_bench.measure.stamps.layout import Stamps, read_stamps
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.trace import Trace


def load_stamps(path: str | PathLike[str], source: int = 0, destination: int = 1, flavour: str = "st.v4") -> Trace:
    """Read the stamps of one launch of your own kernel (docs/own-kernel.md); the Trace's `schedule` says what it stored.

    Parameters
    ----------
    path : str or path
        The buffer as the kernel left it.
    source, destination, flavour
        As `trace_of`.

    Raises
    ------
    UsageError, DataError
        As `read_stamps` and `trace_of`.
    """
    return trace_of(read_stamps(Path(path)), source, destination, flavour)


def trace_of(stamps: Stamps, source: int = 0, destination: int = 1, flavour: str = "st.v4") -> Trace:
    """Return what the kernel's stores cost as a Trace; its `schedule` is what they were.

    Parameters
    ----------
    stamps : Stamps
    source, destination : int
        GPU indices, as in the model that shall judge it.
    flavour : str
        How the kernel stores.

    Returns
    -------
    Trace
        Of a schedule with the start rule ``free``: a burst's gap is the median over producers of what the kernel did between two bursts,
        less what the instrument adds to a gap that it is asked for (`IssueLaw.gap_overhead`), so that predictions add it again.
        Its `warps_meet` is false where on any SM a warp began its next burst before all had ended the last one.
        Drain times are NaN: nothing waited for them.

    Raises
    ------
    DataError
        No burst was stamped, or the producers stored different bursts (`tasks_of` takes those), or sizes that are no whole warp-stores.
    """
    producers = [_bursts(p) for p in parts_of(stamps)]
    producers = [p for p in producers if p.kind.size]
    if not producers:
        raise DataError("no burst was stamped", "XSTAGE_BEGIN before the stores, XSTAGE_BURST_END with their bytes after them")
    first = producers[0]
    for p in producers:
        if not np.array_equal(p.bytes, first.bytes):
            raise DataError(
                f"SM {p.smid} stored {_sizes(p)}, SM {first.smid} {_sizes(first)}: one schedule has all its producers do the same",
                "xstage import --tasks FILE takes a list of its own for each",
            )
        if p.warps != first.warps:
            raise DataError(
                f"SM {p.smid} stored with {p.warps} warps, SM {first.smid} with {first.warps}", "stamp the same warps everywhere"
            )
    start, end = (np.array([getattr(p, n) for p in producers]).T for n in ("start_clock", "end_clock"))
    start_ns, end_ns = (np.array([getattr(p, n) for p in producers]).T for n in ("start_ns", "end_ns"))
    gap = np.full(start.shape, np.nan)
    gap[1:] = start[1:] - end[:-1]
    asked = [0, *(max(0, round(g - IssueLaw().gap_overhead)) for g in np.median(gap[1:], axis=1).tolist())]
    zero = start_ns.min()
    try:
        schedule = Schedule(
            tuple(Burst(int(size), g) for size, g in zip(first.bytes, asked, strict=True)),
            tuple(p.smid for p in producers),
            first.warps,
            source,
            destination,
            "free",
            flavour,
            warps_meet=not bool((gap[1:] < 0).any()),
        )
    except UsageError as error:
        unit = FLAVOURS[flavour].warp_store_bytes if flavour in FLAVOURS else 0
        raise DataError(
            f"the stamps describe no schedule: {error.message}", error.hint if unit == 0 else f"{error.hint}; --flavour"
        ) from error
    return Trace(
        schedule=schedule,
        smids=np.array([p.smid for p in producers], dtype=np.int64),
        issue_cycles=(end - start).astype(np.float64),
        gap_cycles=gap,
        start_ns=start_ns - zero,
        end_ns=end_ns - zero,
        drain_cycles=np.full(start.shape, np.nan),
        sm_clock_mhz=stamps.sm_clock_mhz,
    )


def _bursts(p: Parts) -> Parts:
    chosen = np.flatnonzero(p.kind == BURST)
    columns = {name: getattr(p, name)[chosen] for name in Parts.__slots__ if name not in ("smid", "warps")}
    return Parts(smid=p.smid, warps=p.warps, **columns)


def _sizes(p: Parts) -> str:
    shown = ", ".join(map(str, p.bytes[:4]))
    return f"{p.bytes.size} bursts of {shown}{', ...' if p.bytes.size > 4 else ''} bytes"
