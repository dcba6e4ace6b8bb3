"""Print the tables of docs/visibility.md from the document of ``xstage visibility``: ``python tools/visibility_tables.py FILE``.

A number is the mean of the processes' medians; its 95 % interval is t-scaled over processes, and never narrower than the widest of theirs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from xstage_bench.io.json_file import read_json

Row = dict[str, Any]
_KEY = ("part", "pair", "producers", "warps", "bytes", "method", "format", "payload_bytes", "misaligned_bytes", "domains", "beside")


def grouped(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows of the same measurement in different processes, in the order of the first; a quiet link and a loud one differ in `bytes`."""
    out: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] == "timeout":
            continue  # it has no numbers
        out[tuple(row.get(k) for k in _KEY)].append(row)
    return out


def pooled(spreads: list[dict[str, Any]]) -> tuple[float, float, float] | None:
    """Value and 95 % interval over processes; None where nothing was measured."""
    medians = np.array([s["median"] for s in spreads if s["median"] is not None], dtype=float)
    if not medians.size:
        return None
    half = max((s["high"] - s["low"]) / 2 for s in spreads if s["low"] is not None) if any(s["low"] is not None for s in spreads) else 0.0
    if medians.size > 1:
        half = max(half, float(stats.t.ppf(0.975, medians.size - 1) * medians.std(ddof=1) / np.sqrt(medians.size)))
    return float(medians.mean()), max(0.0, float(medians.mean() - half)), float(medians.mean() + half)


def cell(spreads: list[dict[str, Any]], unit: float = 1.0, digits: int = 0) -> str:
    """``value (low to high)`` in `unit`, or a dash."""
    value = pooled(spreads)
    if value is None:
        return "-"
    middle, low, high = (f"{v / unit:,.{digits}f}".replace(",", " ") for v in value)
    return f"{middle} ({low} to {high})"


def table(head: list[str], lines: list[list[Any]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(c) for c in row) + " |" for row in rows)


def tables(document: dict[str, Any]) -> str:
    """All tables, each under its own heading."""
    groups = list(grouped(document["rows"]).values())

    def of(part: str) -> list[tuple[Row, list[Row]]]:
        return [(g[0], g) for g in groups if g[0]["part"] == part]

    def column(g: list[Row], name: str, unit: float = 1.0, digits: int = 0) -> str:
        return cell([r[name] for r in g], unit, digits)

    text = []
    head = ["pair", "K", "W", "KiB", "issue, ns", "under way: plateau, kB", "at most, kB", "drain, GB/s", "first visible, ns", "tail, ns"]
    lines = [
        [
            r["pair"], r["producers"], r["warps"], r["bytes"] >> 10, column(g, "issue_mean_ns"), column(g, "plateau_bytes", 1e3),
            column(g, "peak_bytes", 1e3), column(g, "drain_gb_per_s"), column(g, "first_ns"), column(g, "tail_ns"),
        ]
        for r, g in of("curve")
    ]  # fmt: skip
    text.append("## Curves\n\n" + table(head, lines))
    head = ["pair", "flag", "K", "its own cycles", "round trip, cycles", "n"]
    lines = []
    for r, g in of("flag"):
        n = sum(x["issue_cycles"]["n"] for x in g)
        lines.append([r["pair"], r["method"], r["producers"], column(g, "issue_cycles"), column(g, "round_trip_cycles"), n])
    text.append("## Flags\n\n" + table(head, lines))
    head = ["pair", "method", "domains", "beside", "its own cycles", "round trip, cycles"]
    lines = []
    for r, g in of("domain"):
        lines.append([r["pair"], r["method"], r["domains"], r["beside"], column(g, "issue_cycles"), column(g, "round_trip_cycles")])
    text.append("## Domains\n\n" + table(head, lines))
    for row, g in of("lag"):
        lags = [[lag, cell([x["publish_cycles"][i] for x in g])] for i, lag in enumerate(row["lag_cycles"])]
        text.append(f"## Lag {row['pair']} {row['bytes'] >> 10} KiB {row['method']}\n\n" + table(["lag, cycles", "publish, cycles"], lags))
    head = [
        "pair",
        "payload",
        "on the wire",
        "format",
        "method",
        "K",
        "data, cycles",
        "publish, cycles",
        "round trip, cycles",
        "torn",
        "lines",
    ]
    lines = []
    for r, g in [*of("message"), *of("torn")]:
        form = r["format"] + (f"+{r['misaligned_bytes']}" if r["misaligned_bytes"] else "")
        numbers = [column(g, name) for name in ("issue_cycles", "publish_cycles", "round_trip_cycles")]
        counts = [sum(x[name] for x in g) for name in ("torn_words", "lines")]
        lines.append([r["pair"], r["payload_bytes"], r["wire_bytes"], form, r["method"], r["producers"], *numbers, *counts])
    text.append("## Messages\n\n" + table(head, lines))
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    sys.stdout.write(tables(read_json(Path(sys.argv[1]), dict[str, Any])))
