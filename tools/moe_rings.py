"""What a ring of four stages makes of the MoE suite, and what two recordings of it say together (docs/moe.md).

``python tools/moe_rings.py FIVE.json FOUR.json``: suites with five and with four stages everywhere; the second has the other beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from xstage_bench.fused.moe.build import FEWEST_STAGES, MOST_STAGES, ring_stages
from xstage_bench.fused.moe.layer import rows_of, tiles_per_sm
from xstage_bench.fused.moe.suite import Case, arrived_us
from xstage_bench.fused.moe.summary import summarise
from xstage_bench.record.json_file import read_json

Row = dict[str, Any]
SMS = 132
KINDS = [(dtype, combine) for combine in ("bf16", "f32") for dtype in ("bf16", "fp8")]
LINES = (
    ("geomean", "geomean_gain"),
    ("largest", "largest_gain"),
    ("smallest", "smallest_gain"),
    ("over alone where V/R is less, median", "median_over_alone_where_compute_limits"),
    ("over the bound, median", "median_over_bound"),
)


def main(five: str, four: str) -> None:
    """Print both tables."""
    one, other = (read_json(Path(path), Row)["rows"] for path in (five, four))
    for table in (rings(other), together(one, other)):
        print("\n".join(table) + "\n")


def rings(rows: list[Row]) -> Iterator[str]:
    """Times with five stages over those with four, of the chosen order, by tokens: geometric means."""
    yield "| five stages over four | n | " + " | ".join(f"{dtype}, {combine} rows" for dtype, combine in KINDS) + " | nothing stored |"
    yield "|---" * (len(KINDS) + 3) + "|"
    for tokens in sorted({row["tokens_per_rank"] for row in rows}):
        mine = [(row, arrived_us(row)) for row in rows if row["tokens_per_rank"] == tokens]
        cells = []
        for kind in KINDS:
            ratios = (us["chosen other ring"] / us["chosen"] for row, us in mine if (row["dtype"], row["combine"]) == kind)
            cells.append(f"{geometric_mean(ratios):.3f}")
        alone = geometric_mean(us["chosen alone other ring"] / us["chosen alone"] for _, us in mine)
        yield f"| {tokens} tokens | {len(mine)} | " + " | ".join(cells) + f" | {alone:.3f} |"


def together(five: list[Row], four: list[Row]) -> Iterator[str]:
    """Gains over Expert-Wave with its best N in both recordings, and with each row from the one that has the ring of its length."""
    yield "| gain over Expert-Wave with its best N | stages | " + " | ".join(f"{dtype}, {combine} rows" for dtype, combine in KINDS) + " |"
    yield "|---" * (len(KINDS) + 2) + "|"
    other = {row["key"]: row for row in four}
    by_length = [other[row["key"]] if stages_of(row) == FEWEST_STAGES else row for row in five]
    sets = ((str(MOST_STAGES), five), (str(FEWEST_STAGES), four), ("by length", by_length))
    found = {name: {(g["dtype"], g["combine"]): g for g in summarise({"rows": rows})["overall"]} for name, rows in sets}
    for what, key in LINES:
        for name, groups in found.items():
            yield f"| {what} | {name} | " + " | ".join(f"{groups[kind][key]:.3f}" for kind in KINDS) + " |"


def stages_of(row: Row) -> int:
    """Return the stages that the kernel takes for a row's layer."""
    layer = Case(row["shape"], row["dtype"], row["routing"], row["tokens_per_rank"], row["ep"]).layer
    return ring_stages(tiles_per_sm(layer, rows_of(layer, 0), SMS))


if __name__ == "__main__":
    main(*sys.argv[1:])
