"""Table of R and T0 over the footprint of a burst's destination: ``page.py [write] [FOLDER]``.

FOLDER holds ``footprint01.json.gz`` and ``footprint10.json.gz``, as ``xstage measure footprint`` writes them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.measure.footprint import issue_times, rates

SLOT_BYTES, SHORT_STORES = 512, 8  # of a warp-store; 16 KiB per SM from each of four warps
Key = tuple[int, int, int]


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    documents = {direction: read_json(folder / f"footprint{direction}.json.gz", dict[str, Any]) for direction in ("01", "10")}
    about = folder / "about.json"
    said = read_json(about, dict[str, Any]) if about.exists() else None
    return {"when": origin(documents["01"], said), "footprint": footprint(documents)}


def source_of(document: dict[str, Any]) -> tuple[int, float]:
    """Return the storing GPU and its SM clock; documents of before 0.2 held one pair, and said so in their head."""
    if "node" in document:
        source = int(document["rows"][0]["source"])
        return source, float(document["node"]["gpus"][source]["sm_clock_mhz"])
    return int(document["source"]), float(document["gpus"][str(document["source"])]["sm_clock_mhz"])


def footprint(documents: dict[str, dict[str, Any]]) -> str:
    """R of each run length and T0, both directions, and the LOCAL control."""
    rate: dict[Key, dict[int, float]] = {}
    cycles: dict[Key, dict[int, float]] = {}
    for document in documents.values():
        source, clock = source_of(document)
        most = max(row["producers"] for row in document["rows"])
        rows = [row for row in document["rows"] if row["producers"] == most]
        for found, numbers, name in ((rates(rows, clock), rate, "gb_per_s"), (issue_times(rows, SHORT_STORES), cycles, "cycles")):
            for one in found:
                key = (source, one["destination"], one["run_slots"] * SLOT_BYTES)
                numbers.setdefault(key, {})[one["footprint_bytes"] >> 20] = one[name]
    runs = sorted({run for _, _, run in rate})
    head = [f"R 0>1, runs of {run >> 10} KiB" if run >= 1024 else f"R 0>1, runs of {run} B" for run in runs]
    columns = [rate[0, 1, run] for run in runs] + [rate[1, 0, runs[0]], cycles[0, 1, runs[0]], cycles[1, 0, runs[0]], rate[0, 0, runs[0]]]
    lines = [(mib, *(number(column.get(mib)) for column in columns)) for mib in sorted(rate[0, 1, runs[0]])]
    return table(("footprint, MiB", *head, "R 1>0", "T0 0>1, cycles", "T0 1>0", "LOCAL R"), lines)


if __name__ == "__main__":
    main(__file__, tables)
