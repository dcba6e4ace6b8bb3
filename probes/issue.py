"""One SM alone: what issuing costs when nothing behind the SM is full. T0 of every prediction is read off these bursts.

Isolated bursts begin on an aligned deadline, as the first burst of every schedule does; those of a train follow each other. The last trains
ask for no gap and for long ones: the least gap that can be had, and what an asked gap is longer by.
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

WARPS = tuple(range(1, 17))
STORES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48)  # of each warp
FREE_WARP_STORES = 40  # of all warps: 20 kB, which an SM holds before its own drain holds it back
AT_LEAST = (1, 2, 3, 4)  # of many warps too: beyond, the SM's own drain is what holds
APART_CYCLES = 8000  # between the bursts of a train: more than any of them takes to drain
LONG_WARP_STORES = (64, 256)
LONG_BURSTS = 6


def counts(warps: int) -> list[int]:
    """Warp-stores of each warp."""
    return [n for n in STORES if n * warps <= FREE_WARP_STORES or n in AT_LEAST]


def schedules(sweep: Sweep) -> list[Schedule]:
    """For each warp count, bursts of every size alone and in one train; then equal bursts with no gap, free ones and stalled ones."""
    ends = (sweep.source, sweep.destination)
    out = []
    for warps in (1, 2, 4, 8, 16) if sweep.quick else WARPS:
        unit = warps * 512
        out += [Schedule((Burst(n * unit),), 1, warps, *ends) for n in counts(warps)]
        order = counts(warps)
        train = [*order, *order[::-1], *order[::2], *order[1::2]]
        out.append(Schedule(tuple(Burst(n * unit, APART_CYCLES) for n in train), 1, warps, *ends, "free"))
        out.append(Schedule((Burst(unit, 0),) * LONG_BURSTS, 1, warps, *ends, "free"))
        if warps >= 2:
            out += [Schedule((Burst(-(-n // warps) * unit, 0),) * LONG_BURSTS, 1, warps, *ends, "free") for n in LONG_WARP_STORES]
    return out


PROBE = Probe("issue", "one SM alone: what issuing costs", schedules, effort=0.15)
