"""What a fence or release costs after bulk copies and tensor stores, beside their own completion (results/h200-x2/fences).

Asked for by name (``--only bulk_fences``). One thread per SM issues, as in a kernel with an elected one.
"""

from xstage_bench.flavour import FLAVOURS
from xstage_bench.probe import Probe, Sweep
from xstage_bench.schedule import Burst, Schedule

NAMES = ("bulk.2048", "bulk.8192", "tensor.16384")
PUBLISHING = ("red.release.gpu", "fence.gpu", "fence.sys")
OPERATIONS = (0, 1, 2, 4, 8, 16, 32)


def schedules(sweep: Sweep) -> list[Schedule]:
    """Backlogs from nothing to saturated, by all SMs but four and by one."""
    return [
        Schedule(
            (Burst(n * FLAVOURS[flavour].bytes),), producers, 1, sweep.source, sweep.destination, flavour=flavour, completion=completion
        )
        for completion in PUBLISHING
        for flavour in NAMES
        for producers in (1, sweep.sm_count - 4)
        for n in OPERATIONS
    ]


PROBE = Probe("bulk_fences", "fences and releases after bulk copies", schedules, effort=0.29, by_default=False)
