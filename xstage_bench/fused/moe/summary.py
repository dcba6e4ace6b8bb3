"""The few numbers of each row that scripts read: ``summary.json`` of docs/moe.md, and the bars over the whole suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .suite import best_wave, is_wave

#: Shapes that the paper measures; the eighth is Keye-VL-2.0.
PAPER = ("qwen3.5", "hy3", "dsv4-flash", "glm-5.2", "mimo-v2.5", "dit-moe", "dsv4-pro")


def summarise(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"rows": [...], "overall": [...]}`` of a document of `run.run`; the keys that DESIGN.md fixes, and some more."""
    rows = [_row(row) for row in document["rows"]]
    groups = sorted({(row["combine"], row["dtype"]) for row in rows})
    return {"rows": rows, "overall": [_overall(rows, combine, dtype) for combine, dtype in groups]}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    us = {name: v["arrived_us"]["value"] for name, v in row["variants"].items()}
    wave = best_wave(row)
    alone = min(us["chosen alone"], us["wave alone"])
    searched = {name: value for name, value in us.items() if name.startswith("search ") or is_wave(name)}
    return {
        "shape": row["shape"],
        "dtype": row["dtype"],
        "combine": row["combine"],
        "routing": row["routing"],
        "tokens_per_rank": row["tokens_per_rank"],
        "ep": row["ep"],
        "emulated": row["emulated"],
        "alone_us": us["chosen alone"],
        "local_us": us["chosen local"],
        "wave_us": us[wave],
        "interleaved_us": us["chosen"],
        "bulk_rows_us": us.get("chosen bulk rows"),
        "bound_us": max(alone, row["drain_us"]),
        "skeleton_gain": row.get("skeleton_gain"),
        "predicted_gain": row.get("predicted_gain"),
        "unfused_us": None if row["unfused_us"] is None else row["unfused_us"]["value"],
        "gain": us[wave] / us["chosen"],
        "order": row["chosen"],
        "experts_per_wave": int(wave.split()[1]),
        "drain_us": row["drain_us"],
        "tflops_alone": row["flops"] / alone / 1e6,
        "regret": us["chosen"] / min(*searched.values(), us["chosen"]) - 1 if any(n.startswith("search ") for n in us) else None,
    }


def _overall(rows: Sequence[Mapping[str, Any]], combine: str, dtype: str) -> dict[str, Any]:
    mine = [row for row in rows if (row["combine"], row["dtype"]) == (combine, dtype)]
    light = [row for row in mine if row["drain_us"] < row["alone_us"]]
    paper = [row for row in mine if row["shape"] in PAPER]
    regrets = [row["regret"] for row in mine if row["regret"] is not None]
    return {
        "combine": combine,
        "dtype": dtype,
        "n": len(mine),
        "geomean_gain": _geomean(mine),
        "largest_gain": max(row["gain"] for row in mine),
        "smallest_gain": min(row["gain"] for row in mine),
        "geomean_gain_of_the_papers_shapes": _geomean(paper) if paper else None,
        "median_over_alone_where_compute_limits": float(np.median([row["interleaved_us"] / row["alone_us"] for row in light]))
        if light
        else None,
        "median_over_bound": float(np.median([row["interleaved_us"] / row["bound_us"] for row in mine])),
        "median_regret": float(np.median(regrets)) if regrets else None,
        "largest_regret": max(regrets) if regrets else None,
    }


def _geomean(rows: Sequence[Mapping[str, Any]]) -> float:
    return float(np.exp(np.mean(np.log([row["gain"] for row in rows]))))
