"""Tables of flavours and layouts: a run of the probes ``flavours``, ``layouts`` and their hold-outs, and what lies beside it.

``page.py [write] [FOLDER]``; ``page.py record OUT.json [FLAVOUR]``: what each flavour and layout puts on the link per byte (wire.json).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import half, main, number, origin, per_cent, table

from xstage_bench.io.json_file import read_json
from xstage_bench.measure.copies import best_stores, load_copies
from xstage_bench.model.document import load_model, load_validation
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

WARPS, NEAR_BYTES, PAIR = 4, 32768, "0>1"
Row = dict[str, str]
#: Of the whole table, those that the page shows of contiguous stores.
SHORT = ("flavour", "T0, cycles per KiB", "R, GB/s", "Q per SM, kB", "source free", "visible", "wire bytes per byte", "median, %", "p95, %")


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` is for those who want every layout's numbers."""
    rows = costs(folder)
    errors = errors_of(folder)
    plain = [row | errors.get(row["flavour"], {}) for row in rows if row["layout"] == "contiguous"]
    return {
        "when": origin(read_json(folder / "manifest.json", dict[str, Any])),
        "flavours": table(SHORT, ([row.get(name) for name in SHORT] for row in plain)),
        "layouts": layouts(rows),
        "copies": copies(folder) if (folder / "copies.json").exists() else "",
        "all": table(rows[0], (row.values() for row in rows)),
    }


def layouts(rows: list[Row]) -> str:
    """R of each layout, GB/s, and what its stores cost to issue."""
    of = {(row["flavour"], row["layout"]): row for row in rows}
    chosen = [f for f in dict.fromkeys(row["flavour"] for row in rows) if sum((f, y) in of for y in LAYOUTS) > 2]
    names = [y for y in LAYOUTS if any((f, y) in of for f in chosen)]

    def cell(flavour: str, layout: str) -> str | None:
        row = of.get((flavour, layout))
        return row and f"{row['R, GB/s'].split(' ')[0]}; {row['T0, cycles per KiB'].split(' ')[0]}"

    return table(("R, GB/s; T0, cycles per KiB", *names), ((f, *(cell(f, y) for y in names)) for f in chosen))


def _mean(each: np.ndarray) -> str:
    """Mean over processes with the half width of its 95 % interval."""
    if each.size == 0:
        return "-"
    reach = student.ppf(0.975, each.size - 1) * each.std(ddof=1) / np.sqrt(each.size) if each.size > 1 else 0.0
    return half({"value": each.mean(), "low": each.mean() - reach, "high": each.mean() + reach})


def _over_processes(rows: pd.DataFrame, column: str) -> str:
    return _mean(rows.groupby("process")[column].median().dropna().to_numpy())


def _rows_of(path: Path) -> list[dict[str, Any]]:
    return list(read_json(path, dict[str, Any])["rows"]) if path.exists() else []


def _arrived(rows: list[dict[str, Any]], flavour: str, layout: str, column: str, *, alone: bool) -> str:
    mine = [r for r in rows if (r["part"], r["pair"], r["flavour"], r["layout"]) == ("arrival", PAIR, flavour, layout)]
    return _mean(np.array([r[column]["median"] for r in mine if (r["producers"] == 1) == alone and r.get(column)]))


def costs(folder: Path) -> list[Row]:
    """One row per flavour and layout, all SMs with four warps; three times are cycles after the end of issue of the burst named."""
    run = load_run(folder)
    samples = run.samples()
    source, destination = map(int, PAIR.split(">"))
    good = samples[(samples["status"] == "ok") & (samples["kind"] == "measure") & (samples["start"] == "isolated")]
    good = good[(good["source"] == source) & (good["destination"] == destination) & (good["warps"] == WARPS)]
    good = good[(good["producers"] == run.manifest.node.gpus[source].sm_count) & good["probe"].isin(["flavours", "layouts"])]
    wire = {(w["flavour"], w["layout"]): w["per_payload"].get("raw_sent") for w in _rows_of(folder / "wire.json") if w["pair"] == PAIR}
    arrival = _rows_of(folder / "arrival.json.gz")
    model = load_model(folder / "model.json.gz")
    out: list[Row] = []
    for flavour, layout in ((f, y) for f in FLAVOURS for y in LAYOUTS):
        entry = None if (found := model.find(PAIR, flavour, layout)) is None else found.find(int(good["producers"].iloc[0]), WARPS)
        if entry is None:
            continue
        mine = good[(good["flavour"] == flavour) & (good["layout"] == layout)]
        sizes = mine["bytes"].unique()
        near = int(sizes[np.argmin(np.abs(sizes - NEAR_BYTES))])
        at, raw = mine[mine["bytes"] == near], wire.get((flavour, layout))
        out.append(
            {
                "flavour": flavour,
                "layout": layout,
                "T0, cycles per KiB": half(entry.t0_cycles, 1, entry.bytes / 1024),
                "R, GB/s": half(entry.drain_gb_per_s),
                "Q per SM, kB": half(entry.capacity_bytes_per_producer, 1, 1000),
                "burst, bytes per SM": str(near),
                "source free": _over_processes(at, "reusable_mean_cycles"),
                "`wait_group`": _over_processes(at, "completed_mean_cycles"),
                "visible": _arrived(arrival, flavour, layout, "visible_cycles", alone=False),
                "visible, slowest SM": _arrived(arrival, flavour, layout, "slowest_visible_cycles", alone=False),
                "one operation alone, visible": _arrived(arrival, flavour, layout, "visible_cycles", alone=True),
                "wire bytes per byte": number(np.mean(raw) if raw else None, 3),
            }
        )
    return out


def errors_of(folder: Path) -> dict[str, Row]:
    """Return the node model's errors on held-out schedules, the worse direction, by flavour."""
    found: dict[str, list[tuple[float, float]]] = {}
    for score in load_validation(folder / "validation.json.gz").models:
        if score.model == "node":
            issue = score.issue_time
            found.setdefault(score.flavour, []).append((issue.median_error or np.nan, issue.p95_error or np.nan))
    return {f: dict(zip(SHORT[-2:], (number(v, 1, 0.01) for v in np.max(each, axis=0)), strict=True)) for f, each in found.items()}


def copies(folder: Path) -> str:
    """What whole copies and some flavours sustain."""
    rows = load_copies(folder)
    wanted = {"copy_engine": "copy engine", "copy_kernel": "copy kernel, all SMs", "st.v4": "16-byte stores"}
    best = best_stores(rows, PAIR)
    lines = []
    for r in rows:
        if r.pair == PAIR and (r.what in wanted or r == best):
            rate = number(r.gb_per_s, 1) + (f" ± {r.half_width:.1f}" if r.half_width is not None else "")
            lines.append((wanted.get(r.what, f"{r.what}, the best flavour"), rate, per_cent(r.share_of_line)))
    return table(("what", "GB/s", "of the raw rate"), lines)


def record(out: str, only: str = "") -> None:
    """Measure bytes on the link: all flavours contiguous, some in every layout, both directions; `only`: those whose name starts so."""
    from wire import measure_wire

    from xstage_bench.device.cuda.device import CudaDevice
    from xstage_bench.measure.arrival import cases

    device = CudaDevice()
    node = device.node()
    chosen = [(name, layout) for name, layout in cases(node.flavours) if name != "st.v4.release.sys" and name.startswith(only)]
    rows = [{"pair": f"{a}>{b}", **dataclasses.asdict(wire)} for a, b in node.pairs for wire in measure_wire(device, a, b, chosen)]
    gpus = [{"name": g.name, "uuid": g.uuid} for g in node.gpus]
    device.close()
    Path(out).write_text(json.dumps({"gpus": gpus, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(__file__, tables, record=record)
