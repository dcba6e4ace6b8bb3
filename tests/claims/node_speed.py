"""Speed of the node model, and what merging units changes; one core, one thread.

    python tests/claims/node_speed.py [--schedules 6000]

Bursts per second of processor time, median of five runs, of random schedules as the probe `holdout` draws them and of schedules in which
nothing stalls. "packed": from the flat arrays of `Packed` to all arrays of the prediction (so finding which units produce, T0, the event
loop and the conversion to ns are inside; loading and compiling are not). "objects": reading the Schedule objects is inside too. Beside
them numpy's event loop on fewer schedules, for it is slow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np

from xstage_bench.model.node.compiled import choose_loop
from xstage_bench.model.node.packed import pack
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node, predict_packed
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule

SMS, STORE_BYTES = 132, 512


def model() -> NodeModel:
    """24 units of four and six SMs, parameters as measured on an H200."""
    sizes = [4] * 6 + [6] * 18
    ends = np.cumsum(sizes)
    placement = Placement(tuple(tuple(range(int(e) - n, int(e))) for n, e in zip(sizes, ends, strict=True)))
    return NodeModel(19.0, 367.0, 25.6, 16_500.0, 11_500.0, 560.0, 205_000.0, 0.16, placement, 1980.0)


def random_schedules(count: int, *, calm: bool) -> list[Schedule]:
    """Draw schedules as the probe `holdout` does; with `calm`, small bursts far apart."""
    rng = np.random.default_rng(1)
    out = []
    for _ in range(count):
        start: StartRule = get_args(StartRule)[rng.integers(3)]
        producers, warps, bursts = int(rng.integers(1, SMS + 1)), int(rng.integers(1, 17)), int(rng.integers(2, 17))
        stores = np.maximum(np.exp(rng.uniform(0, np.log(24 if calm else 512), bursts)).astype(int) // warps, 1)
        gaps = np.exp(rng.uniform(np.log(100), np.log(100_000), bursts)).astype(int) + (100_000 if calm else 0)
        at = np.concatenate(([0], np.cumsum(gaps[1:]) // 2)).astype(int)
        made = tuple(Burst(int(n) * warps * STORE_BYTES, int(g), int(t)) for n, g, t in zip(stores, gaps, at, strict=True))
        out.append(Schedule(made, producers, warps, start=start))
    return out


def rate(bursts: int, work: Callable[[], object], times: int = 5) -> float:
    """Bursts per second of processor time, median of several runs after one that does not count."""
    took = []
    for _ in range(times + 1):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return bursts / float(np.median(took[1:]))


def main() -> None:
    """Time all of it and print bursts per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=6000)
    asked, m = parser.parse_args().schedules, model()
    for name, calm in (("random", False), ("nothing stalls", True)):
        drawn = random_schedules(asked, calm=calm)
        packed, few = pack(drawn), drawn[: max(asked // 10, 1)]
        if choose_loop(None, 10**9, 1) is not None:
            for how, exact in (("merged", False), ("exact", True)):
                from_packed = rate(packed.bytes.size, partial(predict_packed, m, packed, exact=exact, compiled=True))
                from_objects = rate(packed.bytes.size, partial(predict_node, m, drawn, exact=exact, compiled=True), 3)
                print(f"{name}, {how}: packed {from_packed:.4g}, objects {from_objects:.4g} bursts/s")
            merged, exact_ = (predict_packed(m, packed, exact=e, compiled=True) for e in (False, True))
            off = np.abs(merged.issue_cycles / exact_.issue_cycles - 1)
            print(f"{name}: merging changes {np.median(off):.4g} in the median, p95 {np.quantile(off, 0.95):.4g}")
        print(f"{name}: numpy {rate(sum(len(s.bursts) for s in few), partial(predict_node, m, few, compiled=False), 3):.4g} bursts/s")


if __name__ == "__main__":
    main()
