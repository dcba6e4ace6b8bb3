"""Saturated bursts by random subsets of SMs: who is served with whom. From it comes the map of smid to arbitration group."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

SUBSETS, QUICK_SUBSETS = 160, 80
SHARE = 0.3  # of all SMs: enough to saturate the link, few enough that neighbours are often alone


def schedules(sweep: Sweep) -> list[Schedule]:
    """Isolated bursts of 128 KB by random subsets, and two longer ones by all SMs."""
    size = max(8, round(sweep.sm_count * SHARE))
    smids = sweep.node.gpus[sweep.source].smids
    out = [Schedule((Burst(n * 4 * 512),), sweep.sm_count, 4, sweep.source, sweep.destination) for n in (160, 256)]
    for _ in range(QUICK_SUBSETS if sweep.quick else SUBSETS):
        chosen = tuple(sorted(int(s) for s in sweep.rng.choice(smids, min(size, len(smids)), replace=False)))
        out.append(Schedule((Burst(64 * 4 * 512),), chosen, 4, sweep.source, sweep.destination))
    return out


PROBE = Probe("placement", "saturated bursts by random subsets of SMs", schedules, keep_producers=True, effort=1 / 7)
