"""What one stamped launch says about its tiles: how long they compute, how long their stores take, and the time line of one SM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.forecast import AttentionTileTimes

#: Of one SM, in a time line.
TILES_SHOWN = 12
_QUANTILES = (0, 10, 50, 90, 100)


def tile_facts(alone: NDArray[np.void], sent: NDArray[np.void], ctas: int) -> dict[str, Any]:
    """Return plain data from the `STAMP`s, shape (tiles, consumers), of a launch that sends nothing and of one that sends.

    ``compute``: `AttentionTileTimes` of the first; ``store_ns``: quantiles of the time from computed to stored of a warpgroup;
    ``time_line``: of the SM with the most time in its stores, ``[begin, computed, stored]`` in ns after the launch's first tile began, by
    warpgroup.
    """
    store = {name: _store_ns(stamps) for name, stamps in (("alone", alone), ("fused", sent))}
    stalled = store["fused"].max(axis=1)
    per_sm = np.bincount(sent["smid"][:, 0], weights=stalled)
    busiest = int(np.argmax(per_sm))
    return {
        "compute": asdict(AttentionTileTimes.of(alone, min(ctas, alone.shape[0]))),
        "quantiles": list(_QUANTILES),
        "store_ns": {name: np.percentile(ns, _QUANTILES).round().tolist() for name, ns in store.items()},
        "most_stored_ns_of_one_sm": float(per_sm[busiest]),
        "time_line": {name: _time_line(stamps, busiest) for name, stamps in (("alone", alone), ("fused", sent))},
    }


def _store_ns(stamps: NDArray[np.void]) -> NDArray[np.float64]:
    return np.asarray(stamps["stored_ns"] - stamps["computed_ns"], dtype=np.float64)


def _time_line(stamps: NDArray[np.void], smid: int) -> dict[str, Any]:
    mine = stamps[stamps["smid"][:, 0] == smid][:TILES_SHOWN]
    zero = stamps["begin_ns"].min()
    parts = np.stack([(mine[name] - zero).astype(np.int64) for name in ("begin_ns", "computed_ns", "stored_ns")], axis=-1)
    return {"smid": smid, "tiles": mine["tile"][:, 0].tolist(), "ns": parts.tolist()}
