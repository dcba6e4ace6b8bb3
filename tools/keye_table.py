"""The Keye-VL-2.0 table: every phase under 90 layouts, as it is and as advised; the replayed phases with what was measured.

python tools/keye_table.py results/h200-x2/2026-11-29-profile/model.json results/h200-x2/keye [REPLAY_SUMMARY.json ADVICE.json]

OUT gets keye.json; the table of docs/workloads.md goes to stdout. REPLAY_SUMMARY is what the replay of `replay_set` wrote, ADVICE what
tools/replay_set.py wrote for it: a phase whose schedule was replayed gets ``measured`` times, all others are predicted only.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from xstage_bench.model.document import load_model
from xstage_bench.record.json_file import write_json
from xstage_bench.workloads.predict import WorkloadPrediction, predict_workload
from xstage_bench.workloads.replay_set import ADVISED, replay_schedules

CASES = (("prefill", 8192), ("prefill", 32768), ("prefill", 131072), ("prefill", 262144), ("decode", 131072))
EP, SP, DTYPES = (2, 4, 8), (1, 2, 4), ("bf16", "fp8")


def measured_ns(summary: Path, advice: Path) -> dict[str, tuple[float, float]]:
    """Total and no-store time of each replayed schedule, ns, by its key; names lead from the replay's rows to the keys."""
    keys = {s.name: s.key() for s in replay_schedules()}
    for row in json.loads(advice.read_text())["schedules"]:
        keys[row["name"] + ADVISED] = row["advised_schedule"]
    rows = [r for r in json.loads(summary.read_text())["rows"] if r["schedule"] in keys and r["measured_us"] and r.get("compute") != "spin"]
    return {keys[r["schedule"]]: (r["measured_us"] * 1e3, r["no_store_us"] * 1e3) for r in rows}


def with_measured(prediction: WorkloadPrediction, measured: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the prediction's document; each phase says whether it was also measured."""
    document = prediction.document()
    for phase in document["phases"]:
        total, base = measured.get(phase["schedule"], (None, None))
        advised, _ = measured.get(phase["advised_schedule"], (None, None))
        phase |= {"measured_ns": total, "measured_without_stores_ns": base, "measured_advised_ns": advised}
        phase["status"] = "predicted" if total is None else "measured"
    return document


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    stores = sum(p["stores_ns"] * p["repeats"] for p in row["phases"])
    experts = next(p for p in row["phases"] if p["name"] == "experts")
    cells = [
        f"{row['mode']} {row['context'] // 1024}K",
        row["ep"],
        row["sp"],
        row["dtype"],
        f"{sum(p['remote_bytes'] for p in row['phases'] if p['per_layer']) * 1e-6:.1f}",
        f"{row['layer_ns'] * 1e-3:.0f} -> {row['advised_layer_ns'] * 1e-3:.0f}",
        f"{row['pass_ns'] * 1e-6:.1f} -> {row['advised_pass_ns'] * 1e-6:.1f}",
        f"{stores / row['pass_ns']:.1%}",
        f"{1 - row['advised_pass_ns'] / row['pass_ns']:.1%}",
        f"{experts['total_ns'] * 1e-3:.0f} -> {experts['advised_ns'] * 1e-3:.0f}",
        "-"
        if experts["measured_ns"] is None
        else f"{experts['measured_ns'] * 1e-3:.0f} -> {(experts['measured_advised_ns'] or experts['measured_ns']) * 1e-3:.0f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(model: str, out: str, summary: str | None = None, advice: str | None = None) -> None:
    """Predict every row, write the document, print the table."""
    loaded = load_model(Path(model))
    measured = measured_ns(Path(summary), Path(advice)) if summary and advice else {}
    known: dict[str, Any] = {}
    rows = []
    print("| pass | EP | SP | type | MB per layer | layer, us | pass, ms | due to stores | gained | experts, us | measured |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (mode, context), ep, sp, dtype in product(CASES, EP, SP, DTYPES):
        found = predict_workload(loaded, "keye-vl-2", ep=ep, sp=sp, context=context, mode=mode, dtype=dtype, known=known)  # type: ignore[arg-type]
        rows.append(with_measured(found, measured))
        print(line(rows[-1]))
    notes = sorted({note for row in rows for note in row.pop("notes")})
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "keye.json", {"schema_version": 1, "model": model, "notes": notes, "rows": rows})
    print(f"{len(rows)} rows, {len(known)} distinct schedules, {sum(k in measured for k in known)} of them replayed", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
