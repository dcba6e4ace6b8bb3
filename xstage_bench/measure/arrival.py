"""When a burst of any flavour and layout has arrived: what is watched on the peer, and the three completion times of it.

Issue done, source reusable and remote-visible differ: all are cycles after the end of a producer's issue (results/h200-x2/flavours).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.measure.visibility_numbers import RepetitionSpread, spread
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS
from xstage_bench.schedule.watches import RESERVED_SMS, WARMUP, Sighting, Watch

#: Flavours that are watched in every layout; the others contiguous.
SHAPED = ("st.v4", "st.v2", "st.b32", "red.v4.f32", "bulk.256", "tensor.8192", "tensor.16384")
#: Backlogs of bulk copies that flags are sent behind.
LOUD = ("bulk.2048", "bulk.8192", "tensor.16384")
NEAR_BYTES = 32768  # per producer
WARPS = 4


def cases(known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (flavour, layout) rows of the table, of these flavours; aliases of another's machine code are left out."""
    names = [n for n, f in FLAVOURS.items() if n in set(known) and f.alias_of is None]
    shaped = [(n, y) for n in names if n in SHAPED for y in LAYOUTS if y != "contiguous" and LAYOUTS[y].takes(FLAVOURS[n])]
    return [(n, "contiguous") for n in names] + shaped


def watched_bytes(flavour: str, layout: str, warps: int = WARPS) -> int:
    """Bytes per producer of the watched burst: whole groups nearest to 32 KiB."""
    unit = Schedule((Burst(0),), 1, warps, flavour=flavour, layout=layout).warp_store_bytes * warps * FLAVOURS[flavour].group
    return max(1, round(NEAR_BYTES / unit)) * unit


def arrival_watches(gpu: Gpu, source: int, destination: int, known: Iterable[str], *, repetitions: int) -> Iterator[tuple[str, Watch]]:
    """Yield a burst of all SMs, one operation (of stores one group) of a lone warp, and flags behind backlogs of bulk copies."""
    most = gpu.sm_count - RESERVED_SMS
    for flavour, layout in cases(known):
        group, lone = FLAVOURS[flavour].group, Schedule((Burst(0),), 1, 1, flavour=flavour, layout=layout).warp_store_bytes
        for producers, warps, size in ((most, WARPS, watched_bytes(flavour, layout)), (1, 1, group * lone)):
            schedule = Schedule((Burst(size),), producers, warps, source, destination, flavour=flavour, layout=layout)
            watch = Watch(schedule, "curve", repetitions=repetitions, stride=int(schedule.stores_per_warp()[0]), pings=0, idle_pings=34)
            yield "arrival", watch
    for flavour in ("st.v4", *LOUD):
        if flavour in set(known):
            loud = Schedule((Burst(1 << 19),), most, WARPS, source, destination, flavour=flavour)
            for method in ("relaxed", "release.gpu", "release.sys"):
                yield "loud", Watch(loud, "ping", method, repetitions=repetitions, pings=200, idle_pings=0)


def arrival_row(sighting: Sighting) -> dict[str, Any]:
    """Reduce one watched burst: cycles after the end of a producer's issue, mean over producers, with an interval over repetitions.

    ``visible`` is when the last of a producer's watched operations could have been read on the peer: the answer's way back, half of the
    idle round trip of the same launch, is taken off. ``slowest_visible`` is the last producer's, after its own end of issue; ``span`` runs
    from the first start to the last byte visible.
    """
    mhz = sighting.sm_clock_mhz
    echo_ns = float(np.median(sighting.idle_round_trip_cycles())) / mhz * 1e3 / 2
    seen = sighting.seen_ns[WARMUP:, :, :, -1].max(axis=2) - echo_ns
    start, end = sighting.start_ns[WARMUP:], sighting.end_ns[WARMUP:]
    visible = (seen - end) * mhz / 1e3
    values: dict[str, NDArray[np.float64]] = {
        "issue_cycles": sighting.issue_cycles[WARMUP:].mean(axis=1),
        "reusable_cycles": sighting.reusable_cycles[WARMUP:].mean(axis=1),
        "completed_cycles": sighting.completed_cycles[WARMUP:].mean(axis=1),
        "visible_cycles": visible.mean(axis=1),
        "slowest_visible_cycles": visible.max(axis=1),
        "span_cycles": (seen.max(axis=1) - start.min(axis=1)) * mhz / 1e3,
    }
    row: dict[str, Any] = {"echo_ns": round(echo_ns, 1)}
    return row | {name: _brief(spread([np.array([v]) for v in each])) for name, each in values.items()}


def _brief(values: RepetitionSpread) -> dict[str, Any] | None:
    """Median, interval and count; null when the flavour has no such time."""
    return None if not values.n else {"median": values.median, "low": values.low, "high": values.high, "n": values.n}
