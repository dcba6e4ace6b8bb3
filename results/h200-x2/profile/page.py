"""Tables of a profile of two GPUs: ``xstage profile`` (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, number, origin, per_cent, table

from xstage_bench.io.json_file import read_json
from xstage_bench.model.document import BurstGap, Model, Validation, load_validation
from xstage_bench.model.run_fit import find_model

REMOTE = ("0>1", "1>0")
MODELS = {"node": "node model", "burst_gap": "three parameters per SMs and warps", "loggp": "LogGP", "bandwidth_only": "V/R alone"}
ERRORS = ("model", "pair", "bursts", "median", "p90", "p95", "time line: median", "p95", "stall or not", "90 % intervals cover")


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has T0, R and Q of every number of SMs and warps."""
    model, validation = find_model(folder), load_validation(folder / "validation.json")
    return {
        "when": origin(read_json(folder / "manifest.json", dict[str, Any])),
        "law": law(model, [max(e.producers for p in model.pairs for e in p.burst_gap)]),
        "local": local(model),
        "errors": errors(validation),
        "parameters": parameters(model),
        "all": law(model),
    }


def law(model: Model, producers: list[int] | None = None) -> str:
    """T0, R and Q of remote pairs."""
    lines = []
    for pair in (p for p in map(model.find, REMOTE) if p is not None):
        for e in pair.burst_gap:
            if producers is None or e.producers in producers:
                t0 = interval(e.t0_cycles)
                held = interval(e.capacity_bytes, 2, 1e6), interval(e.capacity_bytes_per_producer, 1, 1e3)
                lines.append((pair.pair, e.producers, e.warps, t0, interval(e.drain_gb_per_s, 1), *held))
    return table(("pair", "SMs", "warps", "T0 at the largest free burst, cycles", "R, GB/s", "Q in all, MB", "Q per SM, kB"), lines)


def local(model: Model) -> str:
    """The same law fitted to remote and to local destinations, for every number of SMs and warps that has both."""
    remote, own = (model.find(pair) for pair in ("0>1", "0>0"))
    if remote is None or own is None:
        return ""
    lines = []
    for entry in sorted(own.burst_gap, key=lambda e: (e.producers, e.warps)):
        there = remote.find(entry.producers, entry.warps)
        lines.append((entry.producers, entry.warps, *_cells(there), *_cells(entry)))
    each = ("cycles per warp-store", "R, GB/s", "Q per SM, kB")
    return table(("SMs", "warps", *(f"{where}: {what}" for where in ("remote", "local") for what in each)), lines)


def _cells(e: BurstGap | None) -> tuple[str, ...]:
    if e is None:
        return ("-",) * 3
    found = ((e.issue_cycles_per_warp_store, 1, 1.0), (e.drain_gb_per_s, 0, 1.0), (e.capacity_bytes_per_producer, 1, 1e3))
    return tuple(interval(estimate, digits, scale) if estimate.status == "ok" else "-" for estimate, digits, scale in found)


def errors(validation: Validation) -> str:
    """Errors on schedules that no fit has seen; of tiny bursts behind a full stage too."""
    lines = []
    scored = [(label, s) for name, label in MODELS.items() for s in validation.models if s.model == name]
    scored += [("node model, tiny bursts", s) for s in validation.families if (s.model, s.family) == ("node", "holdout_tiny")]
    for label, s in scored:
        if s.flavour == "st.v4" and s.pair in REMOTE:
            issue, total = s.issue_time, s.total_time
            shares = (issue.median_error, issue.p90_error, issue.p95_error, total.median_error, total.p95_error)
            rest = (per_cent(s.regime_balanced_accuracy), per_cent(s.interval_coverage_90))
            lines.append((label, s.pair, number(s.n_bursts), *map(per_cent, shares), *rest))
    return table(ERRORS, lines)


def parameters(model: Model) -> str:
    """The node model's parameters, both directions."""
    both = [p.node for p in map(model.find, REMOTE) if p is not None]
    digits = {name: 0 if (both[0][name].value or 0) >= 100 else 2 if (both[0][name].value or 0) >= 1 else 3 for name in both[0]}
    lines = [(f"`{name}`", *(interval(node[name], digits[name]) for node in both)) for name in both[0]]
    return table(("parameter", *REMOTE), lines)


if __name__ == "__main__":
    main(__file__, tables)
