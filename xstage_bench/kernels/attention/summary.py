"""The few numbers of each case that scripts read: ``summary.json`` of results: ulysses, and the paper's figures of merit with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xstage_bench.kernels.attention.attention import alone_of
from xstage_bench.kernels.attention.run import FLAGGED
from xstage_bench.kernels.attention.tile_facts import TILES_SHOWN
from xstage_bench.kernels.spread import spread

SERIAL_NCCL = ("nccl", "nccl graph")
#: How a row's flags are published where `fused_visible_us` is taken from.
VISIBLE = "shard"
#: What tells cases apart.
CASE = ("shape", "heads", "kv_heads", "head_dim", "seq", "sp")


def summarise(document: Mapping[str, Any], pairs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return ``{"rows": [...]}`` of a document of `ulysses.run`; scripts read its keys.

    `pairs` is a document of pairs. Where a case is in it with the variants that count, what fusing costs is taken from it:
    ``fused_over_alone``, ``measured_residual_us`` and the measured stalls. Times, and all that has a serial way in it, are the other one's.
    """
    again = {tuple(row[k] for k in CASE): row for row in (pairs or {}).get("rows", ())}
    return {"rows": [_row(row, again.get(tuple(row[k] for k in CASE))) for row in document["rows"]]}


def chosen_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the way to store and the order that the forecast of a row names first; without one, the last way and the flagged order."""
    best = next(iter(row.get("forecast") or ()), None)
    return (best["store"], best["order"]) if best else (list(row["builds"])[-1], FLAGGED)


def best_of(row: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name and time of the fastest fused variant that an exhaustive search finds."""
    searched = {name: us for name, us in _times(row).items() if name.startswith("fused ") and len(name.split()) == 3}
    name = min(searched, key=lambda n: searched[n])
    return name, searched[name]


def _row(row: Mapping[str, Any], pair: Mapping[str, Any] | None) -> dict[str, Any]:
    times = _times(row)
    store, order = chosen_of(row)
    name = f"fused {store} {order}"
    serial = {key: n for key, n in (("serial_push", "push"), ("serial_copy_engine", "copy engine")) if n in times}
    nccl = min((n for n in SERIAL_NCCL if n in times), key=lambda n: times[n], default=None)
    if nccl is not None:
        serial["serial_nccl"] = nccl
    predicted = next((f for f in row.get("forecast") or () if (f["store"], f["order"]) == (store, order)), None)
    best_name, best_us = best_of(row)
    sent = f"fused {store} {FLAGGED}"
    seen = f"{sent} {VISIBLE}"
    alone = min((n for s in row["builds"] if (n := alone_of(s))), key=lambda n: times[n])
    copying = min((n for n in times if n.endswith("copying SMs")), key=lambda n: times[n], default=None)
    others = {"cudnn": "cudnn", "fused_visible": seen, **serial, "serial_copying_sms": copying}
    cost = pair if pair is not None and {name, alone, alone_of(store)} <= set(pair["samples_us"]) else row
    return {
        **{key: row[key] for key in ("shape", "heads", "head_dim", "seq", "sp", "emulated")}, "alone_us": times[alone],
        "cudnn_us": times.get("cudnn"), "serial_nccl_us": times.get(nccl) if nccl else None, "serial_push_us": times.get("push"),
        "fused_us": times[name], "fused_visible_us": times.get(seen), "predicted_fused_us": predicted["fused_us"] if predicted else None,
        "predicted_serial_us": row.get("predicted_serial_us"), "fused": name, "alone": alone,
        "fused_over_alone": _paired(cost, lambda t: t[name] / t[alone]), "from_pairs": cost is pair, "best_found": best_name,
        "best_found_us": best_us, "fused_over_best": _paired(row, lambda t: t[name] / t[best_name]),
        "arrived_after_us": _paired(row, lambda t: t[seen] - t[sent]) if seen in times and sent in times else None,
        "predicted_residual_us": predicted["residual_us"] if predicted else None,
        "measured_residual_us": _paired(cost, lambda t: t[name] - t[alone_of(store)]),
        "tflop_per_s": {n: row["tflop_of_one_rank"] / us * 1e6 for n, us in times.items() if n in (alone, "cudnn")},
        "over_alone": {key: _paired(row, lambda t, n=n: t[n] / t[alone]) for key, n in others.items() if n in times},
        "serial_copying_sms_us": times.get(copying) if copying else None, "serial_copy_engine_us": times.get("copy engine"),
        "speed_up": {key: _paired(row, lambda t, n=n: t[n] / t[name]) for key, n in serial.items()},
        "hidden_share": {key: _paired(row, lambda t, n=n: (t[n] - t[name]) / (t[n] - t[alone])) for key, n in serial.items()},
        "stall_us": {store: _stall(row, pair if pair is not None and store in pair["tiles"] else row, store) for store in row["builds"]},
        "rounds": row["rounds"],
    }  # fmt: skip


def _stall(row: Mapping[str, Any], stamped: Mapping[str, Any], store: str) -> dict[str, float | None]:
    """Return the longest that one SM is held up in its stores, predicted and by its stamps: what its stores took beyond local ones."""
    facts = stamped["tiles"][store]
    shown = len(facts["time_line"]["fused"]["tiles"])
    tiles = len(facts["compute"]["wave_us"]) if shown >= TILES_SHOWN else shown
    local_ns = tiles * facts["store_ns"]["alone"][facts["quantiles"].index(50)]
    predicted = next((f["issue_stall_us"] for f in row.get("forecast") or () if (f["store"], f["order"]) == (store, FLAGGED)), None)
    return {"predicted": predicted, "measured": (facts["most_stored_ns_of_one_sm"] - local_ns) / 1e3}


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: found["value"] for name, found in row["times_us"].items()}


def _paired(row: Mapping[str, Any], what: Any) -> dict[str, Any]:
    """Evaluate within each round, so that a clock that falls over the run moves both sides, and return the spread over rounds."""
    return spread(np.asarray(what({name: np.array(us) for name, us in row["samples_us"].items()}), dtype=np.float64))
