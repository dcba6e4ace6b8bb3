"""Tables of patterns and directions between two GPUs and host memory: ``xstage measure scenes`` (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scenes import Row, rate, scenes, when
from tables import half, main, number, table

LONG = 1 << 20


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    rows = [row for row in scenes(folder) if row["schedules"]]
    return {"when": when(folder), "patterns": patterns(rows), "sizes": sizes(rows), "host": host(rows)}


def patterns(rows: list[Row]) -> str:
    """Sustained rates of every pattern between GPUs; the newest document of each."""
    lines = []
    for row in {row["name"]: row for row in rows if row["schedules"][0]["bytes"] == LONG}.values():
        schedules = row["schedules"]
        if all(s["bytes"] == LONG and s["destination"] >= 0 for s in schedules) and not row["company"]:
            rates = ", ".join(f"{s['source']}>{s['destination']}: {rate(s)}" for s in schedules)
            together = half(row["total_gb_per_s"], 1) if len(schedules) > 1 else None
            lines.append((row["name"], rates, together, f"{row['overlap']:.3f}", number(row["start_skew_bound_ns"])))
    return table(("pattern", "GB/s", "together", "overlap", "start skew at most, ns"), lines)


def sizes(rows: list[Row]) -> str:
    """Issue time against size, 0>1 alone and with the other direction."""
    found: dict[int, dict[str, Row]] = {}
    for row in rows:
        s = row["schedules"][0]
        if row["name"] in ("pair 0>1", "both directions 0<>1") and s["bytes"] < LONG:
            found.setdefault(s["bytes"], {})[row["name"][:4]] = s
    columns = [(name, which) for which in ("issue_mean_cycles", "issue_max_cycles") for name in ("pair", "both")]
    lines = [(size >> 10, *(half(by[name][which]) for name, which in columns)) for size, by in sorted(found.items()) if len(by) == 2]
    return table(("KiB per SM", "mean issue, cycles: alone", "both directions", "slowest SM: alone", "both directions"), lines)


def host(rows: list[Row]) -> str:
    """Stores to host memory, alone and beside stores to the peer; the newest document of each scene."""
    newest = {row["name"]: row for row in rows if any(s["destination"] < 0 for s in row["schedules"])}
    lines = []
    for row in newest.values():
        for s in row["schedules"]:
            where = f"{s['source']}>{'host' if s['destination'] < 0 else s['destination']}"
            fence_us = number(s["drain_mean_cycles"]["value"], 1, s["sm_clock_mhz"]["value"])
            lines.append((row["name"], where, s["producers"], s["bytes"] >> 10, rate(s), fence_us))
    return table(("scene", "pair", "SMs", "KiB per SM", "GB/s", "fence after it, us"), lines)


if __name__ == "__main__":
    main(__file__, tables)
