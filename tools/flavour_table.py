"""Print the tables of docs/flavours.md: ``python tools/flavour_table.py results/h200-x2/2026-11-29-flavours [PAIR]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from xstage_bench.flavour import FLAVOURS
from xstage_bench.layouts import LAYOUTS
from xstage_bench.model.estimate import Estimate
from xstage_bench.pipeline import fit_run
from xstage_bench.record.reader import load_run

WARPS = 4
NEAR_BYTES = 32768


def _value(e: Estimate, scale: float, digits: int) -> str:
    if e.value is None:
        return "-"
    if e.low is None or e.high is None:
        return f"{e.value / scale:.{digits}f}"
    return f"{e.value / scale:.{digits}f} ± {(e.high - e.low) / 2 / scale:.{digits}f}"


def _over_processes(rows: pd.DataFrame, column: str) -> str:
    """Mean over processes of the median over repetitions, with the half width of its 95 % interval."""
    each = rows.groupby("process")[column].median().dropna().to_numpy()
    if each.size == 0:
        return "-"
    reach = student.ppf(0.975, each.size - 1) * each.std(ddof=1) / np.sqrt(each.size) if each.size > 1 else np.nan
    return f"{each.mean():.0f} ± {reach:.0f}"


def main(folder: str, pair: str = "0>1") -> None:
    """Print one row per flavour and layout, all SMs with four warps."""
    run = load_run(folder)
    samples = run.samples()
    source, destination = map(int, pair.split(">"))
    good = samples[(samples["status"] == "ok") & (samples["kind"] == "measure")]
    good = good[(good["source"] == source) & (good["destination"] == destination) & (good["warps"] == WARPS)]
    good = good[good["producers"] == run.manifest.node.gpus[source].sm_count]
    wire_file = Path(folder) / "wire.json"
    wires = json.loads(wire_file.read_text())["rows"] if wire_file.exists() else []
    wire = {(w["flavour"], w["layout"]): w["per_payload"].get("raw_sent") for w in wires if w["pair"] == pair}
    models = {(p.flavour, p.layout): p for p in fit_run(run).pairs if p.pair == pair}
    print("| flavour | layout | T0, cycles per KiB | R, GB/s | Q per SM, kB | law's median error, % | burst, bytes per SM |", end="")
    print(" source reusable | known done | fence.sys done | raw bytes on the link per byte |")
    print("|" + "---|" * 11)
    for flavour in FLAVOURS:
        for layout in LAYOUTS:
            model = models.get((flavour, layout))
            entry = None if model is None else model.find(int(good["producers"].iloc[0]), WARPS)
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
                "-" if entry.median_error is None else f"{100 * entry.median_error:.1f}",
                str(near),
                _over_processes(at, "reusable_mean_cycles"),
                _over_processes(at, "completed_mean_cycles"),
                _over_processes(at, "drain_mean_cycles"),
                "-" if not raw else f"{np.mean(raw):.3f}",
            ]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
