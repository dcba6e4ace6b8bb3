"""Print the tables of docs/fences.md: ``python tools/release_table.py results/h200-x2/2026-11-29-fences [PAIR]``."""

from __future__ import annotations

import sys

from xstage_bench.model.estimate import Estimate
from xstage_bench.model.run_fit import fit_run
from xstage_bench.record.reader import load_run


def _value(e: Estimate, scale: float = 1.0, digits: int = 0) -> str:
    if e.value is None:
        return "-"
    return f"{e.value / scale:.{digits}f} ({(e.low or 0) / scale:.{digits}f} to {(e.high or 0) / scale:.{digits}f})"


def main(folder: str, pair: str = "0>1") -> None:
    """Print one row per completion and producer count."""
    print("| flavour | completion | K | empty, cycles | R, GB/s | held per SM, kB | saturated, cycles | error, median / largest, % |")
    print("|" + "---|" * 8)
    for model in fit_run(load_run(folder)).pairs:
        if model.pair != pair:
            continue
        for law in sorted(model.release, key=lambda r: (-r.producers, r.completion.partition("@")[2], r.completion)):
            error = f"{100 * (law.median_error or 0):.0f} / {100 * (law.largest_error or 0):.0f}"
            cells = (_value(law.empty_cycles), _value(law.drain_gb_per_s), _value(law.held_bytes, 1000 * law.producers, 1))
            head = f"| {model.flavour} | {law.completion} | {law.producers} |"
            print(head, " | ".join((*cells, _value(law.saturated_cycles), error)), "|")


if __name__ == "__main__":
    main(*sys.argv[1:])
