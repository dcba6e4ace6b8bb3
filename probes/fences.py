"""What a fence or release costs against the backlog it meets: instruction, scope, who executes it, to a peer and to local memory.

Asked for by name (``--only fences``; bulk copies: ``--only bulk_fences``). The cost is `drain_mean_cycles`; see results/h200-x2/fences.
"""

from xstage_bench.completion import INSTRUCTIONS, WHO
from xstage_bench.probe import Probe, Sweep
from xstage_bench.schedule import Burst, Schedule

STORES = (0, 1, 2, 4, 8, 10, 16, 32, 64)  # per warp
WARPS = 4
LAGS_CYCLES = (0, 1000, 2000, 4000, 8000, 16000, 32000)  # from the end of the burst to the completion
PUBLISHING = ("red.release.gpu", "fence.gpu", "fence.sys")


def schedules(sweep: Sweep) -> list[Schedule]:
    """Backlogs from nothing to saturated, by all SMs and by few; then lagged publishing."""
    idle_left = sweep.sm_count - 4  # so that an SM is free to execute a completion for the others
    out = []
    for name in ("red.release.gpu", "fence.sys") if sweep.quick else INSTRUCTIONS:
        for who in WHO:
            completion = name if who == "self" else f"{name}@{who}"
            for destination in (sweep.destination, sweep.source):
                for producers in (idle_left,) if destination == sweep.source or sweep.quick else (1, 16, idle_left):
                    out += [
                        Schedule((Burst(n * WARPS * 512),), producers, WARPS, sweep.source, destination, completion=completion)
                        for n in STORES
                    ]
    for name in PUBLISHING:
        for n in (4, 16, 64):
            out += [
                Schedule(
                    (Burst(n * WARPS * 512), Burst(0, lag)), idle_left, WARPS, sweep.source, sweep.destination, "free", completion=name
                )
                for lag in LAGS_CYCLES
            ]
    return out


PROBE = Probe("fences", "fences and releases against the backlog", schedules, effort=0.43, by_default=False)
