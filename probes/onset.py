"""Where the model is put to a finer test than the grids allow; no fit sees these samples.

Three sweeps: the onset of the stall at steps of one warp-store; the recovery gap at fine gaps; and the transient, how many bursts of a
timed train too dense to last are still free.
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

PRODUCERS = (32, 64)
KNEE = range(28, 61)  # warp-stores of one warp around the knee (about 38 on H200)
TRAIN = 64
TRAIN_STORES = (24, 32)
TRAIN_FACTORS = (0.75, 0.8, 0.85, 0.9, 0.95)  # of the expected V/R
RECOVERY_STORES = (32, 64)
RECOVERY_FACTORS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2)


def schedules(sweep: Sweep) -> list[Schedule]:
    """One warp per producer throughout; nothing when quick."""
    if sweep.quick:
        return []
    pair = (sweep.source, sweep.destination)
    out = []
    for producers in sweep.counts(PRODUCERS):
        out += [Schedule((Burst(n * 512),), producers, 1, *pair) for n in KNEE]
        for n in TRAIN_STORES:
            drain_ns = producers * n * 512 / sweep.expected_gb_per_s()
            for factor in TRAIN_FACTORS:
                bursts = tuple(Burst(n * 512, start_ns=round(i * factor * drain_ns)) for i in range(TRAIN))
                out.append(Schedule(bursts, producers, 1, *pair, "timed"))
        for n in RECOVERY_STORES:
            drain_cycles = producers * n * 512 / sweep.expected_gb_per_s() * sweep.node.gpus[sweep.source].sm_clock_mhz * 1e-3
            out += [Schedule((Burst(n * 512, round(f * drain_cycles)),) * 16, producers, 1, *pair, "free") for f in RECOVERY_FACTORS]
    return out


PROBE = Probe("onset", "onset, recovery and transients in fine steps, held out of every fit", schedules, holdout=True, effort=0.43)
