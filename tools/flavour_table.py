"""Print the tables of docs/flavours.md: ``python tools/flavour_table.py results/h200-x2/2026-11-29-flavours [PAIR]``.

Reads the run, and beside it `model.json`, `validation.json`, `wire.json` and `arrival.json` as far as they are there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from xstage_bench.model.document import load_model, load_validation
from xstage_bench.model.estimate import Estimate
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

WARPS = 4
NEAR_BYTES = 32768


def _value(e: Estimate, scale: float, digits: int) -> str:
    if e.value is None:
        return "-"
    if e.low is None or e.high is None:
        return f"{e.value / scale:.{digits}f}"
    return f"{e.value / scale:.{digits}f} ± {(e.high - e.low) / 2 / scale:.{digits}f}"


def _mean(each: np.ndarray) -> str:
    """Mean over processes with the half width of its 95 % interval."""
    if each.size == 0:
        return "-"
    reach = student.ppf(0.975, each.size - 1) * each.std(ddof=1) / np.sqrt(each.size) if each.size > 1 else np.nan
    return f"{each.mean():.0f} ± {reach:.0f}"


def _over_processes(rows: pd.DataFrame, column: str) -> str:
    return _mean(rows.groupby("process")[column].median().dropna().to_numpy())


def _rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def _arrived(rows: list[dict[str, Any]], flavour: str, layout: str, pair: str, column: str, *, alone: bool) -> str:
    mine = [r for r in rows if (r["part"], r["pair"], r["flavour"], r["layout"]) == ("arrival", pair, flavour, layout)]
    found = [r[column]["median"] for r in mine if (r["producers"] == 1) == alone and r.get(column)]
    return _mean(np.array(found))


def costs(folder: Path, pair: str) -> None:
    """One row per flavour and layout, all SMs with four warps."""
    run = load_run(folder)
    samples = run.samples()
    source, destination = map(int, pair.split(">"))
    good = samples[(samples["status"] == "ok") & (samples["kind"] == "measure") & (samples["start"] == "isolated")]
    good = good[(good["source"] == source) & (good["destination"] == destination) & (good["warps"] == WARPS)]
    good = good[(good["producers"] == run.manifest.node.gpus[source].sm_count) & good["probe"].isin(["flavours", "layouts"])]
    wire = {(w["flavour"], w["layout"]): w["per_payload"].get("raw_sent") for w in _rows_of(folder, "wire.json") if w["pair"] == pair}
    arrival = _rows_of(folder, "arrival.json")
    model = load_model(folder / "model.json")
    print("| flavour | layout | T0, cycles per KiB | R, GB/s | Q per SM, kB | burst, bytes per SM | source reusable | `wait_group`", end="")
    print(" | remote-visible, mean SM | slowest SM | one operation alone, visible | raw bytes on the link per byte |")
    print("|" + "---|" * 12)
    for flavour in FLAVOURS:
        for layout in LAYOUTS:
            entry = None if (found := model.find(pair, flavour, layout)) is None else found.find(int(good["producers"].iloc[0]), WARPS)
            if entry is None:
                continue
            mine = good[(good["flavour"] == flavour) & (good["layout"] == layout)]
            sizes = mine["bytes"].unique()
            near = int(sizes[np.argmin(np.abs(sizes - NEAR_BYTES))])
            at = mine[mine["bytes"] == near]
            raw = wire.get((flavour, layout))
            cells = [
                flavour,
                layout,
                _value(entry.t0_cycles, entry.bytes / 1024, 1),
                _value(entry.drain_gb_per_s, 1, 0),
                _value(entry.capacity_bytes_per_producer, 1000, 1),
                str(near),
                _over_processes(at, "reusable_mean_cycles"),
                _over_processes(at, "completed_mean_cycles"),
                _arrived(arrival, flavour, layout, pair, "visible_cycles", alone=False),
                _arrived(arrival, flavour, layout, pair, "slowest_visible_cycles", alone=False),
                _arrived(arrival, flavour, layout, pair, "visible_cycles", alone=True),
                "-" if not raw else f"{np.mean(raw):.3f}",
            ]
            print("| " + " | ".join(cells) + " |")


def errors(folder: Path) -> None:
    """One row per flavour: the node model's errors on held-out schedules, both directions."""
    scores = [s for s in load_validation(folder / "validation.json").models if s.model == "node"]
    print("| flavour | bursts | median, % | p95, % | time line median, % | p95, % | stall or not, % |")
    print("|" + "---|" * 7)
    for flavour in FLAVOURS:
        both = [s for s in scores if s.flavour == flavour]
        if not both:
            continue

        def cell(values: list[float | None], digits: int = 1) -> str:
            return " / ".join("-" if v is None else f"{100 * v:.{digits}f}" for v in values)

        columns = [
            cell([s.issue_time.median_error for s in both]),
            cell([s.issue_time.p95_error for s in both], 0),
            cell([s.total_time.median_error for s in both]),
            cell([s.total_time.p95_error for s in both]),
            cell([s.regime_balanced_accuracy for s in both]),
        ]
        print(f"| {flavour} | {' / '.join(str(s.n_bursts) for s in both)} | " + " | ".join(columns) + " |")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    costs(folder, sys.argv[2] if len(sys.argv) > 2 else "0>1")
    print()
    errors(folder)
