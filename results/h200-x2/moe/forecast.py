"""Predict the orders that the MoE suite measured from its recorded tile times: as they are, and given the same tiles alone.

``page.py predict MOE.json MODEL FORECAST.json``: of Expert-Wave in its usual form and the chosen order; some minutes.
``page.py stalls MOE.json MODEL``: how many stalls of another document are predicted within 1 us; half as long.

*Given alone*: the tile times are multiplied by one factor, with which the same order without stores is predicted as it was measured. Tile
times are read before the case is measured; the clock under load and what else a launch meets are in the factor, stores are not.
"""

from __future__ import annotations

import gzip
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tables import per_cent, table

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json, read_json
from xstage_bench.kernels.moe.forecast import MoeTileTimes, busiest, choose_order, predict_order
from xstage_bench.kernels.moe.layer import rows_of
from xstage_bench.kernels.moe.order import Order, order_named
from xstage_bench.kernels.moe.stalls import CLOSE_US, predicted
from xstage_bench.kernels.moe.suite import MoeCase, arrived_us, is_wave
from xstage_bench.model.run_fit import find_model

SMS, RANKS, NS_OF_US = 132, 2, 1e3
model_at = cache(find_model)  # once in each process


def predict(path: str, model: str, out: str) -> None:
    """Write one entry per row and order."""
    document = read_json(Path(path), dict[str, Any])
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.map(partial(_predict, model, document["tiles"]), document["rows"])
        rows = list(chain.from_iterable(found))
    document = {"schema_version": 1, "what": "predicted from measured tile times, beside measured", "rows": rows}
    write_bytes(Path(out), gzip.compress(encode_json(document), 9, mtime=0) if out.endswith(".gz") else encode_json(document))


def _predict(model: str, tiles: dict[str, Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    case = MoeCase(row["shape"], row["dtype"], row["routing"], row["tokens_per_rank"], row["ep"])
    ranks = [rows_of(case.layer, rank) for rank in range(RANKS)]
    rank, times = busiest(ranks), MoeTileTimes(**tiles[case.name])
    tiles_per_sm = ranks[rank].blocks * case.layer.shape.linear2_tiles / SMS
    us, loaded = arrived_us(row), model_at(Path(model))
    choice = choose_order(loaded, case.layer, ranks, times, row["combine"], SMS).order.name if case.searched else None
    out = []
    for which, name in _orders(row):
        order = order_named(name)

        def total(times: MoeTileTimes, combine: str, order: Order = order) -> float:
            told = predict_order(loaded, case.layer, ranks[rank], times, combine, SMS, order, rank, stages=row["stages"])
            return told.total_ns / NS_OF_US

        factor = us[f"{which} alone"] / total(times, "none")
        scaled = replace(times, linear1_ns=times.linear1_ns * factor, linear2_ns=times.linear2_ns * factor)
        out.append(
            {
                "key": row["key"],
                "which": which,
                "order": name,
                "tiles_per_sm": tiles_per_sm,
                "factor": factor,
                "alone_us": us[f"{which} alone"],
                "measured_us": us["chosen" if which == "chosen" else name.replace("-", " ")],
                "predicted_us": total(times, row["combine"]),
                "predicted_given_alone_us": total(scaled, row["combine"]),
                "stall_measured_us": row["stalls"][which]["measured_us"],
                "stall_predicted_us": _stall_us(model, tiles, row, name),
                "choice": choice,
                "choice_over_best": _over_best(us, choice) if choice is not None else None,
            }
        )
    return out


def stalls(path: str, model: str) -> None:
    """Print the share of stalls that are predicted within `CLOSE_US`: all, waves', and those of the chosen orders."""
    document = read_json(Path(path), dict[str, Any])
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        near = np.array(list(pool.map(partial(_near, model, document["tiles"]), document["rows"])))
    waves, chosen = near.mean(axis=0)
    print(f"within {CLOSE_US:g} us, n = {near.size}: {near.mean():.1%}; waves {waves:.1%}, chosen orders {chosen:.1%}")


def _near(model: str, tiles: dict[str, Any], row: dict[str, Any]) -> list[bool]:
    return [abs(_stall_us(model, tiles, row, name) - row["stalls"][which]["measured_us"]) <= CLOSE_US for which, name in _orders(row)]


def _orders(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [("wave", row["stalls"]["wave"]["order"]), ("chosen", row["chosen"])]


def _stall_us(model: str, tiles: dict[str, Any], row: dict[str, Any], order: str) -> float:
    case = MoeCase(row["shape"], row["dtype"], row["routing"], row["tokens_per_rank"], row["ep"])
    told = (rows_of(case.layer, 0), MoeTileTimes(**tiles[case.name]), row["combine"], SMS, order_named(order))
    return float(predicted(model_at(Path(model)), case.layer, *told, stages=row["stages"])["predicted_us"])


def _over_best(us: dict[str, float], choice: str) -> float:
    """Time of an order over that of the fastest one that the search measured."""
    searched = {name.removeprefix("search ").replace(" ", "-"): t for name, t in us.items() if name.startswith("search ") or is_wave(name)}
    return searched[choice] / min(searched.values())


HEAD = (
    *("rows", "n", "predicted: off by, median", "p90", "given alone: off by, median", "p90", "mean"),
    *("stores' part per tile within 1 us", "stalls within 1 us"),
)


def shown(rows: list[dict[str, Any]]) -> str:
    """Return the table: all rows, by type and width of a result row, and by tokens."""
    lines = [_line("all", rows)]
    groups: list[Callable[[dict[str, Any]], str]] = [
        lambda r: "{1}, {4} rows".format(*r["key"].split("|")),
        lambda r: f"{r['key'].split('|')[3]:>4} tokens",
        lambda r: str(r["which"]),
    ]
    for group in groups:
        lines += [_line(name, [row for row in rows if group(row) == name]) for name in sorted({group(row) for row in rows})]
    return table(HEAD, lines)


def _line(name: str, rows: list[dict[str, Any]]) -> list[object]:
    names = ("measured_us", "predicted_us", "predicted_given_alone_us", "tiles_per_sm")
    measured, plain, given, tiles = (np.array([row[name] for row in rows]) for name in names)
    cells = [per_cent(float(np.quantile(abs(off), q))) for off in (plain / measured - 1, given / measured - 1) for q in (0.5, 0.9)]
    stalls_near = float(np.mean([abs(row["stall_predicted_us"] - row["stall_measured_us"]) <= CLOSE_US for row in rows]))
    near = (float(np.mean(abs((given - measured) / tiles) <= CLOSE_US)), stalls_near)
    return [name, len(rows), *cells, f"{100 * np.mean(given / measured - 1):+.1f} %", *(per_cent(share, 0) for share in near)]
