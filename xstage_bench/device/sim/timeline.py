"""The time of every store of one burst: the picture of onset that an exemplar draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.core import Conditions, course_of_first_burst
from xstage_bench.device.sim.port import issue_times
from xstage_bench.device.sim.presets import Preset
from xstage_bench.schedule.bursts import Schedule

#: Cycles that a stamp adds to each store of one warp (docs/method.md).
STAMP_CYCLES = 22.0


def store_times(preset: Preset, schedule: Schedule, conditions: Conditions) -> Array:
    """Return the SM clock at each warp-store of the first burst, after the producer's start.

    The j-th warp-store of an SM passes when the port lets it and when all but `capacity` of the bytes before and with it are known to be
    drained, as in the event loop. A stamp per store raises the cost of each, as it does on hardware.

    Returns
    -------
    ndarray of float, shape (K, W, stores)
        Whole cycles. Empty in its last axis for an empty burst.
    """
    warps, stores = schedule.warps, int(schedule.stores_per_warp()[0])
    k = schedule.producer_count
    if stores == 0:
        return np.empty((k, warps, 0))
    stamped = replace(preset.port, store_cycles=preset.port.store_cycles + STAMP_CYCLES)
    port = issue_times(stamped, warps, stores)
    sent = (np.arange(warps)[:, None] + np.arange(stores)[None, :] * warps + 1.0) * schedule.warp_store_bytes
    credit, capacity, times, drained = course_of_first_burst(preset, schedule, conditions)
    out = np.empty((k, warps, stores))
    for i in range(k):
        known = np.interp(sent - capacity[i], drained[:, i], times) + credit
        out[i] = np.where(sent > capacity[i], np.maximum(port, known), port)
    # Within one warp stores leave in order.
    return np.asarray(np.rint(np.maximum.accumulate(out, axis=2)))
