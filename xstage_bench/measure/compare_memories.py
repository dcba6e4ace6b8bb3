"""T0, R and Q of the bursts of `processes`, by the same fit as every run's, and how far another memory lies from the single process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.cell_fit import fit_cell
from xstage_bench.model.cells import Cell
from xstage_bench.model.resample import Resampled, estimate

REFERENCE = "plain"
BURST_BYTES = 32 * 1024  # T0 is that of the paper's burst, per producer
_FLAVOUR, _RESAMPLES = "st.v4", 100


def compare(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fit every memory, pair and warp count; several files of one memory are its processes.

    Returns
    -------
    dict
        ``rows``: per memory, pair and warps an Estimate of ``t0_cycles``, ``drain_gb_per_s`` and ``capacity_bytes_per_producer``, and
        their ratios to the reference (null without one). ``largest_deviation``: over all ratios, as a fraction.

    Raises
    ------
    DataError
        No reference among the documents, or one without rows.
    """
    by_memory: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        by_memory.setdefault(document["memory"], []).append(document)
    if REFERENCE not in by_memory:
        raise DataError(f"no file of --memory {REFERENCE} to compare with", "measure one in the same session")
    rows: list[dict[str, Any]] = []
    for memory, group in sorted(by_memory.items(), key=lambda item: item[0] != REFERENCE):
        launches = [_by_pair(document) for document in group]
        for pair in launches[0]:
            for warps in sorted({r["warps"] for r in launches[0][pair]}):
                fitted = _fit([rows_of[pair] for rows_of in launches], warps)
                reference = next((r for r in rows if (r["memory"], r["pair"], r["warps"]) == (REFERENCE, pair, warps)), None)
                ratios = {
                    name: None if reference is None or not e["value"] else e["value"] / reference[name]["value"]
                    for name, e in fitted.items()
                }
                rows.append({"memory": memory, "pair": pair, "warps": warps, "processes": len(group), **fitted, "ratio": ratios})
    away = [abs(v - 1) for r in rows if r["memory"] != REFERENCE for v in r["ratio"].values() if v is not None]
    return {"rows": rows, "largest_deviation": max(away, default=None)}


def _by_pair(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each pair; documents of before held them so."""
    if "pairs" in document:
        return dict(document["pairs"])
    found: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        found.setdefault(row["pair"], []).append(row)
    return found


def _fit(processes: list[list[dict[str, Any]]], warps: int) -> dict[str, Any]:
    chosen = [[r for r in rows if r["warps"] == warps and r["status"] == "ok"] for rows in processes]
    sizes = sorted({r["stores"] for rows in chosen for r in rows})
    if not sizes:
        raise DataError("a file holds no valid row")
    repetitions = 1 + max(r["repetition"] for rows in chosen for r in rows)
    values = np.full((2, len(chosen), repetitions, len(sizes)), np.nan)
    for p, process in enumerate(chosen):
        for r in process:
            values[:, p, r["repetition"], sizes.index(r["stores"])] = r["issue_mean_cycles"], r["issue_max_cycles"]
    producers = chosen[0][0]["producers"]
    clock_mhz = float(np.median([r["sm_clock_mhz"] for rows in chosen for r in rows]))
    fit = fit_cell(Cell(producers, warps, np.array(sizes, float), *values), _FLAVOUR, _RESAMPLES, [0])
    rate = fit.makespan_gb_per_s(clock_mhz) if fit is not None else None
    capacity = fit.capacity_bytes(rate, clock_mhz) if fit is not None and rate is not None else None
    if fit is None or rate is None or capacity is None:
        raise DataError(f"the sweep with {warps} warps shows no knee", "measure more sizes")
    per_producer = Resampled(capacity.value / producers, capacity.draws / producers, capacity.per_process / producers, capacity.repetitions)
    return {
        "t0_cycles": asdict(estimate(fit.free_cycles(BURST_BYTES / fit.store_bytes), statistic="issue_mean")),
        "drain_gb_per_s": asdict(estimate(rate, statistic="issue_max")),
        "capacity_bytes_per_producer": asdict(estimate(per_producer, statistic="issue_mean")),
    }
