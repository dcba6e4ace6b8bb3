"""How often the node model's intervals hold the truth: replicas of the model's own form plus noise, each fitted from scratch.

    python tests/claims/node_truth.py [--replicas 200] [--json]

Exit status 4 when a parameter is covered outside 90 to 99.5 % of the replicas (180 to 199 of 200).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from node_worlds import quick_schedules, shorter, synthesize

from xstage_bench.model.node.calibrate import fit_measured
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement

SMS, UNITS = 48, 8
CENTRE = dict(zip(PARAMETERS, (19.0, 130.0, 25.6, 16000.0, 12000.0, 550.0, 60000.0, 0.1), strict=True))


def placement() -> Placement:
    """Eight units of four and eight SMs, so that service is unequal."""
    sizes = [4, 8] * (UNITS // 2)
    ends = np.cumsum(sizes)
    return Placement(tuple(tuple(range(e - n, e)) for n, e in zip(sizes, ends, strict=True)))


def replica(seed: int) -> dict[str, tuple[float, float | None, float | None, float | None]]:
    """Draw a truth near `CENTRE`, measure it, fit it; return truth, value, low and high of each parameter."""
    rng = np.random.default_rng(seed)
    drawn = {name: value * math.exp(0.1 * rng.standard_normal()) for name, value in CENTRE.items()}
    drawn["issue_cycles_per_store"] = CENTRE["issue_cycles_per_store"]
    start = NodeModel(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, placement(), 1980.0)
    truth = start.with_values([drawn[name] for name in PARAMETERS])
    schedules = shorter(quick_schedules(SMS, 0, 1, link_gb_per_s=truth.link_gb_per_s), 5)
    fit = fit_measured(synthesize(truth, schedules, rng), truth.placement)
    return {name: (drawn[name], e.value, e.low, e.high) for name, e in fit.estimates.items()}


def main() -> int:
    """Run the replicas and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first replica")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = [replica(args.first + i) for i in range(args.replicas)]
    rows, bad = [], []
    for name in PARAMETERS:
        mine = [r[name] for r in found]
        known = [(t, v, lo, hi) for t, v, lo, hi in mine if v is not None and lo is not None and hi is not None]
        inside = sum(lo <= t <= hi for t, _, lo, hi in known)
        error = float(np.median([abs(v / t - 1) for t, v, _, _ in known])) if known else None
        width = float(np.median([(hi - lo) / 2 / t for t, _, lo, hi in known])) if known else None
        rows.append({"parameter": name, "identified": len(known), "covered": inside, "median_error": error, "half_width": width})
        if known and not 0.9 <= inside / len(known) <= 0.995:
            bad.append(name)
    if args.json:
        print(json.dumps({"rows": rows, "ok": not bad}))
    else:
        for r in rows:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items()))
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
