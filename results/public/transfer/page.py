"""Public timings of GEMMs whose epilogue stores to a peer, predicted for GPUs that nobody here has measured; nothing is fitted to them.

``page.py predict CSV FILE`` makes the predictions from the cases and their local times alone; it does not read the remote ones.
``page.py [write]`` scores predicted.json against epilogue.csv.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, per_cent, table

from xstage_bench.io.json_file import encode_json, read_json
from xstage_bench.machine.facts import StageFacts
from xstage_bench.machine.gpus import entries, reference_gpu
from xstage_bench.machine.scaling import completed_stage
from xstage_bench.model.document import Model
from xstage_bench.model.scaled_node import registered_model
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads.rates import machine_of

#: The entries of the registry that stand for the GPUs of the recording.
NODES = {"H800": "h800-nv8", "H20": "h20-nv18"}
#: CUTLASS's tile, and warps that store it.
TILE_M, TILE_N, WARPS, ELEMENT_BYTES = 128, 256, 8, 2
#: Assumed of the epilogue from registers, whose warp-stores write 8 rows of 16 bytes: a packet is a header of 16 bytes and payload in units
#: of 32, where whole lines take 1.12 bytes on the wire for each.
SCATTERED = 1.12 / ((16 + 32) / 16)


def cases(path: Path) -> list[dict[str, str]]:
    """Return the rows of a recording."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def predict(source: str, target: str) -> None:
    """Predict every case from its local time."""
    rows = []
    for row in cases(Path(source)):
        model = registered_model(NODES[row["gpu"]])
        m, n, k = (int(row[x]) for x in "mnk")
        local_us = float(row["local_us"])
        if local_us == 1.0:  # the recording gives ratios: the tensor cores' own time stands in
            local_us = 2 * m * n * k / (machine_of(model).flops_per_sm("bf16") * machine_of(model).sms) * 1e6
        bound = m * n * ELEMENT_BYTES / (_link(model) * (SCATTERED if row["epilogue"] == "registers" else 1.0)) * 1e-3
        rows.append(
            {key: row[key] for key in ("gpu", "m", "n", "k", "epilogue")}
            | {"ratio": remote_us(_scattered(model) if row["epilogue"] == "registers" else model, m, n, local_us) / local_us}
            | {"bandwidth_ratio": max(1.0, bound / local_us)}
        )
    Path(target).write_bytes(encode_json({"schema_version": 1, "rule": "registered_model", "rows": rows}))


def remote_us(model: Model, m: int, n: int, local_us: float) -> float:
    """Return the predicted time of the GEMM with all of its output at the peer: the local time and what the stores add."""
    tiles = -(-m // TILE_M) * -(-n // TILE_N)
    sms = machine_of(model).sms
    producers = min(sms, tiles)
    waves = -(-tiles // producers)
    each = np.full(tiles, round(local_us * model.sm_clock_mhz / waves))
    producer = np.sort(np.arange(tiles) % producers)
    size = np.full(tiles, min(m, TILE_M) * TILE_N * ELEMENT_BYTES)
    nothing = np.full(tiles, NONE)
    schedule = TaskSchedule(
        producers=producers, producer=producer, compute_cycles=each, bytes=size, remote_bytes=size, waits_for=nothing, signals=nothing,
        phases=("tile",), warps=WARPS, form="single", publish="relaxed",
    )  # fmt: skip
    remote, here = predict_tasks(model, schedule, twin=False), predict_tasks(model, schedule.local(), twin=False)
    return local_us + (max(remote.total_ns, remote.all_visible_ns) - here.total_ns) * 1e-3


def _link(model: Model) -> float:
    basis = model.pairs[0].node_basis
    assert basis is not None
    return basis.used["link_gb_per_s"]


def _scattered(model: Model) -> Model:
    """The same node whose link carries the small packets of the epilogue from registers."""
    pair = model.pairs[0]
    assert pair.node_basis is not None
    used = pair.node_basis.used | {"link_gb_per_s": _link(model) * SCATTERED}
    return replace(model, pairs=[replace(pair, node_basis=replace(pair.node_basis, used=used))])


def scored(folder: Path) -> list[dict[str, Any]]:
    """Return every case with its measured and predicted ratios of remote to local."""
    predicted = read_json(folder / "predicted.json", dict[str, Any], newest=1)["rows"]
    found = []
    for row, guess in zip(cases(folder / "epilogue.csv"), predicted, strict=True):
        assert all(row[key] == guess[key] for key in ("gpu", "m", "n", "k", "epilogue")), row
        measured = float(row["remote_us"]) / float(row["local_us"])
        errors = {key: guess[key] / measured - 1 for key in ("ratio", "bandwidth_ratio")}
        found.append({**guess, "measured": measured, "error": errors["ratio"], "bandwidth_error": errors["bandwidth_ratio"]})
    return found


def summary(folder: Path) -> list[list[object]]:
    """Return one line for each GPU and epilogue: median and largest error of the node model, and of the bandwidth alone."""
    lines, rows = [], scored(folder)
    for kind in dict.fromkeys((row["gpu"], row["epilogue"]) for row in rows):
        some = [row for row in rows if (row["gpu"], row["epilogue"]) == kind]
        errors = [[abs(row[key]) for row in some] for key in ("error", "bandwidth_error")]
        lines.append([*kind, len(some), *(per_cent(f(e)) for e in errors for f in (median, max))])
    return lines


def carried() -> list[list[object]]:
    """Return, for each published number of a stage, what the rules make of the reference alone, as of a GPU of its architecture."""
    lent = reference_gpu().architecture
    lines: list[list[object]] = []
    for name, entry in entries().items():
        own = entry.facts.stage
        scaled = completed_stage(msgspec.structs.replace(entry.facts, stage=StageFacts(), architecture=lent))
        for key in own.__struct_fields__:
            known, guess = getattr(own, key), getattr(scaled, key)
            if known.status == "published" and guess.value is not None:
                source = known.source.partition(":")[0]
                lines.append(
                    [
                        name,
                        f"`{key}`",
                        f"{known.value:.4g}",
                        f"{guess.value:.4g}",
                        f"{guess.value / known.value - 1:+.0%}",
                        guess.rule,
                        source,
                    ]
                )
    return lines


def tables(folder: Path) -> dict[str, str]:
    """Return the tables of README.md."""
    head = ["GPU", "epilogue", "cases", "median error", "largest", "bandwidth alone: median", "largest"]
    each = [
        [row["gpu"], row["epilogue"], row["m"], row["k"], f"{row['measured']:.2f}", f"{row['ratio']:.2f}", f"{100 * row['error']:+.0f} %"]
        for row in scored(folder)
    ]
    numbers = ["node", "number", "published", "scaled", "error", "rule", "source"]
    cells = ["GPU", "epilogue", "M", "K", "remote / local, measured", "predicted", "error"]
    return {"summary": table(head, summary(folder)), "cases": table(cells, each), "carried": table(numbers, carried())}


if __name__ == "__main__":
    main(__file__, tables, predict=predict)
