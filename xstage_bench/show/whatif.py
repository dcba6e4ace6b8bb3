"""What the report's page needs to predict by itself: each pair's node model as plain numbers, tables and maps that pairs share once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xstage_bench.model.headline import headline_entry, headline_rate
from xstage_bench.model.node.parameters import PARAMETERS, spread_scores
from xstage_bench.show.html import TEMPLATES

if TYPE_CHECKING:
    from xstage_bench.model.document import Model, PairModel

_ISSUE = (
    "turnaround",
    "gap_overhead",
    "stall_turnaround",
    "start_lag_ns",
    "store_bytes",
    "unroll",
    "tail_unheld",
    "empty",
    "empty_per_warp",
)
_TABLE = ("warps", "stores", "fresh", "following", "store_cycles", "port_cycles", "group")
_DIGITS = 10


def can_play(pair: PairModel) -> bool:
    """Whether the page can predict this pair: a node model of plain stores, whose issue costs the run has measured."""
    basis = pair.node_basis
    plain = (pair.flavour, pair.layout, pair.is_local) == ("st.v4", "contiguous", False)
    return plain and basis is not None and basis.spread is not None and basis.issue.table is not None


def whatif_data(model: Model, pairs: list[PairModel]) -> dict[str, Any]:
    """Return the models of `pairs` for ``templates/node.js``; equal tables and maps stand there once.

    Parameters
    ----------
    model : Model
    pairs : list of PairModel
        In the order of the page; those that cannot be played with (`can_play`) are left out.
    """
    tables: list[Any] = []
    maps: list[Any] = []
    found = [_pair(p, tables, maps) for p in pairs if can_play(p)]
    return {"gpu": model.gpu, "pairs": found, "tables": tables, "maps": maps}


def _pair(pair: PairModel, tables: list[Any], maps: list[Any]) -> dict[str, Any]:
    basis, entry, rate = pair.node_basis, headline_entry(pair), headline_rate(pair)
    assert basis is not None  # can_play
    assert basis.spread is not None
    assert basis.issue.table is not None
    units = basis.placement.unit_of(basis.placement.smids).tolist()
    known = basis.spread.calibrated
    return {
        "pair": pair.pair,
        "holdout": pair.holdout_status,
        "rate": None if rate is None else rate[0].value,
        "node": {name: basis.used[name] for name in PARAMETERS},
        "clock_mhz": basis.sm_clock_mhz,
        "issue": {name: getattr(basis.issue, name) for name in _ISSUE},
        "table": _index(tables, _rounded({name: getattr(basis.issue.table, name) for name in _TABLE})),
        "map": _index(maps, {"units": units, "scores": spread_scores(len(basis.placement.units)).tolist()}),
        "smids": len(units),
        "warps": 4 if entry is None else entry.warps,
        "calibrated": {"producers": known.producers, "warps": known.warps, "bytes": known.bytes},
    }


def _index(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _rounded(value: Any) -> Any:
    """Return numbers to so many digits: enough for predictions that agree to one in a million, and short."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, tuple | list) else value


def as_script_data(value: Any) -> str:
    """Return JSON that can stand inside a script element whatever names are in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script(name: str) -> str:
    """Return the text of a script of this package."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
