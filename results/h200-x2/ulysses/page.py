"""Tables of fused attention: a folder of ``xstage fused ulysses`` (``page.py [write] [FOLDER]``).

The folder has ``ulysses.json.gz`` with its forecasts, and may have ``pairs.json.gz``, its long rows timed again with ``--pairs``.
``page.py summary [FOLDER]`` writes summary.json of them; ``page.py ends FILE...`` is a control of the forecast (ends.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, load, main, number, origin, table

from xstage_bench.io.json_file import write_compact
from xstage_bench.kernels.attention.document import SUMMARY, read_folder
from xstage_bench.kernels.attention.summary import CASE, summarise
from xstage_bench.kernels.spread import spread

Row = dict[str, Any]
DEGREES = (2, 4, 8)
#: From here on fusing shall cost 1 %.
LONG_ROWS = 32760
SHORT = ("shape", "rows", "heads", "dim", *(f"{what} SP{sp}" for what in ("fused", "push", "NCCL", "hidden") for sp in DEGREES))
FULL = (
    *("shape", "rows", "SP", "alone, us", "TFLOP/s", "cuDNN", "fused", "rounds", "arrived", "push", "copy engine", "copying SMs", "NCCL"),
    *("speed-up over NCCL", "hidden of NCCL, %", "hidden of push, %", "residual predicted, us", "measured, us", "chosen"),
)


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has a line for each case, with intervals."""
    documents = read_folder(folder)
    rows = summarise(*documents)["rows"]
    judged = "\n".join(bars(rows) + together(rows, *documents))
    return {
        "when": origin(documents[0]),
        "cost": table(SHORT, page_table(rows)),
        "bars": f"```\n{judged}\n```",
        "all": table(FULL, (full_cells(r) for r in rows)),
    }


def summary(folder: str = str(Path(__file__).parent)) -> None:
    """Write what scripts read."""
    write_compact(Path(folder) / SUMMARY, summarise(*read_folder(Path(folder))))


def page_table(rows: list[Row]) -> list[list[str]]:
    """Return the lines of the page: one for each attention, per cent over attention alone by number of ranks."""
    found: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row["shape"], row["seq"], row["heads"], row["head_dim"]), {})[row["sp"]] = row
    lines = []
    for key, by_sp in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        cells = [[_cost(row["fused_over_alone"]), *_serial(row)] if (row := by_sp.get(sp)) else ["-"] * 4 for sp in DEGREES]
        lines.append([*map(str, key), *(cells[i][what] for what in range(4) for i in range(len(DEGREES)))])
    return lines


def _serial(row: Row) -> list[str]:
    hidden = row["hidden_share"].get("serial_nccl")
    over = [row["over_alone"].get(key) for key in ("serial_push", "serial_nccl")]
    return ["-" if found is None else _cost(found, ends=False) for found in over] + [_sure(hidden)]


def _cost(found: Row, *, ends: bool = True) -> str:
    """Per cent over attention alone; with too few rounds for an interval, only about."""
    value, low, high = (None if x is None else 100 * (x - 1) for x in (found["value"], found["low"], found["high"]))
    if low is None:
        return f"~{value:.0f}"
    return f"{value:.1f} ({low:.1f} to {high:.1f})" if ends else f"{value:.1f}"


def _sure(share: Row | None) -> str:
    """A share, where its interval is narrower than a fifth."""
    narrow = share is not None and share["low"] is not None and share["high"] - share["low"] < 0.2
    return f"{100 * share['value']:.0f}" if share is not None and narrow else "-"


def full_cells(row: Row) -> list[str]:
    """Return the cells of one case in the full table."""
    over = {key: f"{found['value']:.3f}" for key, found in row["over_alone"].items()}
    predicted = row["predicted_residual_us"]
    return [
        row["shape"],
        str(row["seq"]),
        f"{row['sp']}{' e' if row['emulated'] else ''}",
        f"{row['alone_us']:.1f}" if row["alone_us"] < 1000 else f"{row['alone_us']:.0f}",
        f"{row['tflop_per_s'][row['alone']]:.0f}",
        over.get("cudnn", "-"),
        interval(row["fused_over_alone"], 3),
        f"{row['fused_over_alone']['n']}{' pairs' if row['from_pairs'] else ''}",
        *(over.get(k, "-") for k in ("fused_visible", "serial_push", "serial_copy_engine", "serial_copying_sms", "serial_nccl")),
        interval(row["speed_up"].get("serial_nccl"), 2),
        *(interval(row["hidden_share"].get(k), 0, 0.01) for k in ("serial_nccl", "serial_push")),
        number(predicted, 1),
        interval(row["measured_residual_us"], 1),
        row["fused"].removeprefix("fused "),
    ]


def bars(rows: list[Row]) -> list[str]:
    """Return a line for each bar: how many rows meet it and which do not, by their intervals where they have one."""
    long = [r for r in rows if r["seq"] >= 8192]
    lines = []
    for dim, least in ((128, 0.90), (64, 0.85)):
        some = [r for r in long if r["head_dim"] == dim]
        lines += _bar(f"cuDNN / alone >= {least}, dim {dim}", some, lambda r: _inverse(r["over_alone"]["cudnn"]), 1 / least)
    for name, least_rows, most_rows, most in (
        ("8192", 8192, 16383, 1.06),
        ("16384 to 32759", 16384, LONG_ROWS - 1, 1.02),
        ("32760 and more", LONG_ROWS, 1 << 30, 1.01),
    ):
        some = [r for r in rows if least_rows <= r["seq"] <= most_rows]
        lines += _bar(f"fused / alone <= {most} at {name} rows", some, lambda r: r["fused_over_alone"], most)
    lines += _bar("alone / fused >= 0.95", rows, lambda r: r["fused_over_alone"], 1 / 0.95)
    lines += _bar("chosen / best found <= 1.02", rows, lambda r: r["fused_over_best"], 1.02)
    off = [r for r in rows if not within_bar(r)]
    short = [r for r in rows if r["alone_us"] < 2000]
    lines.append(f"residual predicted within 30 % or 3 us: {len(rows) - len(off)} of {len(rows)}")
    far = [r for r in short if not within_bar(r)]
    lines.append(f"  with attention below 2 ms {len(short) - len(far)} of {len(short)}; off: {_names(far)}")
    return lines


def together(rows: list[Row], document: Row, pairs: Row | None) -> list[str]:
    """Return the line of what fusing costs in all rounds of the longest rows, from pairs where a row is from pairs."""
    found, cases = [], 0
    again = {tuple(r[k] for k in CASE): r for r in (pairs or {"rows": []})["rows"]}
    for row, recorded in zip(rows, document["rows"], strict=True):
        if row["seq"] >= LONG_ROWS:
            samples = (again[tuple(recorded[k] for k in CASE)] if row["from_pairs"] else recorded)["samples_us"]
            found.append(np.array(samples[row["fused"]]) / np.array(samples[row["alone"]]))
            cases += 1
    if not found:
        return []
    ratio = spread(np.concatenate(found))
    ends = f"({ratio['low']:.4f} to {ratio['high']:.4f}), n = {ratio['n']}"
    return [f"fused / alone in all rounds of the {cases} cases from {LONG_ROWS} rows on: {ratio['value']:.4f} {ends}"]


def _inverse(found: Row) -> Row:
    low, high = found["low"], found["high"]
    return {"value": 1 / found["value"], "low": None if high is None else 1 / high, "high": None if low is None else 1 / low}


def _bar(name: str, rows: list[Row], of: Callable[[Row], Row], most: float) -> list[str]:
    met = [r for r in rows if of(r)["value"] <= most]
    sure = [r for r in met if of(r)["high"] is not None and of(r)["high"] <= most]
    missed = [r for r in rows if of(r)["value"] > most]
    certain = [r for r in missed if of(r)["low"] is not None and of(r)["low"] > most]
    lines = [f"{name}: {len(met)} of {len(rows)} by the median, {len(sure)} by the whole interval"]
    if missed:
        lines.append(f"  missed, interval excludes the bar: {_names(certain)}")
        lines.append(f"  missed, interval holds the bar or is missing: {_names(r for r in missed if r not in certain)}")
    return lines


def within_bar(row: Row) -> bool:
    """Whether the residual of a row of the summary is predicted within 30 % or 3 us."""
    predicted, measured = row["predicted_residual_us"], row["measured_residual_us"]["value"]
    return predicted is not None and abs(predicted - measured) <= max(3.0, 0.3 * abs(measured))


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(f"{r['shape']} SP{r['sp']}" for r in rows) or "none"


def _beside(name: str, what: str) -> Any:
    return lambda *words: getattr(load(Path(__file__).with_name(name)), what)(*words)


if __name__ == "__main__":
    main(__file__, tables, _beside("figure.py", "draw"), summary=summary, ends=_beside("ends.py", "show"))
