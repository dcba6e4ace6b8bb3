"""Print the tables of docs/moe.md from the document of `xstage fused moe --suite`, and write its summary.

``python tools/moe_tables.py MOE.json [SUMMARY.json]``
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from xstage_bench.io.json_file import read_json, write_compact
from xstage_bench.kernels.moe.build import FEWEST_STAGES, MOST_STAGES
from xstage_bench.kernels.moe.suite import arrived_us
from xstage_bench.kernels.moe.summary import summarise, usual_variant

Row = dict[str, Any]
ORDERS = ("wave", "chosen")
#: What the page calls the variants that differ from the chosen order in one thing.
OPTIONS = {
    "chosen fp8 rows": "FP8 result rows",
    "chosen presum": "sums before sending",
    "dynamic": "dynamic claiming",
    "paced": "pacer",
    "chosen staggered": "staggered SMs",
    "chosen bulk rows": "bulk row stores",
    "chosen publish release": "published by the storing warpgroup",
    "chosen publish elsewhere": "published by another warp",
    "chosen publish bulk": "bulk stores, released by their warps",
    "chosen slots by token": "slots by token",
    "chosen dispatch": "pulls on",
}


def main(path: str, summary: str | None = None) -> None:
    """Read the document and print the tables."""
    document = read_json(Path(path), dict[str, Any])
    if summary is not None:
        write_compact(Path(summary), summarise(document))
    print("\n\n".join("\n".join(part) for part in tables(document)))


def tables(document: Row) -> list[list[str]]:
    """Return the lines of each table."""
    summary, rows = summarise(document), document["rows"]
    of_summary = [_overall(summary["overall"]), _regimes(summary["rows"]), _gains(summary["rows"])]
    return [*of_summary, _options(rows), _rings(rows), _dispatch(rows), _stalls(rows)]


def _head(*cells: str) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|" + "---|" * len(cells)]


#: Drain over compute: V/R over the same tiles alone, from which to which.
REGIMES = (0.0, 0.25, 0.5, 0.8, 1.25, 1.6, np.inf)
#: What is said of all configurations of a type and a width of a result row: name, key of the summary, and whether it is a share.
OVERALL = (
    ("gain of the model's order over Expert-Wave with its best N: geomean", "geomean_gain", False),
    ("largest", "largest_gain", False),
    ("smallest", "smallest_gain", False),
    ("geomean, the paper's seven shapes", "geomean_gain_of_the_papers_shapes", False),
    ("rows whose order keeps waves", "waves_kept", False),
    (
        "gain of interleaving over Expert-Wave with the public kernel's N, 1 where waves are kept: geomean",
        "geomean_interleaving_gain_over_usual_wave",
        False,
    ),
    ("largest", "largest_interleaving_gain_over_usual_wave", False),
    ("smallest", "smallest_interleaving_gain_over_usual_wave", False),
    ("the model's order over the same, waves of another N included: geomean", "geomean_gain_over_usual_wave", False),
    ("largest", "largest_gain_over_usual_wave", False),
    ("smallest", "smallest_gain_over_usual_wave", False),
    ("over the same tiles alone where V/R is less, median", "median_over_alone_where_compute_limits", False),
    ("over the bound max(alone, V/R), median", "median_over_bound", False),
    ("of the replayed skeleton's gain, median", "median_of_skeleton_gain", False),
    ("rows with a skeleton that reach 0.9 of its gain", "reach_0.9_of_skeleton_gain", True),
    ("stalls predicted within 1 us", "stalls_within_1_us", True),
    ("choice over the best of a search (12 cases), median", "median_regret", True),
    ("worst", "largest_regret", True),
)


def _overall(groups: list[Row]) -> list[str]:
    out = _head("", *(f"{g['dtype']}, {g['combine']} rows" for g in groups))
    for name, key, share in OVERALL:
        out.append(f"| {name} | " + " | ".join(_number(g[key], share) for g in groups) + " |")
    return out


def _number(value: float | None, share: bool) -> str:
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


def _regimes(rows: list[Row]) -> list[str]:
    """Medians by how much drain there is for the compute: both orders over the bound, and what the model's order gains."""
    out = _head("V/R over alone", "n", "waves over the bound", "the model's order over the bound", "gain")
    for least, most in pairwise(REGIMES):
        mine = [row for row in rows if least <= row["drain_us"] / row["alone_us"] < most]
        if mine:
            found = [[row["wave_us"] / row["bound_us"], row["interleaved_us"] / row["bound_us"], row["gain"]] for row in mine]
            name = f"{least:g} to {most:g}" if np.isfinite(most) else f"{least:g} and more"
            out.append(f"| {name} | {len(mine)} | " + " | ".join(f"{value:.3f}" for value in np.median(found, axis=0)) + " |")
    return out


def _gains(rows: list[Row]) -> list[str]:
    """Gain over Expert-Wave at its best N, and time over the bound, of every configuration."""
    columns = [(routing, tokens) for routing in ("balanced", "skewed") for tokens in sorted({row["tokens_per_rank"] for row in rows})]
    out = _head("shape", "type, result rows", *(f"{routing}, {tokens}" for routing, tokens in columns))
    found = {(r["shape"], r["dtype"], r["combine"], r["routing"], r["tokens_per_rank"]): r for r in rows}
    for shape, dtype, combine in dict.fromkeys(key[:3] for key in found):
        mine = [found[shape, dtype, combine, *column] for column in columns]
        cells = [f"{r['gain']:.2f} ({r['interleaved_us'] / r['bound_us']:.2f})" for r in mine]
        out.append("| " + " | ".join([shape, f"{dtype}, {combine}", *cells]) + " |")
    return out


def _options(rows: list[Row]) -> list[str]:
    out = _head("over the chosen order", "n", "bf16: geomean", "least to most", "FP8: geomean", "least to most")
    measured = {name for row in rows for name in row["variants"]}
    for variant, name in ((variant, name) for variant, name in OPTIONS.items() if variant in measured):
        cells, n = [], 0
        for dtype in ("bf16", "fp8"):
            ratios = [us[variant] / us["chosen"] for row in rows if row["dtype"] == dtype and variant in (us := arrived_us(row))]
            n += len(ratios)
            cells += [f"{geometric_mean(ratios):.3f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        out.append(f"| {name} | {n} | " + " | ".join(cells) + " |")
    return out


def _rings(rows: list[Row]) -> list[str]:
    """Times with the other ring over those with the one that the kernel takes: of the chosen order, and with nothing stored."""
    rows = [row for row in rows if "chosen other ring" in row["variants"]]
    kinds = sorted({(row["dtype"], row["combine"]) for row in rows}, key=lambda kind: kind[::-1])
    out = _head("tokens", "stages", "n", *(f"{dtype}, {combine} rows" for dtype, combine in kinds), "nothing stored") if rows else []
    for tokens, stages in sorted({(row["tokens_per_rank"], row["stages"]) for row in rows}):
        mine = [row for row in rows if (row["tokens_per_rank"], row["stages"]) == (tokens, stages)]
        over = [us["chosen other ring"] / us["chosen"] for us in map(arrived_us, mine)]
        cells = [[o for row, o in zip(mine, over, strict=True) if (row["dtype"], row["combine"]) == kind] for kind in kinds]
        cells.append(
            [us["chosen alone other ring"] / us["chosen alone"] for us in map(arrived_us, mine) if "chosen alone other ring" in us]
        )
        other = FEWEST_STAGES + MOST_STAGES - stages
        out.append(
            f"| {tokens} | {other} over {stages} | {len(mine)} | "
            + " | ".join(f"{geometric_mean(c):.3f}" if c else "-" for c in cells)
            + " |"
        )
    return out


def _dispatch(rows: list[Row]) -> list[str]:
    """What interleaving gains over Expert-Wave in its usual form, with pulls and without; 1 where the order keeps waves."""
    out = _head(
        "type, routing",
        "interleaving gains, pulls off",
        "pulls on",
        "pulls cost waves",
        "pulls cost the chosen order",
        "same order alone: gain",
    )
    measured = [row for row in rows if "wave dispatch" in row["variants"]]
    for dtype in ("bf16", "fp8"):
        for routing in ("balanced", "skewed"):
            mine = [row for row in measured if (row["dtype"], row["routing"]) == (dtype, routing)]
            found = []
            for row in mine:
                us, usual = arrived_us(row), usual_variant(row)
                on, off = us["wave dispatch"], us[usual]
                gains = (off / us["chosen"], on / us["chosen dispatch"], us["wave alone"] / us["chosen alone"])
                without, pulled, alone = gains if row["chosen"].startswith("interleaved") else (1.0, 1.0, 1.0)
                found.append((without, pulled, on / off, us["chosen dispatch"] / us["chosen"], alone))
            out.append(f"| {dtype}, {routing} | " + " | ".join(f"{geometric_mean(x):.3f}" for x in zip(*found, strict=True)) + " |")
    return out


def _stalls(rows: list[Row], tokens: int = 2048, routing: str = "balanced") -> list[str]:
    """Stalls and store spans under both orders, us per Linear-2 tile: waves / model's order (predicted)."""
    out = _head("shape", "type", "result rows", "stall", "store span, median", "p90", "of the stall, within tiles")
    for row in rows:
        if (row["tokens_per_rank"], row["routing"]) == (tokens, routing) and row.get("stalls"):
            both = [row["stalls"][which] for which in ORDERS]
            stall = _pair(both, lambda one: f"{one['measured_us']:.2f}" + (f" ({p:.2f})" if (p := one["predicted_us"]) is not None else ""))
            spans = [_pair(both, lambda one, q=q: f"{one['store_span_us'][q]:.1f}") for q in ("median", "p90")]
            out.append(
                "| "
                + " | ".join(
                    [row["shape"], row["dtype"], row["combine"], stall, *spans, _pair(both, lambda one: f"{one['within_us']:.2f}")]
                )
                + " |"
            )
    return out


def _pair(both: Sequence[Row], text: Callable[[Row], str]) -> str:
    return " / ".join(text(one) for one in both)


if __name__ == "__main__":
    main(*sys.argv[1:])
