"""A burst after 1 us to 200 ms without traffic: does the link, or the path to it, fall asleep, and what does waking cost?

Each schedule first wakes every link with a larger burst; the one before the gap is small, so that nothing is left to recover from. A small
burst does not wait for a link to wake: the cost is in its drain, timed by the fence after the last burst, and in the issue time of a burst
that is larger than the capacity. Asked for by name (``--only sleep``): it waits for ten seconds in all.
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

GAPS_US = (1, 10, 100, 1000, 10_000, 30_000, 40_000, 45_000, 50_000, 55_000, 60_000, 100_000, 200_000)
CONTROL_US = (1, 1000, 100_000)
LONGEST_US = 100_000  # of the sweep over sizes
WAKING_STORES, WAKING_US = 128, 1000  # 64 KB per producer reach every link of a port, and 1 ms is several times what waking takes
SIZES = {1: (2, 4, 8, 32, 128), 0: (4, 8, 32, 128)}  # warp-stores of the one warp, by producers; 0 stands for all SMs
AWAKE_US = (10, 100, 1000)  # after a burst that found the link asleep


def schedules(sweep: Sweep) -> list[Schedule]:
    """One SM and all of them, on one link of each source: sleep is the source port's. Nothing when quick, since silence takes its time."""
    if sweep.quick or sweep.destination != min(d for s, d in sweep.node.pairs if s == sweep.source):
        return []
    clock_mhz = sweep.node.gpus[sweep.source].sm_clock_mhz

    def silent(gaps_us: tuple[int, ...], producers: int, stores: int, destination: int = sweep.destination) -> Schedule:
        later = tuple(Burst(stores * 512, round(gap * clock_mhz)) for gap in gaps_us)
        awake = (Burst(WAKING_STORES * 512), Burst(512, round(WAKING_US * clock_mhz)))
        return Schedule((*awake, *later), producers, 1, sweep.source, destination, "free")

    every = sweep.sm_count
    out = [silent((gap,), k, 1) for k in (1, every) for gap in GAPS_US]
    out += [silent((LONGEST_US,), k or every, n) for k, sizes in SIZES.items() for n in sizes]
    out += [silent((LONGEST_US, awake), k, 1) for k in (1, every) for awake in AWAKE_US]
    out += [silent((gap,), k, 1, sweep.source) for k in (1, every) for gap in CONTROL_US]
    return out


PROBE = Probe(
    "sleep", "a burst after up to 200 ms of silence", schedules, holdout=True, keep_producers=True, effort=1 / 7, by_default=False
)
