"""Tables of a burst after silence: a run of the probe ``sleep`` (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.schedule.bursts import Schedule

WARP_STORE = 512
SIZES_AFTER_US = 100_000


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    last = last_bursts(folder)
    return {"when": origin(read_json(folder / "manifest.json", dict[str, Any])), "silence": silence(last), "sizes": sizes(last)}


def last_bursts(folder: Path) -> pd.DataFrame:
    """Return the burst after the silence: how long that was, its issue time and the drain after it."""
    run = load_run(folder)
    rows = run.samples()
    of: dict[str, Schedule] = schedules_of(rows)
    rows = rows[(rows["probe"] == "sleep") & (rows["status"] == "ok") & (rows["kind"] == "measure")]
    rows = rows[(rows["burst"] == rows["bursts"] - 1) & (rows["bursts"] == 3)]
    clock = run.manifest.node.gpus[0].sm_clock_mhz
    gap_us = [round(of[key].bursts[-1].gap_cycles / clock) for key in rows["schedule"]]
    return rows.assign(gap_us=gap_us, stores=rows["bytes"] // WARP_STORE, drain_us=rows["drain_mean_cycles"] / clock)


def _range(values: pd.Series) -> str:
    return interval({"value": values.median(), "low": values.min(), "high": values.max()}, 1) if len(values) else "-"


def silence(last: pd.DataFrame) -> str:
    """One warp-store by one SM and by all, after so long a silence; the LOCAL control."""
    one = last[last["stores"] == 1]
    remote, local = one[one["source"] != one["destination"]], one[one["source"] == one["destination"]]
    least, most = one["producers"].min(), one["producers"].max()
    lines = []
    for gap, rows in remote.groupby("gap_us"):
        few, many = (rows[rows["producers"] == k] for k in (least, most))
        control = local[(local["gap_us"] == gap) & (local["producers"] == least)]
        cells = (number(few["issue_mean_cycles"].median()), *(_range(r["drain_us"]) for r in (few, many, control)))
        lines.append((number(gap * 1e-3, 3 if gap < 1000 else 0), *cells))
    head = ("silence, ms", "one SM, 512 B: issue, cycles", "drain, us", "all SMs, 512 B each: drain, us", "LOCAL, one SM: drain, us")
    return table(head, lines)


def sizes(last: pd.DataFrame) -> str:
    """Longer bursts after a long silence: what is issued while the links sleep."""
    late = last[(last["gap_us"] == SIZES_AFTER_US) & (last["source"] != last["destination"])]
    lines = []
    for (sms, stores), rows in late.groupby(["producers", "stores"]):
        slowest = rows["issue_max_cycles"].median() / rows["sm_clock_mhz"].median()
        mean = rows["issue_mean_cycles"].median() / rows["sm_clock_mhz"].median()
        lines.append((sms, number(stores * WARP_STORE / 1024, 1), number(mean, 2), number(slowest, 2), _range(rows["drain_us"])))
    return table(("SMs", "KiB each", "issue, us", "slowest SM, us", "drain, us"), lines)


if __name__ == "__main__":
    main(__file__, tables)
