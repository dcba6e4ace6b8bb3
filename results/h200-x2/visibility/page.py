"""Tables and figure of ``xstage visibility``: when a store is visible, and what publishing costs (``page.py [write] [FOLDER]``).

A number is the mean of the processes' medians; its 95 % interval is t-scaled over processes, and never narrower than the widest of theirs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.show.figures import new_figure

Row = dict[str, Any]
DOCUMENT, PAIR = "visibility.json.gz", "0>1"
_KEY = ("part", "pair", "producers", "warps", "bytes", "method", "format", "payload_bytes", "misaligned_bytes", "domains", "beside")
#: Ways to publish, and what the page calls them.
WAYS = {
    ("flag", "release.sys"): "flag behind a release, system scope",
    ("flag", "release.gpu"): "flag behind a release, gpu scope",
    ("flag.each", "relaxed"): "flag, every thread fences",
    ("ll", "relaxed"): "LL: 4 of 8 bytes are flag",
    ("ll128", "relaxed"): "LL128: 8 of 128 bytes are flag",
    ("ll512", "relaxed"): "control: one flag per warp-store of 512 bytes",
}


def grouped(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows of the same measurement in different processes, in the order of the first; a quiet link and a loud one differ in `bytes`."""
    out: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] != "timeout":  # it has no numbers
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


def cell(group: list[Row], name: str, scale: float = 1.0, digits: int = 0) -> str:
    """``value (low to high)`` of a column of one measurement."""
    found = pooled([r[name] for r in group])
    return "-" if found is None else interval(dict(zip(("value", "low", "high"), found, strict=True)), digits, scale)


def middle(group: list[Row], name: str) -> str:
    """Return the value alone."""
    found = pooled([r[name] for r in group])
    return number(found and found[0])


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    document = read_json(folder / DOCUMENT, Row)
    every = list(grouped(document["rows"]).values())
    groups = [g for g in every if g[0]["pair"] == PAIR]

    def of(part: str) -> Iterator[list[Row]]:
        return (g for g in groups if g[0]["part"] == part)

    return {"when": origin(document), "curve": curve(of("curve")), "flags": flags(of("flag")), "lag": lag(of("lag"))} | {
        "messages": messages(of("message")),
        "torn": torn([g for g in every if g[0]["part"] in ("torn", "message")]),
        "domains": domains(of("domain")),
    }


def curve(groups: Iterator[list[Row]]) -> str:
    """Longest bursts of one warp per SM: drain, and bytes issued but not visible."""
    groups_ = [g for g in groups if g[0]["warps"] == 1]
    longest = max(g[0]["bytes"] for g in groups_)
    head = ("SMs", "drain, GB/s", "under way: plateau, kB", "the same per SM", "first visible, ns", "tail, ns")
    lines = []
    for g in (g for g in groups_ if g[0]["bytes"] == longest):
        sms, plateau = g[0]["producers"], pooled([r["plateau_bytes"] for r in g])
        each = number(plateau and plateau[0], 1, 1e3 * sms)
        lines.append((sms, cell(g, "drain_gb_per_s"), cell(g, "plateau_bytes", 1e3), each, cell(g, "first_ns"), cell(g, "tail_ns")))
    return table(head, lines)


def flags(groups: Iterator[list[Row]]) -> str:
    """Round trip of a flag from an idle SM behind the backlog of so many, and what its release waits for."""
    by: dict[str, dict[int, list[Row]]] = {}
    for g in groups:
        by.setdefault(g[0]["method"], {})[g[0]["producers"]] = g
    counts = sorted({k for found in by.values() for k in found})
    lines = []
    for method, found in by.items():
        lines.append((f"{method}: round trip", *(middle(found[k], "round_trip_cycles") if k in found else "-" for k in counts)))
        if method != "relaxed":
            lines.append((f"{method}: its own wait", *(middle(found[k], "issue_cycles") if k in found else "-" for k in counts)))
    return table(("SMs that store", *counts), lines)


def lag(groups: Iterator[list[Row]]) -> str:
    """Cost of a release so many cycles after the warp's last store."""
    found = list(groups)
    wanted = [i for i, at in enumerate(found[0][0]["lag_cycles"]) if at % 2000 == 0 and at <= 16000]
    lines = []
    for g in found:
        costs = (pooled([r["publish_cycles"][i] for r in g]) for i in wanted)
        lines.append((f"{g[0]['method']}, {g[0]['bytes'] >> 10} KiB per SM", *(number(c and c[0]) for c in costs)))
    return table(("lag, cycles", *(number(found[0][0]["lag_cycles"][i]) for i in wanted)), lines)


def messages(groups: Iterator[list[Row]]) -> str:
    """Round trip of a message by way to publish, idle and behind a backlog, and its bytes on the wire."""
    by: dict[tuple[str, str], dict[tuple[int, int], list[Row]]] = {}
    for g in groups:
        by.setdefault((g[0]["format"], g[0]["method"]), {})[g[0]["payload_bytes"], g[0]["producers"]] = g
    columns = sorted({key for found in by.values() for key in found})
    head = (f"{size} B, {'backlog' if loud else 'idle'}" for size, loud in columns)
    lines = []
    for key, found in by.items():
        lines.append((WAYS.get(key, " ".join(key)), *(middle(found[c], "round_trip_cycles") if c in found else "-" for c in columns)))
    return table(("round trip, cycles", *head), lines)


def torn(groups: list[list[Row]]) -> str:
    """Words that were not there although their flag was; every pair."""
    sums: dict[str, list[int]] = {}
    for row in (r for g in groups for r in g):
        name = WAYS.get((row["format"], row["method"]), f"{row['format']} {row['method']}")
        name += f", shifted by {row['misaligned_bytes']} bytes" if row["misaligned_bytes"] else ""
        at = 2 * bool(row["producers"])
        counts = sums.setdefault(name, [0] * 4)
        counts[at] += row["lines"]
        counts[at + 1] += row["torn_words"]
    head = ("", "lines of 128 bytes, idle", "wrong words", "lines, backlog", "wrong words")
    return table(head, ((name, *map(number, counts)) for name, counts in sums.items()))


def domains(groups: Iterator[list[Row]]) -> str:
    """Wait of each release behind the backlog, by who is in another synchronisation domain; prober on an idle SM, beside a producer."""
    by: dict[str, dict[str, list[str]]] = {}
    for g in groups:
        if g[0]["method"] != "relaxed":
            by.setdefault(g[0]["method"], {}).setdefault(g[0]["domains"], []).append(middle(g, "issue_cycles"))
    names = list(dict.fromkeys(n for found in by.values() for n in found))
    return table(("wait, cycles: idle SM / beside a producer", *names), ((m, *(" / ".join(f[n]) for n in names)) for m, f in by.items()))


def draw(folder: Path, out: Path) -> None:
    """Left: bytes issued and visible against time, one warp on all SMs. Right: bytes under way in the plateau against the number of SMs."""
    document = read_json(folder / DOCUMENT, Row)
    rows = [r for r in document["rows"] if r["part"] == "curve" and r["pair"] == PAIR and r["warps"] == 1]
    most = max(r["producers"] for r in rows)
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    full = [r for r in rows if r["producers"] == most and r["process"] == 0]
    for i, row in enumerate(r for r in full if r["bytes"] in (16 << 10, 64 << 10)):
        at = np.array(row["at_ns"]) / 1e3
        name = f"{row['bytes'] >> 10} KiB per SM"
        left.plot(at, np.array(row["issued_bytes"]) / 1e6, color=f"C{i}", linestyle="--", label=f"issued, {name}")
        left.plot(at, np.array(row["visible_bytes"]) / 1e6, color=f"C{i}", label=f"visible, {name}")
    title = f"{most} SMs, {PAIR}: mean of {rows[0]['repetitions'] - 1} repetitions"
    left.set(xlabel="time after the common start (us)", ylabel="bytes of all SMs (MB)", title=title)
    left.legend(fontsize=7)
    for i, size in enumerate(sorted({r["bytes"] for r in rows})):
        at_size = [r for r in rows if r["bytes"] == size]
        counts = sorted({r["producers"] for r in at_size})
        peaks = [np.mean([r["peak_bytes"]["median"] for r in at_size if r["producers"] == k]) / 1e6 for k in counts]
        right.plot(counts, peaks, "o-", color=f"C{i}", label=f"{size >> 10} KiB per SM")
    right.set(xlabel="storing SMs", ylabel="most bytes under way (MB)", title="issued and not yet visible")
    right.legend(fontsize=7)
    figure.suptitle(f"{document['node']['gpus'][0]['name']}, measured {document['created'][:10]}", fontsize=9)
    figure.savefig(out / "drain-curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(__file__, tables, draw)
