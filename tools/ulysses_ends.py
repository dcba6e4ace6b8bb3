"""How far apart the SMs end an attention of which nothing is sent, and what the forecast makes of it (docs/ulysses.md).

``python tools/ulysses_ends.py measure ENDS.json.gz``: on one GPU, half a minute: a rank's heads by themselves, for the cases of the page.
``python tools/ulysses_ends.py show ENDS.json.gz ULYSSES.json.gz ...``: residuals of recorded cases, predicted with these ends and without.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from ulysses_table import within_bar

from xstage_bench.fused.ulysses.attention import alone_of
from xstage_bench.fused.ulysses.document import read_document
from xstage_bench.fused.ulysses.forecast import TileTimes, add_forecasts
from xstage_bench.fused.ulysses.problem import Placing, Problem
from xstage_bench.fused.ulysses.run import best_build, cases_of
from xstage_bench.fused.ulysses.summary import chosen_of, summarise
from xstage_bench.model.document import Model
from xstage_bench.pipeline import find_model
from xstage_bench.record.json_file import read_json, write_compact

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "results" / "h200-x2" / "2026-11-29-profile"
#: Attention alone, us: what is shorter is judged, and measured up to twice that.
SHORT_US, TFLOP_PER_US = 2000.0, 700e-6
LENGTHS = ("qwen-image-1328", (6784, 6888, 6912))
Row = dict[str, Any]


def measure(out: str) -> None:
    """Stamp each case once alone."""
    from xstage_bench.environment import snapshot
    from xstage_bench.fused.ulysses.gpu import Gpu
    from xstage_bench.fused.ulysses.rig import Rig
    from xstage_bench.fused.ulysses.variants import stamped

    gpu, rows = Gpu(0), []
    shape, seqs = LENGTHS
    for case in (*cases_of((), (2, 4, 8))[0], *cases_of((shape,), (2, 8), seqs)[0]):
        p = case.problem()
        if p.flops / 1e12 > 2 * SHORT_US * TFLOP_PER_US:
            continue
        alone = Problem(p.local_heads, p.local_kv_heads, p.head_dim, p.seq, 1, p.name)
        rig = Rig({0: gpu}, Placing(alone, (0,)), 0)
        late = {}
        for store in ("st.v4", "bulk"):
            stamps = stamped(rig, best_build(case.head_dim, store, case.seq, p.local_heads, gpu.sms), None)
            late[store] = TileTimes.of(stamps, min(gpu.sms, stamps.shape[0])).late_us
        rig.close()
        rows.append({"shape": case.shape, "seq": case.seq, "sp": case.sp, "late_us": late})
    write_compact(Path(out), {"schema_version": 1, "kind": "measured", "environment": snapshot(), "rows": rows})


def show(ends: str, *paths: str) -> None:
    """Print each case and how many are within the bar."""
    late = {(e["shape"], e["seq"], e["sp"]): e["late_us"] for e in read_json(Path(ends), Row)["rows"]}
    model = find_model(MODEL)
    print("| attention | SMs end apart, us | residual measured, us | predicted as recorded | with these ends |\n|---|---|---|---|---|")
    within = np.zeros((2, 2), dtype=int)
    for which, path in enumerate(paths):
        for row in read_document(Path(path))["rows"]:
            key = (row["shape"], row["seq"], row["sp"])
            if key in late and row["times_us"]["alone"]["value"] < SHORT_US:
                line, near = judged(model, row, late[key])
                within[min(which, 1)] += near
                print(line)
    print(f"within 30 % or 3 us, as recorded and with these ends: {within.tolist()}")


def judged(model: Model, row: Row, late: dict[str, list[float]]) -> tuple[str, list[bool]]:
    """One line of the table, and whether each prediction is within the bar; of what the recorded forecast chose."""
    (recorded,) = summarise({"rows": [row]})["rows"]
    store, order = chosen_of(row)
    variants = (alone_of(store), f"fused {store} {order}")
    tiles = {**row["tiles"][store], "compute": {**row["tiles"][store]["compute"], "late_us": late[store]}}
    times = {name: row["times_us"][name] for name in variants}
    document = {"rows": [{**row, "builds": {store: row["builds"][store]}, "tiles": {store: tiles}, "times_us": times}]}
    add_forecasts(document, model)
    (again,) = summarise(document)["rows"]
    near = [within_bar(one) for one in (recorded, again)]
    cells = [f"{one['predicted_residual_us']:.1f}{'' if ok else ' !'}" for one, ok in zip((recorded, again), near, strict=True)]
    measured = recorded["measured_residual_us"]
    interval = f"{measured['value']:.1f} ({measured['low']:.1f} to {measured['high']:.1f})"
    name = f"{row['shape']}, {row['seq']} rows, SP{row['sp']}"
    return f"| {name} | {np.std(late[store]):.2f} | {interval} | " + " | ".join(cells) + " |", near


if __name__ == "__main__":
    {"measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
