"""Stalls of the tensor cores: read off stamped executions, and as the node model predicts them.

An SM's tensor cores are handed from tile to tile. They stand still between tiles, from the end of one tile's products to the beginning of
the next one's, when that tile has no warpgroup yet (both still store) or no input yet; and within tiles, when operands come late, which
wait behind what the SM has stored. The stall is what stores add to both, per Linear-2 tile: with result rows stored less the same order
with none stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.moe.forecast import MoeTileTimes, predict_order
from xstage_bench.kernels.moe.layer import ExpertRows, Layer
from xstage_bench.kernels.moe.order import Order, TaskLists

if TYPE_CHECKING:
    from xstage_bench.kernels.moe.group import ExpertGroup, Prepared
    from xstage_bench.model.document import Model

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NS_OF_US = 1e3
#: Stamped executions of an order; the one with the median stall counts. A single one can be off by more than what is predicted.
EXECUTIONS = 3
#: Within this much of the measured one a predicted stall counts as right, us.
CLOSE_US = 1.0


def idle_before(begin_ns: FloatArray, computed_ns: FloatArray, first: IntArray) -> FloatArray:
    """Return how long an SM's tensor cores were idle before each task, whose first operands and whose last product came at these times.

    Tasks of SM p are ``first[p]:first[p + 1]``. Nothing before the first task of a list, which waits for the start of the launch; nothing
    after the last one, whose SM has no more work. A task may begin before the last products of the one before it have ended: no idle time.
    """
    idle = np.maximum(begin_ns - np.roll(computed_ns, 1), 0.0)
    idle[_heads(first)] = 0.0
    return idle


def _heads(first: IntArray) -> IntArray:
    """Return the first task of each SM that has any."""
    return first[:-1][np.diff(first) > 0]


def measured(stores: NDArray[Any], none: NDArray[Any], lists: TaskLists) -> dict[str, Any]:
    """Read the stall off the `build.STAMP`s of two executions of one order, with result rows stored and with none.

    ``measured_us``: the stall, of both kinds of tile together; ``between_us`` and ``within_us``: its parts. ``idle_us``,
    ``idle_without_us``: of what the first part is the difference. ``store_span_us``: from the end of a Linear-2 tile's products to its last
    store, of the first warp.
    """
    (idle, busy, spans), (bare, undisturbed, _) = (_read(one, lists) for one in (stores, none))
    return {
        "measured_us": idle - bare + busy - undisturbed, "between_us": idle - bare, "within_us": busy - undisturbed, "idle_us": idle,
        "idle_without_us": bare, "store_span_us": _spans(spans),
    }  # fmt: skip


def predicted(
    model: Model, layer: Layer, rows: ExpertRows, times: MoeTileTimes, combine: str, ctas: int, order: Order, stages: int | None = None
) -> dict[str, Any]:
    """Predict the stall of one order of rank 0; parameters as of `forecast.predict_order`.

    ``predicted_us``, ``predicted_within_us`` of it, and ``predicted_store_span_us`` as in `measured`.
    """
    idle, busy = [], []
    for one in (combine, "none"):
        found = predict_order(model, layer, rows, times, one, ctas, order, stages=stages)
        second = found.schedule.phase == 1
        idle.append(_per_second(idle_before(found.start_ns, found.compute_end_ns, found.schedule.first), second))
        busy.append(_per_second(found.compute_end_ns - found.start_ns, second))
        if one == combine:
            spans = found.issue_ns[second]
    within = busy[0] - busy[1]
    return {"predicted_us": idle[0] - idle[1] + within, "predicted_within_us": within, "predicted_store_span_us": _spans(spans)}


def measure_stalls(group: ExpertGroup, prepared: Mapping[str, Prepared], forecast: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Execute both orders of a case with stores and without, stamped, `EXECUTIONS` times in turn.

    `prepared` is by the names of `measure.case_variants`; `forecast`, of ``wave`` and ``chosen``, is what `predicted` returned, empty where
    no model is there. Of either: the order's name, what `measured` and `predicted` return (null where nothing was predicted), of rank 0.
    """
    usual = f"wave {prepared['wave alone'].order.experts_per_wave}"
    out: dict[str, Any] = {}
    for which, stores in (("wave", usual), ("chosen", "chosen")):
        stamped = [group.with_stamps(prepared[name]) for name in (stores, f"{which} alone")]
        found = []
        for _ in range(EXECUTIONS):
            for one in stamped:
                group.run(one)
            found.append(measured(group.stamps(stamped[0], 0), group.stamps(stamped[1], 0), prepared[stores].lists[0]))
        nothing = {"predicted_us": None, "predicted_within_us": None, "predicted_store_span_us": None}
        out[which] = {
            "order": prepared[stores].order.name,
            **sorted(found, key=lambda one: one["measured_us"])[EXECUTIONS // 2],
            **forecast.get(which, nothing),
        }
    return out


def pairs_of(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return measured and predicted stalls of a row of the suite's document, us; none where it has not both."""
    both = (row.get("stalls") or {}).values()
    return [(one["measured_us"], one["predicted_us"]) for one in both if one["predicted_us"] is not None]


def _read(stamps: NDArray[Any], lists: TaskLists) -> tuple[float, float, FloatArray]:
    """Idle time and products per Linear-2 tile, us, and the store span of each Linear-2 tile, ns."""
    zero = stamps["begin_ns"].min()
    begin, computed, stored = ((stamps[name] - zero).astype(np.int64) for name in ("begin_ns", "computed_ns", "stored_ns"))
    idle = idle_before(begin.astype(np.float64), computed.astype(np.float64), lists.first)
    before = np.roll(computed, 1)
    before[_heads(lists.first)] = np.iinfo(np.int64).min
    busy = (computed - np.maximum(begin, before)).astype(np.float64)
    second = lists.second
    return _per_second(idle, second), _per_second(busy, second), (stored - computed)[second].astype(np.float64)


def _per_second(ns: FloatArray, second: NDArray[np.bool_]) -> float:
    return float(ns.sum() / second.sum() / NS_OF_US)


def _spans(ns: FloatArray) -> dict[str, float]:
    return {"median": float(np.median(ns)) / NS_OF_US, "p90": float(np.quantile(ns, 0.9)) / NS_OF_US}
