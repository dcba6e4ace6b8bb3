"""Which SMs to store from: choices of 8, 16 and 32 by the map of arbitration units, against random ones. No fit sees these samples.

Asked for by name (``--only choice``).
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._units import halves, packed, spread

PRODUCERS = (8, 16, 32)
RANDOM_CHOICES = 16
WARPS = 4
STORES = (4, 8, 16, 32, 64, 128, 256)  # warp-stores per warp; the longest is 512 KB per producer
LONG = (64, 256)  # of choices that only show a capacity: pairs, parts of one unit


def choices(sweep: Sweep, count: int) -> dict[str, tuple[int, ...]]:
    """Name each choice of `count` SMs: by the map where this GPU's is recorded, by number, and at random."""
    gpu = sweep.node.gpus[sweep.source]
    smids = [int(s) for s in gpu.smids]
    out = {"lowest": tuple(smids[:count]), "every": tuple(smids[i * len(smids) // count] for i in range(count))}
    known = halves(gpu.name, smids)
    if known is not None:
        units = [*known[0], *known[1]]
        # Alternating between the halves, so that a choice of fewer SMs than units takes as many from each.
        mixed = [u for both in zip(*known, strict=True) for u in both]
        out |= {"spread": spread(mixed, count), "packed": packed(units, count)}
        out |= {f"half{i}": spread(half, count) for i, half in enumerate(known)}
    for i in range(RANDOM_CHOICES):
        out[f"random{i}"] = tuple(sorted(int(s) for s in sweep.rng.choice(smids, count, replace=False)))
    return out


def inside_units(sweep: Sweep) -> dict[str, tuple[int, ...]]:
    """Parts of one unit and one to six whole units: what a unit can pass on its own."""
    gpu = sweep.node.gpus[sweep.source]
    known = halves(gpu.name, gpu.smids)
    if known is None:
        return {}
    units = [*known[0], *known[1]]
    full, small = units[0], next(u for u in units if len(u) == 4)
    out = {"one": full[:1], "pair": full[:2], "two_pairs": full[0:4:2], "three_pairs": full[0:6:2], "unit4": small, "unit6": full}
    out |= {f"other_unit{i}": u for i, u in enumerate(units[1:4])}
    out |= {f"units{n}": tuple(sorted(s for u in units[:n] for s in u)) for n in (2, 3, 4, 6)}
    out |= {f"one_of_{n}": spread(units, n) for n in (2, 4, 6, 12, 24)}
    return out


def schedules(sweep: Sweep) -> list[Schedule]:
    """Isolated bursts of every choice; nothing when quick."""
    if sweep.quick or sweep.sm_count < 2 * max(PRODUCERS):
        return []
    pair = (sweep.source, sweep.destination)
    sizes = {smids: STORES for count in PRODUCERS for smids in choices(sweep, count).values()}
    sizes |= {smids: LONG for smids in inside_units(sweep).values() if smids not in sizes}
    return [Schedule((Burst(n * WARPS * 512),), smids, WARPS, *pair) for smids, stores in sizes.items() for n in stores]


PROBE = Probe(
    "choice", "which SMs store: choices by the map of units", schedules, holdout=True, keep_producers=True, effort=0.43, by_default=False
)
