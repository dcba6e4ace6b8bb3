"""A control of the forecast: residuals predicted with the ends of the SMs as stamped, as if tiles were independent, and with none apart.

``page.py ends ULYSSES.json.gz ...``: documents with forecasts; every case of theirs with attention below 2 ms.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from tables import beside, load, table

from xstage_bench.kernels.attention.attention import AttentionBuild, alone_of
from xstage_bench.kernels.attention.document import read_document
from xstage_bench.kernels.attention.forecast import AttentionTileTimes, add_forecasts
from xstage_bench.kernels.attention.summary import chosen_of, summarise
from xstage_bench.kernels.attention.tile_order import blocks_of
from xstage_bench.model.document import Model
from xstage_bench.model.run_fit import find_model

HERE = Path(__file__).resolve().parent
within_bar = load(HERE / "page.py").within_bar
#: Attention alone, us: what is shorter is judged.
SHORT_US = 2000.0
STAMPED, DRAWN, ALIGNED = ENDS = ("stamped", "drawn", "aligned")
#: Ends are drawn with as many seeds; the table shows the first.
SEEDS = 10
HEAD = (
    *("attention", *(f"SMs end apart, us, {ends}" for ends in (STAMPED, DRAWN)), "residual measured, us"),
    *(f"predicted with {ends} ends, us" for ends in ENDS),
)
Row = dict[str, Any]


def show(*paths: str) -> None:
    """Print the cases of each document, and how many predictions are within the bar and how far off they are in the median."""
    model = find_model(beside(HERE, "profile"))
    for path in paths:
        document = read_document(Path(path))
        cases = judged(model, document)
        print(f"{path}\n\n{table(HEAD, map(cells, cases))}\n")
        for ends in ENDS:
            off = [case[ends]["predicted_residual_us"] - case[ends]["measured_residual_us"]["value"] for case in cases]
            error = f"error {np.median(off):+.2f} us, {np.median(np.abs(off)):.2f} either way"
            print(f"{ends}: {within(cases, ends)} of {len(cases)} within 30 % or 3 us, {error}")
        others = [within(judged(model, document, seed), DRAWN) for seed in range(1, SEEDS)]
        print(f"{DRAWN} with other seeds: {', '.join(map(str, others))}\n")


def judged(model: Model, document: Row, seed: int = 0) -> list[Row]:
    """Return of each short case its name, how far apart SMs end (``apart_us``), and the row of its summary, by what the ends are."""
    return [_judged(model, row, seed) for row in document["rows"] if row["times_us"]["alone"]["value"] < SHORT_US]


def within(cases: list[Row], ends: str) -> int:
    """Return how many predictions are within the bar."""
    return sum(within_bar(case[ends]) for case in cases)


def drawn(times: AttentionTileTimes, tiles: int, seed: int) -> AttentionTileTimes:
    """Return them with ends as of independent tiles that differ between SMs and within one as recorded."""
    rng, ctas = np.random.default_rng(seed), len(times.late_us)
    cta = np.arange(tiles) % ctas
    each = np.bincount(cta)
    late = rng.normal(0.0, times.between_us, ctas) * each + np.bincount(cta, weights=rng.normal(0.0, times.within_us, tiles))
    return replace(times, late_us=(late - (np.bincount(each, weights=late) / np.maximum(np.bincount(each), 1))[each]).tolist())


def cells(case: Row) -> list[str]:
    """Return the cells of one case."""
    measured = case[STAMPED]["measured_residual_us"]
    return [
        case["name"],
        *(f"{case['apart_us'][ends]:.2f}" for ends in (STAMPED, DRAWN)),
        f"{measured['value']:.1f} ({measured['low']:.1f} to {measured['high']:.1f})",
        *(f"{case[ends]['predicted_residual_us']:.1f}{'' if within_bar(case[ends]) else ' !'}" for ends in ENDS),
    ]


def _judged(model: Model, row: Row, seed: int) -> Row:
    """Of what the recorded forecast chose; that of the stamped ends is the recorded one."""
    store, order = chosen_of(row)
    build, facts = row["builds"][store], row["tiles"][store]
    stamped = AttentionTileTimes(**facts["compute"])
    others = {
        DRAWN: drawn(stamped, row["heads"] // row["sp"] * blocks_of(row["seq"], AttentionBuild(**build).tile_rows), seed),
        ALIGNED: replace(stamped, late_us=[0.0] * len(stamped.late_us)),
    }
    timed = {name: row["times_us"][name] for name in (alone_of(store), f"fused {store} {order}")}
    case = {**row, "builds": {store: build}, "times_us": timed}
    again = [{**case, "tiles": {store: {**facts, "compute": asdict(times)}}} for times in others.values()]
    add_forecasts({"rows": again}, model)
    return {
        "name": f"{row['shape']}, {row['seq']} rows, SP{row['sp']}",
        "apart_us": {ends: float(np.std(times.late_us)) for ends, times in {STAMPED: stamped, **others}.items()},
        **dict(zip(ENDS, summarise({"rows": [row, *again]})["rows"], strict=True)),
    }
