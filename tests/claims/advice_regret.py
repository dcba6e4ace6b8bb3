"""What the predictor's choice of a lead costs against the best of all that were replayed, and whether the gain is as predicted.

python tests/claims/advice_regret.py results/h200-x2/profile/model.json results/h200-x2/replay/skeleton-block-spin/replay.json.gz

For every shape, type and number of tokens in the replay: the fastest by prediction among Expert-Wave order and the leads, its measured time
over the fastest measured one (regret), and its gain over Expert-Wave, predicted and measured.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.measure.replay_document import read_replay
from xstage_bench.model.document import Model, load_model
from xstage_bench.model.tasks.predict import predict_tasks_all
from xstage_bench.workloads.moe import moe_tasks

_NAME = re.compile(r"(?P<shape>.+)-(?P<dtype>bf16|fp8)-(?P<tokens>\d+)-(?P<order>wave|lead[\d.]+)$")


def replayed(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Rows of a replay of Expert-Wave order and leads, by shape, type and tokens, then by order; each says how it computed."""
    out: dict[tuple[str, str, int], dict[str, Any]] = {}
    document = read_replay(path)
    for row in ({**row, "compute": document["compute"]} for row in document["rows"]):
        found = _NAME.match(row["schedule"])
        if found is not None:
            out.setdefault((found["shape"], found["dtype"], int(found["tokens"])), {})[found["order"]] = row
    return out


def judge(model: Model, shape: str, dtype: str, tokens: int, rows: dict[str, Any]) -> tuple[str, float, float, float]:
    """Return the order chosen, its regret, and its gain over Expert-Wave predicted and measured."""
    orders = list(rows)
    schedules = [
        moe_tasks(shape, tokens_per_rank=tokens, ep=8, dtype=dtype)
        if order == "wave"
        else moe_tasks(shape, tokens_per_rank=tokens, ep=8, dtype=dtype, order="interleaved", lead=float(order.removeprefix("lead")))
        for order in orders
    ]
    for order, schedule in zip(orders, schedules, strict=True):
        if schedule.key() != rows[order]["key"]:
            raise ValueError(f"{shape} {dtype} {tokens} {order}: another schedule was replayed")
    clock, compute = rows["wave"]["sm_clock_mhz"]["value"], rows["wave"]["compute"]
    predicted = np.array([p.total_ns for p in predict_tasks_all(model, schedules, sm_clock_mhz=clock, compute=compute)])
    measured = np.array([rows[order]["total_us"]["value"] for order in orders])
    wave, chosen = orders.index("wave"), int(np.argmin(predicted))
    regret = float(measured[chosen] / measured.min() - 1)
    return orders[chosen], regret, float(predicted[wave] / predicted[chosen]), float(measured[wave] / measured[chosen])


def main(model: str, replay: str) -> None:
    """Print one line for each shape, type and size, and the summary."""
    loaded = load_model(Path(model))
    regrets, apart = [], []
    print("| shape | tokens | chosen | regret | gain predicted | gain measured |\n|---|---|---|---|---|---|")
    for (shape, dtype, tokens), rows in replayed(Path(replay)).items():
        chosen, regret, predicted, measured = judge(loaded, shape, dtype, tokens, rows)
        regrets.append(regret)
        apart.append(abs(predicted - measured))
        print(f"| {shape} {dtype} | {tokens} | {chosen} | {regret:.1%} | {predicted:.3f} | {measured:.3f} |")
    print(
        f"\nn = {len(regrets)}; regret median {np.median(regrets):.1%}, worst {max(regrets):.1%}; gain apart by {np.median(apart):.4f}",
        end="",
    )
    print(f" median, {max(apart):.4f} at most")


if __name__ == "__main__":
    main(*sys.argv[1:])
