"""What the figures share: which rows count, which pair and widths to show, and the fitted law as numbers to draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xstage_bench.model.headline import headline_rate
from xstage_bench.schedule.bursts import HOST, WARP_STORE_BYTES

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.model.document import BurstGap, Model, PairModel
    from xstage_bench.model.estimate import Estimate

Array = NDArray[np.float64]


def valid_rows(samples: pd.DataFrame, probe: str, pair: str | None = None) -> pd.DataFrame:
    """Return the rows of one probe that count as measurements (kind ``measure``, status ``ok``), with `pair` and `issue_us` added.

    Issue time in microseconds uses the SM clock measured around that execution.
    """
    rows = samples[(samples["probe"] == probe) & (samples["kind"] == "measure") & (samples["status"] == "ok")]
    rows = rows.assign(
        pair=rows["source"].astype(str) + ">" + rows["destination"].astype(str), issue_us=rows["issue_mean_cycles"] / rows["sm_clock_mhz"]
    )
    return rows if pair is None else rows[rows["pair"] == pair]


def remote_models(model: Model) -> list[PairModel]:
    """Return the models of pairs of different GPUs, in the order of the file."""
    return [p for p in model.pairs if not p.is_local]


def slowest_first(model: Model) -> list[PairModel]:
    """Return the models of remote pairs, the slowest first: figures of one pair show the worst; those without a rate come last."""

    def rate(pair: PairModel) -> float:
        found = headline_rate(pair)
        return float("inf") if found is None or found[0].value is None else found[0].value

    return sorted(remote_models(model), key=rate)


def shown_pair(model: Model, rows: pd.DataFrame) -> PairModel | None:
    """Return the slowest remote pair that has both a model and rows; figures of one pair show this one."""
    have = set(rows["pair"])
    return next((p for p in slowest_first(model) if p.pair in have), None)


def pair_label(pair: str) -> str:
    """Return "0>1" as "GPU 0 → GPU 1"."""
    source, _, destination = pair.partition(">")
    if source == destination:
        return f"GPU {source}, own memory"
    return f"GPU {source} → " + ("host memory" if destination == str(HOST) else f"GPU {destination}")


def pick(values: Iterable[int], count: int) -> list[int]:
    """Return at most `count` of the distinct values, the lowest and the highest among them, evenly by rank."""
    ordered = sorted({int(v) for v in values})
    if len(ordered) <= count:
        return ordered
    return [ordered[i] for i in np.linspace(0, len(ordered) - 1, count).round().astype(int)]


def nearest(values: Iterable[int], wanted: int) -> int:
    """Return the value that is nearest to `wanted`; the lower of two."""
    return min(sorted({int(v) for v in values}), key=lambda v: abs(v - wanted))


def spread(rows: pd.DataFrame, by: list[str], column: str) -> pd.DataFrame:
    """Return median, 10 % and 90 % quantile and count of a column over repetitions (and bursts), one row per group."""
    groups = rows.groupby(by, observed=True)[column]
    table = groups.quantile(np.array([0.1, 0.5, 0.9])).unstack()
    table.columns = ["low", "middle", "high"]
    return table.assign(n=groups.size()).reset_index()


def bars(table: pd.DataFrame) -> Array:
    """Return the spread of a table as the (2, N) array that errorbar takes."""
    return np.stack([table["middle"] - table["low"], table["high"] - table["middle"]]).clip(min=0.0)


def interval_bars(values: list[Estimate]) -> Array:
    """Return the intervals of estimates, which all have a value, as the (2, N) array that errorbar takes; none where unknown."""
    centre = np.array([_number(e.value) for e in values])
    low = np.array([_number(e.low, _number(e.value)) for e in values])
    high = np.array([_number(e.high, _number(e.value)) for e in values])
    return np.stack([centre - low, high - centre]).clip(min=0.0)


def stores_per_warp(bytes_per_producer: ArrayLike, warps: int, flavour: str) -> Array:
    """Return n, the warp-stores of each warp in a burst of B bytes per producer."""
    return np.asarray(bytes_per_producer, dtype=np.float64) / (warps * WARP_STORE_BYTES[flavour])


def free_cycles(entry: BurstGap, bytes_per_producer: ArrayLike, flavour: str) -> Array | None:
    """Return T0 of bursts of B bytes per producer, in SM cycles; None when it was not identified."""
    base, slope = entry.issue_base_cycles.value, entry.issue_cycles_per_warp_store.value
    if base is None or slope is None:
        return None
    return np.asarray(base + slope * stores_per_warp(bytes_per_producer, entry.warps, flavour))


def isolated_cycles(entry: BurstGap, bytes_per_producer: ArrayLike, flavour: str) -> Array | None:
    """Return the fitted issue time of isolated bursts, max(T0, stalled line), in SM cycles; T0 alone when there is no knee."""
    free = free_cycles(entry, bytes_per_producer, flavour)
    knee, slope = entry.knee_bytes.value, entry.stalled_cycles_per_warp_store.value
    if free is None or knee is None or slope is None:
        return free
    at_knee = free_cycles(entry, knee, flavour)
    beyond = stores_per_warp(np.asarray(bytes_per_producer) - knee, entry.warps, flavour)
    return np.asarray(np.maximum(free, (0.0 if at_knee is None else at_knee) + slope * beyond))


def drain_ns(entry: BurstGap, bytes_per_producer: ArrayLike) -> Array | None:
    """Return V/R of bursts of B bytes per producer, in ns (1 GB/s is 1 byte/ns); None when R was not identified."""
    rate = entry.drain_gb_per_s.value
    return None if rate is None else np.asarray(entry.producers * np.asarray(bytes_per_producer, dtype=np.float64) / rate)


def _number(value: float | None, otherwise: float = float("nan")) -> float:
    return otherwise if value is None else value
