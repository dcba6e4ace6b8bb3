"""Timed bursts on a common clock: the onset map, burst size against period."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

BURSTS = 32
# Of the expected V/R. Fine around one, wide enough that a link twice as fast or half as fast still shows its onset.
FACTORS = (0.4, 0.55, 0.67, 0.75, 0.82, 0.88, 0.93, 0.97, 1.01, 1.05, 1.1, 1.16, 1.25, 1.4, 1.7, 2.2)
QUICK_FACTORS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.4, 2.0)
WARP_STORES = (8, 16, 24, 32, 48, 64, 96)  # per producer
QUICK_WARP_STORES = (16, 32, 64)


def schedules(sweep: Sweep) -> list[Schedule]:
    """Every burst of every producer starts on a deadline, so producers stay aligned unless a stall holds one back."""
    out = []
    for producers in sweep.counts(() if sweep.quick else (32, 64)):
        for warps in (4,) if sweep.quick else (1, 4):
            for stores in QUICK_WARP_STORES if sweep.quick else WARP_STORES:
                size = stores * 512
                drain_ns = producers * size / sweep.expected_gb_per_s()
                for factor in QUICK_FACTORS if sweep.quick else FACTORS:
                    period = round(drain_ns * factor)
                    bursts = tuple(Burst(size, start_ns=i * period) for i in range(BURSTS))
                    out.append(Schedule(bursts, producers, warps, sweep.source, sweep.destination, "timed"))
    return out


PROBE = Probe("timed", "timed bursts: the onset of backpressure over burst and period", schedules, effort=0.29)
