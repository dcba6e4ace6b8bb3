"""Speed of the node model beside a simulation of every single warp-store of the same schedules; one core.

    python bench/node_speed.py [--schedules 600] [--json]

Prints bursts per second of: random schedules as the probe `holdout` draws them, schedules in which nothing stalls, and the per-store
simulation (a few schedules of the first kind, for it is slow), with the median deviation of the two on the bursts they share.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from typing import get_args

import numpy as np

from xstage_bench.model.node.issue import free_cycles
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule import Burst, Schedule, StartRule

SMS, STORE = 132, 512


def model() -> NodeModel:
    """24 units of four and six SMs, parameters as measured on an H200."""
    sizes = [4] * 6 + [6] * 18
    ends = np.cumsum(sizes)
    placement = Placement(tuple(tuple(range(int(e) - n, int(e))) for n, e in zip(sizes, ends, strict=True)))
    return NodeModel(19.0, 367.0, 25.6, 16_500.0, 11_500.0, 560.0, 205_000.0, 0.16, placement, 1980.0)


def random_schedules(count: int, seed: int, *, most_stores: int = 512, calm: bool = False) -> list[Schedule]:
    """Draw schedules as the probe `holdout` does; with `calm`, small bursts far apart."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        start: StartRule = get_args(StartRule)[rng.integers(3)]
        producers, warps, bursts = int(rng.integers(1, SMS + 1)), int(rng.integers(1, 17)), int(rng.integers(2, 17))
        stores = np.maximum(np.exp(rng.uniform(0, np.log(24 if calm else most_stores), bursts)).astype(int) // warps, 1)
        gaps = np.exp(rng.uniform(np.log(100), np.log(100_000), bursts)).astype(int) + (100_000 if calm else 0)
        at = np.concatenate(([0], np.cumsum(gaps[1:]) // 2)).astype(int)
        made = tuple(Burst(int(n) * warps * STORE, int(g), int(t)) for n, g, t in zip(stores, gaps, at, strict=True))
        out.append(Schedule(made, producers, warps, start=start))
    return out


def by_store(m: NodeModel, schedule: Schedule) -> list[float]:
    """Mean issue time of each burst, from moving every warp-store by itself: SMs with a window, units taking turns at the link."""
    smids = schedule.smids(m.placement.smids)
    unit = m.placement.unit_of(smids)
    members = np.bincount(unit, minlength=len(m.placement.units))
    room = [int(m.unit_capacity(int(members[u])) / members[u] // STORE) for u in unit]
    stores = schedule.stores_per_warp() * schedule.warps
    fresh = np.array([schedule.start == "isolated" or i == 0 for i in range(len(stores))])
    free = free_cycles(m.issue, m.issue_cycles_per_store, schedule.warps, schedule.stores_per_warp(), fresh)
    beat = STORE / m.link_bytes_per_cycle()
    issue = np.zeros((len(stores), smids.size))
    # Each SM: (burst, stores of it still to issue, when the next may issue, stores queued, credits on their way back)
    runs = [[i] for i in range(len(stores))] if schedule.start == "isolated" else [list(range(len(stores)))]
    for bursts in runs:
        count = smids.size
        at, left, begin = [0] * count, [int(stores[bursts[0]])] * count, [0.0] * count
        ready, queued, back = [0.0] * count, [0] * count, [deque[float]() for _ in range(count)]
        rings = [deque(np.flatnonzero(unit == u).tolist()) for u in range(len(members)) if members[u]]
        live, now, turn = count, 0.0, 0
        while live:
            for k in range(count):
                while back[k] and back[k][0] <= now:
                    back[k].popleft()
                while at[k] < len(bursts) and ready[k] <= now and queued[k] + len(back[k]) < room[k]:
                    b = bursts[at[k]]
                    queued[k] += 1
                    left[k] -= 1
                    ready[k] = max(ready[k], begin[k]) + free[b] / max(int(stores[b]), 1)
                    if left[k] <= 0:
                        end = max(now, begin[k] + float(free[b]))
                        issue[b, k] = end - begin[k]
                        at[k] += 1
                        if at[k] == len(bursts):
                            live -= 1
                            break
                        nxt = schedule.bursts[bursts[at[k]]]
                        if schedule.start == "timed":
                            begin[k] = max(end + m.issue.turnaround, nxt.start_ns * m.sm_clock_mhz / 1e3)
                        else:
                            begin[k] = end + max(m.issue.turnaround, nxt.gap_cycles + m.issue.gap_overhead)
                        ready[k], left[k] = begin[k], int(stores[bursts[at[k]]])
            for _ in range(len(rings)):
                ring = rings[turn % len(rings)]
                turn += 1
                served = False
                for _ in range(len(ring)):
                    k = ring[0]
                    ring.rotate(-1)
                    if queued[k]:
                        queued[k] -= 1
                        back[k].append(now + m.credit_cycles)
                        served = True
                        break
                if served:
                    break
            now += beat
    return [float(x) for x in issue.mean(axis=1)]


def main() -> None:
    """Time all three and print bursts per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=600)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    m = model()
    result: dict[str, float] = {}
    for name, calm in (("random", False), ("nothing_stalls", True)):
        drawn = random_schedules(args.schedules, 1, calm=calm)
        predict_node(m, drawn[:50])
        begin = time.process_time()
        found = predict_node(m, drawn)
        result[f"{name}_bursts_per_s"] = found.issue_cycles.size / (time.process_time() - begin)
    few = random_schedules(4, 2, most_stores=128)
    begin = time.process_time()
    slow = np.concatenate([by_store(m, s) for s in few])
    result["by_store_bursts_per_s"] = slow.size / (time.process_time() - begin)
    fast = predict_node(m, few).issue_cycles
    result["median_deviation"] = float(np.median(np.abs(fast / slow - 1)))
    print(json.dumps(result) if args.json else "\n".join(f"{k} {v:.4g}" for k, v in result.items()))


if __name__ == "__main__":
    main()
