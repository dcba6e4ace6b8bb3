"""Print what the experiments say about SMs that share operands (docs/moe.md): ``python tools/moe_step.py STEP.json``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from xstage_bench.io.json_file import read_json

Row = dict[str, Any]
LEAD = "interleaved-2"
NAMES = {
    "dram__bytes_read.sum": ("read from memory, GB", 1e9),
    "lts__t_sectors_op_read.sum": ("read from the second level cache, GB", 1e9 / 32),
    "lts__t_sectors_op_read_lookup_miss.sum": ("of it not there, GB", 1e9 / 32),
    "l1tex__m_xbar2l1tex_read_bytes.sum": ("received by the SMs, GB", 1e9),
}


def main(path: str) -> None:
    """Print every table of the page."""
    document = read_json(Path(path), dict[str, Any])
    for table in (counters, apart, senders, stages, another_warp, others):
        print("\n".join(table(document)) + "\n")


def counters(document: Row) -> Iterator[str]:
    """Of one launch alone and one that sends, the means of two each."""
    launches = {rows: [one for one in document["counters"] if one["rows"] == rows] for rows in ("alone", "remote")}
    yield "| hy3, bf16, 8192 tokens, one rank | nothing stored | result rows sent |\n|---|---|---|"
    for name, (what, unit) in NAMES.items():
        yield f"| {what} | " + " | ".join(f"{sum(x[name] for x in one) / len(one) / unit:.1f}" for one in launches.values()) + " |"


def apart(document: Row) -> Iterator[str]:
    """How far apart tiles begin that read the same weights."""
    yield "| case | rank | nothing stored: apart, us | products of Linear-1, us | rows sent: apart | products |\n|---|---|---|---|---|---|"
    found = {(one["case"], one["rank"], one["rows"]): one for one in document["apart"]}
    for case, rank in dict.fromkeys(key[:2] for key in found):
        cells = [found[case, rank, rows] for rows in ("alone", "remote")]
        parts = (f"{one['apart_us']['median']:.1f} ({one['apart_us']['p90']:.0f}) | {one['products_us']['linear1']:.1f}" for one in cells)
        yield f"| {short(case)} | {rank} | " + " | ".join(parts) + " |"


def senders(document: Row) -> Iterator[str]:
    """Who loses when only one of two ranks sends: time of rank 0 / rank 1 over alone."""
    by = {(one["case"], one["what"]): one["stored_us"] for one in document["who_sends"]}
    whats = [w for w in dict.fromkeys(w for _, w in by) if w != "alone"]
    yield "| over alone, rank 0 / rank 1 | " + " | ".join(whats) + " |\n|---|" + "---|" * len(whats)
    for case in dict.fromkeys(case for case, _ in by):
        ratios = ([a / b for a, b in zip(by[case, w], by[case, "alone"], strict=True)] for w in whats)
        yield f"| {short(case)} | " + " | ".join(f"{a:.2f} / {b:.2f}" for a, b in ratios) + " |"


def stages(document: Row) -> Iterator[str]:
    """Rings of other lengths, and CTAs that wait for each other, over five stages in the same run; the lead of two tiles, by tokens."""
    columns = [(rows, tokens) for rows in ("alone", "remote") for tokens in ("512", "2048", "8192")]
    head = (f"{'nothing stored' if rows == 'alone' else 'rows sent'}, {tokens}" for rows, tokens in columns)
    yield "| over five stages | " + " | ".join(head) + " |\n|---|" + "---|" * len(columns)
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for experiment in (*document["experiments"]["stages"], *document["experiments"]["waiting"]):
        for row in lead_rows(experiment):
            for kind, us in zip(experiment["kinds"][1:], row["us"][1:], strict=True):
                if us is not None:
                    cell = found.setdefault(kind, {}).setdefault((row["rows"], row["case"].split("|")[2]), [])
                    cell.append(us / row["us"][0])
    for kind, cells in sorted(found.items()):
        yield f"| {kind} | " + " | ".join(f"{geometric_mean(c):.3f} ({len(c)})" if (c := cells.get(key)) else "-" for key in columns) + " |"


def another_warp(document: Row) -> Iterator[str]:
    """Rows stored by another warp than those that made them, over the same by these; rows sent, all orders that were timed."""
    yield "| over stores by the warps that made the rows | bf16 rows: lead 2 | waves | f32 rows: lead 2 | waves |\n|---|---|---|---|---|"
    (experiment,) = document["experiments"]["another_warp"]
    for i, kind in enumerate(experiment["kinds"][1:], start=1):
        cells = []
        for combine in ("bf16", "f32"):
            for order in (LEAD, "wave"):
                mine = (r for r in experiment["rows"] if r["rows"] == "remote" and r["order"].startswith(order))
                ratios = [r["us"][i] / r["us"][0] for r in mine if r["case"].endswith(f"|{combine}") and r["us"][i] is not None]
                cells.append(f"{geometric_mean(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-")
        yield f"| {kind} | " + " | ".join(cells) + " |"


def others(document: Row) -> Iterator[str]:
    """What else was tried: geometric means over the plain kernel of the same run, rows sent, by tokens."""
    tokens = ("2048", "8192")
    yield (
        "| over the plain kernel | "
        + " | ".join(f"{o}, {t}" for o in ("lead 2", "waves") for t in tokens)
        + " | n |\n|---|---|---|---|---|---|"
    )
    found: dict[str, dict[tuple[bool, str], list[float]]] = {}
    for name in ("policy", "placement", "gaps", "pairs"):
        for experiment in document["experiments"][name]:
            for i, kind in enumerate(experiment["kinds"][1:], start=1):
                ratios = found.setdefault(kind, {})
                for row in experiment["rows"]:
                    if row["rows"] == "remote" and row["us"][i]:
                        ratios.setdefault((row["order"] == LEAD, row["case"].split("|")[2]), []).append(row["us"][i] / row["us"][0])
    for kind, ratios in found.items():
        cells = [ratios[lead, t] for lead in (True, False) for t in tokens]
        yield f"| {kind} | " + " | ".join(f"{geometric_mean(c):.3f}" for c in cells) + f" | {len(cells[0])}, {len(cells[1])} |"


def lead_rows(experiment: Row) -> Iterable[Row]:
    """Rows of the lead of two tiles."""
    return (row for row in experiment["rows"] if row["order"] == LEAD)


def short(case: str) -> str:
    """Say a case in the words of the page."""
    shape, dtype, tokens, routing, combine = case.split("|")
    return f"{shape}, {dtype}, {tokens}" + (", skewed" if routing == "skewed" else "") + (", f32 rows" if combine == "f32" else "")


if __name__ == "__main__":
    main(sys.argv[1])
