"""How much longer products take once SMs that share operands are out of step: the constants of `fused/moe/forecast.py` (docs/moe.md).

``python tools/moe_out_of_step.py predict MOE.json MODEL OUT.json``: stalls of both orders of every row with products so much longer.
``python tools/moe_out_of_step.py fit CALIBRATION.json HOLDOUT.json``: the constants from one document, and how well they do on another.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.fused.moe.build import FEWEST_STAGES, MOST_STAGES
from xstage_bench.fused.moe.forecast import OUT_OF_STEP_MOST, TileTimes, out_of_step, sent_mb_per_sm
from xstage_bench.fused.moe.layer import rows_of
from xstage_bench.fused.moe.order import order_named
from xstage_bench.fused.moe.stalls import CLOSE_US, predicted
from xstage_bench.fused.moe.suite import Case
from xstage_bench.pipeline import find_model
from xstage_bench.record.json_file import read_json, write_compact

SMS = 132
#: Between these, stalls are interpolated.
SHARES = (0.0, 0.05, 0.1, OUT_OF_STEP_MOST)
#: Beyond, a row counts no more: single readings are far off for reasons of their own, us.
FAR_US = 3.0
#: Per MB, that are tried.
GROWTHS = np.arange(0.0, 0.06, 0.0005)
model_at = cache(find_model)  # once in each process


def predict(path: str, model: str, out: str) -> None:
    """Write one entry per row and order."""
    document = read_json(Path(path), dict[str, Any])
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = list(chain.from_iterable(pool.map(partial(_predict, model, document["tiles"]), document["rows"])))
    what = "stalls predicted with longer products, beside measured"
    write_compact(Path(out), {"schema_version": 1, "what": what, "shares": SHARES, "rows": rows})


def _predict(model: str, tiles: dict[str, Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    case = Case(row["shape"], row["dtype"], row["routing"], row["tokens_per_rank"], row["ep"])
    rows, times, loaded = rows_of(case.layer, 0), TileTimes(**tiles[case.name]), model_at(Path(model))
    stages, out = row.get("stages", MOST_STAGES), []  # before rows said so it was the longest
    for which, name in (("wave", row["stalls"]["wave"]["order"]), ("chosen", row["chosen"])):
        stalls = (predicted(loaded, case.layer, rows, times, row["combine"], SMS, order_named(name), share, stages) for share in SHARES)
        out.append(
            {
                "key": row["key"],
                "which": which,
                "sent_mb_per_sm": sent_mb_per_sm(case.layer, rows, 0, row["combine"], SMS),
                "stages": stages,
                "measured_us": row["stalls"][which]["measured_us"],
                "predicted_us": [one["predicted_us"] for one in stalls],
            }
        )
    return out


def fit(calibration: str, holdout: str) -> None:
    """Print the constants that bring most stalls of the first document near, and how near they bring those of the second one."""
    one, other = (read_json(Path(path), dict[str, Any]) for path in (calibration, holdout))
    per_mb = fitted(one)
    print("products take longer for each MB that an SM sends: " + ", ".join(f"{c:.2%} with {n} stages" for n, c in per_mb.items()))
    for name, document in (("calibration", one), ("hold-out", other)):
        before, after = (float(np.mean(np.abs(off_us(document, c)) < CLOSE_US)) for c in (dict.fromkeys(per_mb, 0.0), per_mb))
        print(f"{name}: {before:.1%} of the stalls within {CLOSE_US:g} us without, {after:.1%} with it")
    again = {(row["key"], row["which"]): row["measured_us"] for row in one["rows"]}
    same = [row["measured_us"] - again[row["key"], row["which"]] for row in other["rows"] if (row["key"], row["which"]) in again]
    print(f"the same {len(same)} readings of both: {np.mean(np.abs(same) < CLOSE_US):.1%} within {CLOSE_US:g} us of each other")


def fitted(document: dict[str, Any]) -> dict[int, float]:
    """Fit the growth per MB for each ring, robustly: a reading that is farther off than `FAR_US` counts no more than that."""
    found = {}
    for stages in (FEWEST_STAGES, MOST_STAGES):
        mine = {**document, "rows": [row for row in document["rows"] if row["stages"] == stages]}
        loss = [np.minimum(np.abs(off_us(mine, {stages: c})), FAR_US).mean() for c in GROWTHS]
        found[stages] = float(GROWTHS[int(np.argmin(loss))])
    return found


def off_us(document: dict[str, Any], per_mb: Mapping[int, float]) -> NDArray[np.float64]:
    """Measured less predicted of every entry."""
    told = [
        np.interp(out_of_step(row["sent_mb_per_sm"], row["stages"], per_mb), document["shares"], row["predicted_us"])
        for row in document["rows"]
    ]
    return np.array([row["measured_us"] for row in document["rows"]]) - np.array(told)


if __name__ == "__main__":
    {"predict": predict, "fit": fit}[sys.argv[1]](*sys.argv[2:])
