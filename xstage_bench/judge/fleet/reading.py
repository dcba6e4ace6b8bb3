"""Many run folders as one Parquet dataset: part by part, never more than one run's rows in memory, each reduced to a few numbers per link.

Nothing is fitted here with intervals: a thousand nodes of 56 pairs are screened in a minute by numbers that only have to be comparable with
each other. All are of the launch shape that all SMs share (most producers, the warp count nearest to 4):

- ``drain_gb_per_s``: slope of bytes over the slowest producer's time, over bursts of at least a quarter of the largest;
- ``capacity_bytes``: where the line of the mean over producers through all stalled bursts meets zero time: (V - Q)/R = 0;
- ``issue_ns``: issue time of the smallest burst, mean over producers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError, XStageError
from xstage_bench.io.no_collection import no_collection
from xstage_bench.record.columns import SAMPLES
from xstage_bench.record.manifest import MANIFEST_NAME, Manifest, load_manifest
from xstage_bench.record.parts import SAMPLES_FOLDER, read_table
from xstage_bench.record.reader import Run
from xstage_bench.record.sound import impossible_samples

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
METRICS = ("drain_gb_per_s", "capacity_bytes", "issue_ns")
_KEYS = ("source", "destination", "producers", "warps", "bytes")
_VALUES = ("issue_mean_cycles", "issue_min_cycles", "issue_max_cycles", "makespan_ns", "sm_clock_mhz")
_WANTED = {"probe": "isolated", "kind": "measure", "status": "ok", "producer_set": "even", "flavour": "st.v4"}
_THREADS = 2
#: A fleet is a folder of run folders, or of folders of them: by rack, by day.
_DEEPEST = 3
_NEAREST_WARPS = 4
_MIN_SIZES = 3
#: Bursts that took this many times what the smallest one would, byte for byte, have stalled.
_STALLED = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class NodeLinks:
    """One node's run, reduced: a number of each of `METRICS` per ordered pair, NaN where its sweep does not give one.

    Parameters
    ----------
    name : str
        The run folder's path within the fleet's folder.
    manifest : Manifest
    source, destination : ndarray of int, shape (links,)
    values : dict of str to ndarray of float, shape (links,)
    rows : ndarray of int, shape (links,)
        Valid sample rows that entered.
    impossible : int
        Rows of status ``ok`` that cannot be and were left out (`xstage_bench.record.sound`).
    changed : tuple of str
        Parts of the samples that are not as the run wrote them.
    """

    name: str
    manifest: Manifest
    source: IntArray
    destination: IntArray
    values: dict[str, FloatArray]
    rows: IntArray
    impossible: int = 0
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run that says nothing about its node, and why."""

    name: str
    reason: str


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders below `folder`, in order of name.

    Raises
    ------
    UsageError
        `folder` does not exist, is a file, or holds no run folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", "name the folder that holds the run folders of the nodes")
    if (folder / MANIFEST_NAME).exists():
        raise UsageError(f"{folder} is one run, and a fleet is a folder of them", f"xstage check {folder}; xstage fleet {folder.parent}")
    found: set[Path] = set()
    for depth in range(_DEEPEST):
        found |= {m.parent for m in folder.glob("*/" * (depth + 1) + MANIFEST_NAME)}
    if not found:
        raise UsageError(f"{folder} holds no run folder", "srun xstage profile --out FOLDER makes one for each node")
    return sorted(found)


def read_fleet(folder: Path) -> Iterator[NodeLinks | Unreadable]:
    """Yield every run below `folder`, reduced; one that cannot be read costs no other."""
    with no_collection(), ThreadPoolExecutor(_THREADS) as pool:  # half of the work is Parquet's, which lets other threads run
        yield from pool.map(partial(_read_run, folder), find_runs(folder))


def _read_run(folder: Path, run: Path) -> NodeLinks | Unreadable:
    name = str(run.relative_to(folder))
    try:
        manifest = load_manifest(run)
        parts = sorted((run / SAMPLES_FOLDER).glob("part-*.parquet"))
        if not parts:
            return Unreadable(name, "it holds no samples")
        # Of what is read alone: to read a profile's producers too would take ten times as long.
        return replace(_reduced(name, manifest, _rows(parts)), changed=tuple(Run(run, manifest).changed((SAMPLES_FOLDER,))))
    except XStageError as error:
        return Unreadable(name, error.message)


def _rows(parts: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """Read the valid isolated bursts of one run's parts, the columns that are needed alone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    for part in parts:
        table = read_table(part, SAMPLES, (*_KEYS, *_VALUES, *_WANTED))
        # On numbers, not in pyarrow's expressions: a tenth of the time for a part of a thousand rows.
        keep = (table.column("source").to_numpy() != table.column("destination").to_numpy()) & (table.column("bytes").to_numpy() > 0)
        for column, value in _WANTED.items():
            keep &= pc.equal(table.column(column), value).to_numpy()
        found.append(table.select([*_KEYS, *_VALUES]).filter(pa.array(keep)))
    table = pa.concat_tables(found)
    return {name: table.column(name).to_numpy() for name in table.column_names}  # null as NaN


def _reduced(name: str, manifest: Manifest, rows: dict[str, NDArray[Any]]) -> NodeLinks:
    sound = impossible_samples(rows, manifest.node) == ""
    impossible = int(sound.size - sound.sum())
    if impossible:
        rows = {column: values[sound] for column, values in rows.items()}
    keys = [rows[k].astype(np.int64) for k in _KEYS]
    issue_ns = rows["issue_mean_cycles"] * 1e3 / rows["sm_clock_mhz"]
    columns, count, (issue, makespan) = grouped_medians(keys, (issue_ns, rows["makespan_ns"].astype(np.float64)))
    source, destination, producers, warps, size = columns
    links = np.unique(np.stack([source, destination], axis=1), axis=0) if source.size else np.empty((0, 2), dtype=np.int64)
    values = {metric: np.full(len(links), np.nan) for metric in METRICS}
    entered = np.zeros(len(links), dtype=np.int64)
    for i, (a, b) in enumerate(links):
        at = np.flatnonzero((source == a) & (destination == b))
        at = at[producers[at] == producers[at].max()]
        chosen = min(np.unique(warps[at]).tolist(), key=lambda w: (abs(w - _NEAREST_WARPS), w))
        at = at[warps[at] == chosen]
        entered[i] = count[at].sum()
        for metric, value in zip(METRICS, _numbers(producers[at] * size[at].astype(float), issue[at], makespan[at]), strict=True):
            values[metric][i] = value
    return NodeLinks(name, manifest, links[:, 0], links[:, 1], values, entered, impossible)


def _numbers(volume: FloatArray, issue_ns: FloatArray, makespan_ns: FloatArray) -> tuple[float, float, float]:
    """R, Q and the issue time of the smallest burst, from the medians of one sweep, ascending in size."""
    smallest = float(issue_ns[0])
    rate = capacity = np.nan
    large = volume >= volume.max() / 4
    if large.sum() >= _MIN_SIZES:
        slope, _ = np.polyfit(volume[large], makespan_ns[large], 1)
        rate = 1 / slope if slope > 0 else np.nan
    stalled = issue_ns > _STALLED * smallest * volume / volume[0]
    if stalled.sum() >= _MIN_SIZES:
        # By relative residuals: the shortest stalled bursts say most about Q.
        slope, start = np.polyfit(volume[stalled], issue_ns[stalled], 1, w=1 / issue_ns[stalled])
        capacity = max(0.0, -start / slope) if slope > 0 else np.nan
    return float(rate), float(capacity), smallest


def grouped_medians(keys: Sequence[IntArray], values: Sequence[FloatArray]) -> tuple[list[IntArray], IntArray, list[FloatArray]]:
    """Median of each value over rows of equal keys.

    Parameters
    ----------
    keys : sequence of ndarray of int, shape (rows,)
    values : sequence of ndarray of float, shape (rows,)

    Returns
    -------
    columns : list of ndarray of int, shape (groups,)
        The distinct keys, in ascending order.
    count : ndarray of int, shape (groups,)
    medians : list of ndarray of float, shape (groups,)
    """
    order = np.lexsort(tuple(reversed(keys)))
    stacked = [key[order] for key in keys]
    rows = order.size
    if rows == 0:
        return list(stacked), np.zeros(0, dtype=np.int64), [np.zeros(0) for _ in values]
    new = np.r_[True, np.any([key[1:] != key[:-1] for key in stacked], axis=0)]
    group = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    count = np.diff(np.r_[first, rows])
    medians = []
    for value in values:
        ranked = value[order][np.lexsort((value[order], group))]
        medians.append((ranked[first + (count - 1) // 2] + ranked[first + count // 2]) / 2)
    return [key[first] for key in stacked], count, medians
