"""Tables of the fused MoE layer: a document of ``xstage fused moe --suite`` and what lies beside it (``page.py [write] [FOLDER]``).

FOLDER holds ``moe.json.gz``, and may hold ``forecast.json.gz`` (forecast.py), ``gemm.json`` (record.py) and ``step.json.gz``, experiments
with builds that are not in this version. ``page.py summary [FOLDER]`` writes summary.json. Other verbs: ``gemm``, ``skeletons`` and
``attach`` of record.py, ``predict`` and ``stalls`` of forecast.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, load, main, origin, table

from xstage_bench.io.json_file import read_json, write_compact
from xstage_bench.kernels.moe.suite import arrived_us
from xstage_bench.kernels.moe.summary import summarise, usual_variant

Row = dict[str, Any]
ORDERS = ("wave", "chosen")
LEAD = "interleaved-2"
COUNTERS = {
    "dram__bytes_read.sum": ("read from memory, GB", 1e9),
    "lts__t_sectors_op_read.sum": ("read from the second level cache, GB", 1e9 / 32),
    "lts__t_sectors_op_read_lookup_miss.sum": ("of it not there, GB", 1e9 / 32),
    "l1tex__m_xbar2l1tex_read_bytes.sum": ("received by the SMs, GB", 1e9),
}


def tables(folder: Path) -> dict[str, str]:
    """Return every table for which there is a document."""
    document = read_json(folder / "moe.json.gz", Row)
    found, rows = summarise(document), document["rows"]
    made = {
        "when": origin(document),
        "overall": overall(found["overall"]),
        "regimes": regimes(found["rows"]),
        "gains": gains(found["rows"]),
    }
    made |= {"dispatch": dispatch(rows), "stalls": stalls(rows)}
    beside: dict[str, dict[str, Callable[[Row], str]]] = {
        "forecast.json.gz": {"forecast": lambda d: str(load(Path(__file__).with_name("forecast.py")).shown(d["rows"]))},
        "gemm.json": {"gemm": gemm},
        "step.json.gz": {"counters": counters, "apart": apart, "stages": stages},
    }
    for file, makers in beside.items():
        if (folder / file).exists():
            other = read_json(folder / file, Row)
            made |= {name: make(other) for name, make in makers.items()}
    return made


def summary(folder: str = str(Path(__file__).parent)) -> None:
    """Write what scripts read."""
    write_compact(Path(folder) / "summary.json", summarise(read_json(Path(folder) / "moe.json.gz", Row)))


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


def overall(groups: list[Row]) -> str:
    """Return what is said of all configurations of a type and a width of a result row."""
    lines = [(name, *(_number(g[key], share) for g in groups)) for name, key, share in OVERALL]
    return table(("", *(f"{g['dtype']}, {g['combine']} rows" for g in groups)), lines)


def _number(value: float | None, share: bool) -> str:
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


def regimes(rows: list[Row]) -> str:
    """Medians by how much drain there is for the compute: both orders over the bound, and what the model's order gains."""
    lines = []
    for least, most in pairwise(REGIMES):
        mine = [row for row in rows if least <= row["drain_us"] / row["alone_us"] < most]
        if mine:
            found = [[row["wave_us"] / row["bound_us"], row["interleaved_us"] / row["bound_us"], row["gain"]] for row in mine]
            name = f"{least:g} to {most:g}" if np.isfinite(most) else f"{least:g} and more"
            lines.append((name, len(mine), *(f"{value:.3f}" for value in np.median(found, axis=0))))
    return table(("V/R over alone", "n", "waves over the bound", "the model's order over the bound", "gain"), lines)


def gains(rows: list[Row]) -> str:
    """Gain over Expert-Wave at its best N, and time over the bound, of every configuration."""
    columns = [(routing, tokens) for routing in ("balanced", "skewed") for tokens in sorted({row["tokens_per_rank"] for row in rows})]
    found = {(r["shape"], r["dtype"], r["combine"], r["routing"], r["tokens_per_rank"]): r for r in rows}
    lines = []
    for shape, dtype, combine in dict.fromkeys(key[:3] for key in found):
        mine = [found.get((shape, dtype, combine, *column)) for column in columns]
        cells = (r and f"{r['gain']:.2f} ({r['interleaved_us'] / r['bound_us']:.2f})" for r in mine)
        lines.append((shape, f"{dtype}, {combine}", *cells))
    return table(("shape", "type, result rows", *(f"{routing}, {tokens}" for routing, tokens in columns)), lines)


def dispatch(rows: list[Row]) -> str:
    """What interleaving gains over Expert-Wave in its usual form, with pulls and without; 1 where the order keeps waves."""
    head = ("interleaving gains, pulls off", "pulls on", "pulls cost waves", "pulls cost the chosen order", "same order alone: gain")
    lines = []
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
            if found:
                lines.append((f"{dtype}, {routing}", *(f"{geometric_mean(x):.3f}" for x in zip(*found, strict=True))))
    return table(("type, routing", *head), lines)


def stalls(rows: list[Row], tokens: int = 2048, routing: str = "balanced") -> str:
    """Stalls and store spans under both orders, us per Linear-2 tile: waves / model's order (predicted)."""
    lines = []
    for row in rows:
        if (row["tokens_per_rank"], row["routing"]) == (tokens, routing) and row.get("stalls"):
            both = [row["stalls"][which] for which in ORDERS]
            stall = _pair(both, lambda one: f"{one['measured_us']:.2f}" + (f" ({p:.2f})" if (p := one["predicted_us"]) is not None else ""))
            spans = [_pair(both, lambda one, q=q: f"{one['store_span_us'][q]:.1f}") for q in ("median", "p90")]
            within = _pair(both, lambda one: f"{one['within_us']:.2f}")
            lines.append((row["shape"], row["dtype"], row["combine"], stall, *spans, within))
    return table(("shape", "type", "result rows", "stall", "store span, median", "p90", "of the stall, within tiles"), lines)


def _pair(both: Sequence[Row], text: Callable[[Row], str]) -> str:
    return " / ".join(text(one) for one in both)


def gemm(document: Row) -> str:
    """Tiles with nothing stored beside cuBLAS."""
    found = {(row["shape"], row["dtype"]): row for row in document["gemm"]}
    dtypes = list(dict.fromkeys(dtype for _, dtype in found))
    lines = []
    for shape in dict.fromkeys(shape for shape, _ in found):
        rows = (found[shape, dtype] for dtype in dtypes)
        lines.append((shape, *(cell for row in rows for cell in (f"{row['own_tflops']:.0f}", interval(row["own_over_dense"], 2)))))
    return table(("shape", *(f"{d}: {what}" for d in dtypes for what in ("TFLOP/s", "over cuBLAS"))), lines)


def counters(document: Row) -> str:
    """Of one launch alone and one that sends, the means of two each."""
    launches = [[one for one in document["counters"] if one["rows"] == rows] for rows in ("alone", "remote")]
    lines = [(what, *(f"{sum(x[name] for x in one) / len(one) / unit:.1f}" for one in launches)) for name, (what, unit) in COUNTERS.items()]
    return table(("hy3, bf16, 8192 tokens, one rank", "nothing stored", "result rows sent"), lines)


def apart(document: Row) -> str:
    """How far apart tiles begin that read the same weights."""
    found = {(one["case"], one["rank"], one["rows"]): one for one in document["apart"]}
    lines = []
    for case, rank in dict.fromkeys(key[:2] for key in found):
        shape, dtype, tokens, *_ = case.split("|")
        both = (found[case, rank, rows] for rows in ("alone", "remote"))
        cells = [(f"{o['apart_us']['median']:.1f} ({o['apart_us']['p90']:.0f})", f"{o['products_us']['linear1']:.1f}") for o in both]
        lines.append((f"{shape}, {dtype}, {tokens}", rank, *cells[0], *cells[1]))
    head = (f"{rows}: {what}" for rows in ("nothing stored", "rows sent") for what in ("apart, us", "products of Linear-1, us"))
    return table(("case", "rank", *head), lines)


def stages(document: Row) -> str:
    """Rings of other lengths, and CTAs that wait for each other, over five stages in the same run; the lead of two tiles, by tokens."""
    columns = [(rows, tokens) for rows in ("alone", "remote") for tokens in ("512", "2048", "8192")]
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for experiment in (*document["experiments"]["stages"], *document["experiments"]["waiting"]):
        for row in (row for row in experiment["rows"] if row["order"] == LEAD):
            for kind, us in zip(experiment["kinds"][1:], row["us"][1:], strict=True):
                if us is not None:
                    found.setdefault(kind, {}).setdefault((row["rows"], row["case"].split("|")[2]), []).append(us / row["us"][0])
    head = (f"{'nothing stored' if rows == 'alone' else 'rows sent'}, {tokens}" for rows, tokens in columns)
    lines = []
    for kind, cells in sorted(found.items()):
        lines.append((kind, *(f"{geometric_mean(c):.3f} ({len(c)})" if (c := cells.get(key)) else None for key in columns)))
    return table(("over five stages", *head), lines)


def _beside(name: str, what: str) -> Any:
    return lambda *words: getattr(load(Path(__file__).with_name(name)), what)(*words)


if __name__ == "__main__":
    verbs = {what: _beside("record.py", what) for what in ("gemm", "skeletons", "attach")}
    verbs |= {what: _beside("forecast.py", what) for what in ("predict", "stalls")}
    main(__file__, tables, _beside("figure.py", "draw"), summary=summary, **verbs)
