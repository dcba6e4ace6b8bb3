"""Thin the recorded H200 configurations to what tests need: results/reference/h200-clean/clean-thinned.csv.gz.

    python tools/thin_recording.py FULL.csv.gz

Systematic, with no look at any value: all isolated rows; of the timed schedules of each (SMs, warps, stores) every third period in
ascending order, of the periodic ones every fourth gap, each with all its bursts. Repeated schedules are kept once.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pandas as pd

KEYS = ["mode", "target", "sms", "warps", "stores", "gap_cycles", "period_ns"]
OUT = Path(__file__).resolve().parent.parent / "results" / "reference" / "h200-clean" / "clean-thinned.csv.gz"


def thin(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows to keep."""
    data = data[~data.duplicated([*KEYS, "burst"])]
    by = ["mode", "sms", "warps", "stores"]
    period = data.groupby(by)["period_ns"].rank(method="dense").astype(int) - 1
    gap = data.groupby(by)["gap_cycles"].rank(method="dense").astype(int) - 1
    keep = (data["mode"] == "isolated") | ((data["mode"] == "timed") & (period % 3 == 2)) | ((data["mode"] == "periodic") & (gap % 4 == 0))
    return data[keep]


def main() -> None:
    """Read the full recording and write the thinned one."""
    text = thin(pd.read_csv(sys.argv[1])).to_csv(index=False, float_format="%.5g", lineterminator="\n")
    # No time stamp in the header, so that the same input gives the same file.
    OUT.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
