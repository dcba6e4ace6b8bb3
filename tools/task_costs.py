"""Write the constants of the recorded node, which predictions fall back to: ``python tools/task_costs.py results/h200-x2/replay``.

The instrument's constants of each way to compute come from the replay that measured most of them; how far predicted totals are off from the
skeleton's tables alone, so that the workloads can judge the interval (docs/predict.md).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.io.json_file import write_json
from xstage_bench.measure.replay_document import read_replay, summary_rows
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.tasks.costs import TaskCosts, costs_of_replay, reference_path

LEVEL = 0.9


def main(folder: str) -> None:
    """Read every replay under `folder`, whose rows must have predictions (tools/predict_replay.py)."""
    documents = {path.parent.name: read_replay(path) for path in sorted(Path(folder).glob("*/replay.json*"))}
    found = []
    for compute in ("mma", "spin"):
        mine = {name: d for name, d in documents.items() if d["compute"] == compute}
        costs = costs_of_replay(max(mine.values(), key=lambda d: len(d["instrument"])))
        found.append(replace(costs, total_error=_total_error([d for name, d in mine.items() if name.startswith("skeleton")])))
        for name, d in mine.items():
            print(compute, name, f"{_covered(found[-1], d):.3f} of the totals lie in the 90 % interval")
    write_json(reference_path(), found)


def _errors(document: dict[str, Any]) -> list[float]:
    return [row["measured_us"] / row["predicted_us"] - 1 for row in summary_rows(document) if row["predicted_us"] is not None]


def _total_error(documents: list[dict[str, Any]]) -> Estimate:
    off = np.array([x for d in documents for x in _errors(d)])
    low, high = np.quantile(off, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(
        value=float(np.median(off)),
        standard_error=None,
        low=float(low),
        high=float(high),
        level=LEVEL,
        statistic=f"measured over predicted total, less one, of {off.size} replayed schedules",
    )


def _covered(costs: TaskCosts, document: dict[str, Any]) -> float:
    low, high = costs.total_error.low or 0.0, costs.total_error.high or 0.0
    return float(np.mean([low <= x <= high for x in _errors(document)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
