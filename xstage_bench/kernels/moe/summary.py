"""The few numbers of each row that scripts read: ``summary.json`` of results/h200-x2/moe, and the bars over the whole suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np

from xstage_bench.kernels.moe.skeleton import ENOUGH
from xstage_bench.kernels.moe.stalls import CLOSE_US, pairs_of
from xstage_bench.kernels.moe.suite import arrived_us, best_wave, is_wave

#: Shapes that the paper measures; the eighth is Keye-VL-2.0.
PAPER = ("qwen3.5", "hy3", "dsv4-flash", "glm-5.2", "mimo-v2.5", "dit-moe", "dsv4-pro")


def summarise(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"rows": [...], "overall": [...]}`` of a document of `run.run`; scripts read its keys."""
    rows = [_row(row) for row in document["rows"]]
    groups = sorted({(row["combine"], row["dtype"]) for row in rows})
    return {"rows": rows, "overall": [_overall(rows, combine, dtype) for combine, dtype in groups]}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    us = arrived_us(row)
    wave, usual = best_wave(row), us.get(usual_variant(row))
    alone = min(us["chosen alone"], us["wave alone"])
    over_usual = None if usual is None else usual / us["chosen"]
    interleaves = not is_wave(row["chosen"].replace("-", " "))
    searched = {name: value for name, value in us.items() if name.startswith("search ") or is_wave(name)}
    return {
        **{key: row[key] for key in ("shape", "dtype", "combine", "routing", "tokens_per_rank", "ep", "emulated")},
        "alone_us": us["chosen alone"],
        "local_us": us["chosen local"],
        "wave_us": us[wave],
        "interleaved_us": us["chosen"],
        "bulk_rows_us": us.get("chosen bulk rows"),
        "bound_us": max(alone, row["drain_us"]),
        "skeleton_gain": row.get("skeleton_gain"),
        "skeleton_reason": row.get("skeleton_reason", "no replay was attached (tools/moe_skeletons.py attach)"),
        "predicted_gain": row.get("predicted_gain"),
        "unfused_us": None if row["unfused_us"] is None else row["unfused_us"]["value"],
        "gain": us[wave] / us["chosen"],
        "usual_wave_us": usual,
        "gain_over_usual_wave": over_usual,
        "interleaves": interleaves,
        # Waves of another number of experts may be faster than the usual ones, but that is no gain of interleaving.
        "interleaving_gain_over_usual_wave": over_usual if interleaves or over_usual is None else 1.0,
        "order": row["chosen"],
        "experts_per_wave": int(wave.split()[1]),
        "drain_us": row["drain_us"],
        "tflops_alone": row["flops"] / alone / 1e6,
        "stalls": _stalls(row),
        "regret": us["chosen"] / min(*searched.values(), us["chosen"]) - 1 if any(n.startswith("search ") for n in us) else None,
    }


def _stalls(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Stalls and store spans per Linear-2 tile under both orders, us; None in a document without them."""
    both = row.get("stalls")
    if both is None:
        return None
    return {which: {k: one[k] for k in ("measured_us", "predicted_us", "store_span_us")} for which, one in both.items()}


def _overall(rows: Sequence[Mapping[str, Any]], combine: str, dtype: str) -> dict[str, Any]:
    mine = [row for row in rows if (row["combine"], row["dtype"]) == (combine, dtype)]
    light = [row for row in mine if row["drain_us"] < row["alone_us"]]
    paper = [row for row in mine if row["shape"] in PAPER]
    regrets = [row["regret"] for row in mine if row["regret"] is not None]
    reached = [row["gain"] / row["skeleton_gain"] for row in mine if row["skeleton_gain"] is not None]
    stalls = [pair for row in mine for pair in pairs_of(row)]
    return {
        "combine": combine, "dtype": dtype, "n": len(mine), **_gains("gain", [row["gain"] for row in mine]),
        "geomean_gain_of_the_papers_shapes": geometric_mean([row["gain"] for row in paper]) if paper else None,
        **_gains("gain_over_usual_wave", [row["gain_over_usual_wave"] for row in mine]),
        "waves_kept": sum(not row["interleaves"] for row in mine),
        **_gains("interleaving_gain_over_usual_wave", [row["interleaving_gain_over_usual_wave"] for row in mine]),
        "median_over_alone_where_compute_limits": _median([row["interleaved_us"] / row["alone_us"] for row in light]),
        "median_over_bound": _median([row["interleaved_us"] / row["bound_us"] for row in mine]), "skeletons": len(reached),
        "median_of_skeleton_gain": _median(reached),
        "reach_0.9_of_skeleton_gain": float(np.mean([share >= ENOUGH for share in reached])) if reached else None, "stalls": len(stalls),
        "stalls_within_1_us": float(np.mean([abs(a - b) <= CLOSE_US for a, b in stalls])) if stalls else None,
        "median_regret": _median(regrets), "largest_regret": max(regrets, default=None),
    }  # fmt: skip


def _gains(name: str, every: Sequence[float | None]) -> dict[str, float | None]:
    known = [gain for gain in every if gain is not None]
    ends = {"geomean": geometric_mean(known) if known else None, "largest": max(known, default=None), "smallest": min(known, default=None)}
    return {f"{end}_{name}": value for end, value in ends.items()}


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def usual_variant(row: Mapping[str, Any]) -> str:
    """Return the name of the variant of Expert-Wave with as many experts as the public kernel takes; empty where it is not known."""
    order = str(((row.get("stalls") or {}).get("wave") or {}).get("order", ""))
    return order.replace("-", " ")
