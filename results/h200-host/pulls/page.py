"""Tables of loads from host memory: ``xstage measure pulls`` on a machine with one GPU (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.measure.pulls import judged

NAMES = {"0>-1": "host memory", "0>0": "its own memory"}


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    document = read_json(folder / "pulls.json.gz", dict[str, Any])
    laws = {pair: judged(document["rows"], pair) for pair in NAMES}
    return {"when": origin(document), "laws": law_table(laws), "behind": behind_table(laws["0>-1"])}


def law_table(laws: dict[str, dict[str, Any]]) -> str:
    """The three numbers, what they say is in flight, and the error on pulls that no fit has seen."""
    head = ("reads", "latency, ns", "one SM, GB/s", "all SMs, GB/s", "in flight per SM, kB", "error on random pulls", "p95")
    rows = []
    for pair, law in laws.items():
        fitted = [number(law[name]["value"], digits) for name, digits in (("latency_ns", 0), ("sm_gb_per_s", 1), ("gb_per_s", 1))]
        errors = [f"{law[name]:.1%}" for name in ("median_error", "p95_error")]
        rows.append((NAMES[pair], *fitted, number(law["in_flight_sm_bytes"] / 1e3, 0), *errors))
    return table(head, rows)


def behind_table(law: dict[str, Any]) -> str:
    """One load behind the SM's own stores to host memory."""
    found = {(b["producers"], b["bytes"]): b["waited_ns"] for b in law["behind"]}
    counts = sorted({k for k, _ in found})
    rows = [(number(size / 1e3, 1), *(number(found[k, size] / 1e3, 1) for k in counts)) for size in sorted({b for _, b in found})]
    return table(("kB stored by each SM before", *(f"{k} SMs: waits, us" if k > 1 else "1 SM: waits, us" for k in counts)), rows)


if __name__ == "__main__":
    main(__file__, tables)
