"""Print the table of docs/method.md: the same law fitted to remote and to local destinations.

python tools/remote_local_table.py results/h200-x2
"""

from __future__ import annotations

import sys
from pathlib import Path

from xstage_bench.model.document import BurstGap, load_model
from xstage_bench.model.estimate import Estimate


def _value(e: Estimate, scale: float = 1.0, digits: int = 0) -> str:
    if e.value is None or e.status != "ok":
        return "-"
    if e.low is None or e.high is None:
        return f"{e.value / scale:.{digits}f}"
    return f"{e.value / scale:.{digits}f} ({e.low / scale:.{digits}f} to {e.high / scale:.{digits}f})"


def _cells(entry: BurstGap | None) -> str:
    if entry is None:
        return "- | - | -"
    per_store = _value(entry.issue_cycles_per_warp_store, 1.0, 1)
    return f"{per_store} | {_value(entry.drain_gb_per_s)} | {_value(entry.capacity_bytes_per_producer, 1000, 1)}"


def main(folder: str) -> None:
    """Print one row per producer and warp count that has both destinations."""
    model = load_model(Path(folder) / "model.json")
    pairs = {p.pair: {(e.producers, e.warps): e for e in p.burst_gap} for p in model.pairs}
    remote = next(p for p in pairs if p.split(">")[0] != p.split(">")[1])
    local = f"{remote.split('>')[0]}>{remote.split('>')[0]}"
    print("| K | W | remote: cycles per warp-store | R, GB/s | Q per SM, kB | local: cycles per warp-store | R, GB/s | Q per SM, kB |")
    print("|---|---|---|---|---|---|---|---|")
    for (producers, warps), entry in sorted(pairs[local].items()):
        print(f"| {producers} | {warps} | {_cells(pairs[remote].get((producers, warps)))} | {_cells(entry)} |")


if __name__ == "__main__":
    main(sys.argv[1])
