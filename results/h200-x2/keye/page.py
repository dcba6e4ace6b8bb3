"""The Keye-VL-2.0 table: every phase under 90 layouts, as it is and as advised; the replayed phases with what was measured.

``page.py [write] [FOLDER]`` shows keye.json.gz; ``page.py predict MODEL REPLAY.json FOLDER [SM_CLOCK_MHZ]`` makes it. REPLAY is the replay
of the workloads and of their advised forms: a phase whose schedule was replayed gets its measured times beside, all others are predicted
only.
"""

from __future__ import annotations

import gzip
import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, table

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json, read_json
from xstage_bench.measure.replay_document import read_replay
from xstage_bench.model.document import load_model
from xstage_bench.workloads.predict import predict_workload
from xstage_bench.workloads.predicted import WorkloadPrediction

CASES = (("prefill", 8192), ("prefill", 32768), ("prefill", 131072), ("prefill", 262144), ("decode", 131072))
EP, SP, DTYPES = (2, 4, 8), (1, 2, 4), ("bf16", "fp8")
DOCUMENT = "keye.json.gz"
#: Phases of the pass, not of a layer.
ONCE = ("vision", "reshard")
HEAD = ("pass", "EP", "SP", "type", "MB a layer", "layer, us", "pass, ms", "due to stores", "gained", "experts, us", "experts measured, us")


def measured_ns(replay: Path) -> dict[str, tuple[float, float]]:
    """Total and no-store time of each replayed schedule, ns, by its key."""
    rows = read_replay(replay)["rows"]
    return {r["key"]: (r["total_us"]["value"] * 1e3, r["no_store_us"]["value"] * 1e3) for r in rows if r["total_us"]["value"] is not None}


def with_measured(prediction: WorkloadPrediction, measured: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the prediction's document; each phase says whether it was also measured. What all rows say alike is said once elsewhere."""
    document = prediction.document()
    for phase in document["phases"]:
        total, base = measured.get(phase["schedule"], (None, None))
        advised, _ = measured.get(phase["advised_schedule"], (None, None))
        phase |= {"measured_ns": total, "measured_without_stores_ns": base, "measured_advised_ns": advised}
        phase["status"] = "predicted" if total is None else "measured"
        for said_elsewhere in ("note", "per_layer", "backpressure"):
            del phase[said_elsewhere]
        if phase["advised_schedule"] == phase["schedule"]:
            phase["advice"] = None
        for name, value in phase.items():
            if isinstance(value, float):
                phase[name] = round(value, 3)
    return document


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    stores = sum(p["stores_ns"] * p["repeats"] for p in row["phases"])
    experts = next(p for p in row["phases"] if p["name"] == "experts")
    replayed = "-"
    if experts["measured_ns"] is not None:
        advised = experts["measured_advised_ns"]
        replayed = f"{experts['measured_ns'] * 1e-3:.0f} -> {'-' if advised is None else f'{advised * 1e-3:.0f}'}"
    return [
        f"{row['mode']} {row['context'] // 1024}K",
        str(row["ep"]),
        str(row["sp"]),
        row["dtype"],
        f"{sum(p['remote_bytes'] for p in row['phases'] if p['name'] not in ONCE) * 1e-6:.1f}",
        f"{row['layer_ns'] * 1e-3:.0f} -> {row['advised_layer_ns'] * 1e-3:.0f}",
        f"{row['pass_ns'] * 1e-6:.1f} -> {row['advised_pass_ns'] * 1e-6:.1f}",
        f"{stores / row['pass_ns']:.1%}",
        f"{1 - row['advised_pass_ns'] / row['pass_ns']:.1%}",
        f"{experts['total_ns'] * 1e-3:.0f} -> {experts['advised_ns'] * 1e-3:.0f}",
        replayed,
    ]


def predict(model: str, replay: str, folder: str, sm_clock_mhz: str | None = None) -> None:
    """Predict every row and write the document."""
    loaded, clock = load_model(Path(model)), None if sm_clock_mhz is None else float(sm_clock_mhz)
    measured = measured_ns(Path(replay))
    known: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    phase_notes: dict[str, str] = {}
    for (mode, context), ep, sp, dtype in product(CASES, EP, SP, DTYPES):
        layout: dict[str, Any] = {"ep": ep, "sp": sp, "context": context, "mode": mode, "dtype": dtype}
        found = predict_workload(loaded, "keye-vl-2", **layout, sm_clock_mhz=clock, known=known)
        phase_notes |= {p.name: p.note for p in found.phases}
        rows.append(with_measured(found, measured))
        print(" ".join(cells(rows[-1])), file=sys.stderr, flush=True)
    notes = sorted({note for row in rows for note in row.pop("notes")})
    head = {"schema_version": 1, "model": model, "sm_clock_mhz": clock or loaded.sm_clock_mhz, "notes": notes, "phase_notes": phase_notes}
    head["replayed"] = sum(key in measured for key in known)
    write_bytes(Path(folder) / DOCUMENT, gzip.compress(encode_json({**head, "rows": rows}), 9, mtime=0))


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has every layout."""
    document = read_json(folder / DOCUMENT, dict[str, Any])
    eight = [row for row in document["rows"] if row["ep"] == max(EP)]
    return {
        "when": f"Predicted with `{document['model']}` at an SM clock of {document['sm_clock_mhz']:g} MHz.",
        "eight": table(HEAD, map(cells, eight)),
        "all": table(HEAD, map(cells, document["rows"])),
    }


if __name__ == "__main__":
    main(__file__, tables, predict=predict)
