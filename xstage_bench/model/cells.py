"""From sample rows to arrays: which rows may enter a fit, and repetitions laid out by process, repetition and column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.schedule.bursts import WARP_STORE_BYTES

if TYPE_CHECKING:
    import pandas as pd

#: The probe of tiny bursts behind a full stage, scored on its own: among the others they would be too few to show.
TINY = "holdout_tiny"
#: Probes whose schedules no fit may see: families of hold-outs. The first of a pair that is not `TINY` makes its headline scores.
HOLDOUT = ("holdout", "flavour_holdout", TINY)
#: Probes of isolated bursts over a grid of sizes: to a peer, the LOCAL control, and those of other flavours and layouts.
ISOLATED = ("isolated", "local", "flavours", "layouts")
_IDENTITY = ("schedule", "probe", "kind", "source", "destination", "flavour", "layout", "start", "producers", "producer_set", "warps")
_PER_BURST = ("burst", "bursts", "bytes", "gap_cycles", "start_ns", "process", "repetition", "status")
_MEASURED = ("issue_mean_cycles", "issue_max_cycles", "gap_mean_cycles", "start_mean_ns")


class PairGroup(NamedTuple):
    """What one `PairModel` is about."""

    source: int
    destination: int
    flavour: str
    layout: str

    @property
    def pair(self) -> str:
        """``"0>1"``."""
        return f"{self.source}>{self.destination}"


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Isolated bursts of one (K, W).

    Parameters
    ----------
    producers, warps : int
    stores : ndarray of float, shape (sizes,)
        Warp-stores per warp, ascending.
    issue_mean_cycles, issue_max_cycles : ndarray, shape (processes, repetitions, sizes)
        NaN where missing.
    """

    producers: int
    warps: int
    stores: FloatArray
    issue_mean_cycles: FloatArray
    issue_max_cycles: FloatArray


def check_columns(samples: pd.DataFrame) -> None:
    """Raise DataError when a column is missing or there is no row at all."""
    missing = [c for c in (*_IDENTITY, *_PER_BURST, *_MEASURED) if c not in samples.columns]
    if missing:
        raise DataError(f"the samples lack the column '{missing[0]}'", "see docs/files.md for the columns of a sample row")
    if not len(samples):
        raise DataError("the run holds no sample", "measure first: xstage run")


def asked_rows(samples: pd.DataFrame) -> pd.DataFrame:
    """Rows that were meant for a fit: measured, evenly spread producers, not held out; in an order that does not depend on the files."""
    chosen = samples[(samples["kind"] == "measure") & (samples["producer_set"] == "even") & ~samples["probe"].isin(HOLDOUT)]
    return chosen.sort_values(["schedule", "process", "repetition", "burst"], kind="stable")


def valid_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose status is ``ok``: nothing throttled, timed out, corrupt or warming up enters a fit."""
    valid: pd.DataFrame = rows[(rows["status"] == "ok") & np.isfinite(rows["issue_mean_cycles"].to_numpy(dtype=np.float64))]
    return valid


def groups(rows: pd.DataFrame) -> list[PairGroup]:
    """Return the pairs, flavours and layouts in the rows, in order."""
    found = rows[["source", "destination", "flavour", "layout"]].drop_duplicates()
    return sorted(PairGroup(int(s), int(d), str(f), str(y)) for s, d, f, y in found.itertuples(index=False))


def rows_of(rows: pd.DataFrame, group: PairGroup) -> pd.DataFrame:
    """Rows of one group."""
    same = (rows["source"] == group.source) & (rows["destination"] == group.destination)
    return rows[same & (rows["flavour"] == group.flavour) & (rows["layout"] == group.layout)]


def grid(rows: pd.DataFrame) -> list[tuple[int, int]]:
    """Return the (K, W) in the rows, in order."""
    return sorted({(int(k), int(w)) for k, w in rows[["producers", "warps"]].drop_duplicates().itertuples(index=False)})


def cells(rows: pd.DataFrame, processes: IntArray) -> Iterator[Cell]:
    """Yield the cells of valid isolated rows of one group; empty bursts are the timer's and left out."""
    chosen = rows[rows["probe"].isin(ISOLATED) & (rows["start"] == "isolated") & (rows["burst"] == 0) & (rows["bytes"] > 0)]
    chosen = chosen[np.isfinite(chosen["issue_max_cycles"].to_numpy(dtype=np.float64))]
    for producers, warps in grid(chosen):
        part = chosen[(chosen["producers"] == producers) & (chosen["warps"] == warps)]
        unit = WARP_STORE_BYTES[str(part["flavour"].iloc[0])] * warps
        stores, (mean, longest) = by_repetition(
            part, part["bytes"].to_numpy(dtype=np.int64) // unit, ("issue_mean_cycles", "issue_max_cycles"), processes
        )
        yield Cell(producers, warps, stores.astype(np.float64), mean, longest)


def by_repetition(
    rows: pd.DataFrame, keys: IntArray, columns: tuple[str, ...], processes: IntArray
) -> tuple[IntArray, tuple[FloatArray, ...]]:
    """Lay values out by process, repetition and key.

    Parameters
    ----------
    rows : DataFrame
    keys : ndarray of int, shape (rows,)
        What varies along the last axis, for example the burst's size.
    columns : tuple of str
    processes : ndarray of int, shape (processes,)
        Ascending; the first axis.

    Returns
    -------
    unique_keys : ndarray
    values : tuple of ndarray, each of shape (processes, repetitions, keys)
        Repetitions are counted within a process and key, in the order of their number; NaN where there are fewer.
    """
    unique, column = np.unique(keys, return_inverse=True)
    process = np.searchsorted(processes, rows["process"].to_numpy(dtype=np.int64))
    repetition = rows["repetition"].to_numpy(dtype=np.int64)
    order = np.lexsort((repetition, column, process))
    where = process[order] * unique.size + column[order]
    first = np.r_[True, where[1:] != where[:-1]]
    position = np.arange(where.size)
    rank = position - np.maximum.accumulate(np.where(first, position, 0))
    shape = (processes.size, int(rank.max(initial=-1)) + 1, unique.size)
    out = []
    for name in columns:
        values = np.full(shape, np.nan)
        values[process[order], rank, column[order]] = rows[name].to_numpy(dtype=np.float64)[order]
        out.append(values)
    return unique, tuple(out)
