"""``replay.json`` and ``summary.json``: a replay's rows, with what a model predicted for each beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.schedule.tasks import TaskSchedule

Predict = Callable[[TaskSchedule, float], tuple[float, float]]
DOCUMENT, SUMMARY = "replay.json", "summary.json"


def read_replay(path: Path) -> dict[str, Any]:
    """Read a ``replay.json``, or one that was compressed for keeping (``replay.json.gz``).

    Raises
    ------
    UsageError, DataError
        As `read_json`.
    """
    return read_json(path, dict[str, Any])


def summary_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of ``summary.json``: workload, schedule, measured, without stores, predicted, to the ns; null where there is none."""
    return [
        {
            "workload": row.get("workload"),
            "schedule": row["schedule"],
            "measured_us": _to_ns(_value(row["total_us"])),
            "no_store_us": _to_ns(_value(row["no_store_us"])),
            "predicted_us": _to_ns(row.get("predicted_us")),
            "predicted_no_store_us": _to_ns(row.get("predicted_no_store_us")),
            "compute": document["compute"],
            "repetitions": document["repetitions"] * document["processes"],
        }
        for row in document["rows"]
    ]


def write_summary(folder: Path) -> Path:
    """Write ``summary.json`` of a folder that holds replays, one of its own or one in each subfolder; regenerated from them alone."""
    files = sorted({*folder.glob(f"{DOCUMENT}*"), *folder.glob(f"*/{DOCUMENT}*")})
    rows = [row for path in files for row in summary_rows(read_replay(path))]
    write_json(folder / SUMMARY, {"schema_version": 1, "rows": rows})
    return folder / SUMMARY


def with_predictions(document: dict[str, Any], schedules: Sequence[TaskSchedule], predict: Predict) -> dict[str, Any]:
    """Return the document with what was predicted for each row, at the SM clocks that were measured, and how good that was.

    Parameters
    ----------
    document : dict
        As `read_replay` gives it.
    schedules : sequence of TaskSchedule
        Those of its rows, and maybe others.
    predict : callable
        ``(schedule, sm_clock_mhz) -> (total ns, ns of the same without stores)``.
    """
    known = {s.key(): s for s in schedules}
    rows = []
    for row in document["rows"]:
        clock, bare_clock = (_value(row[name]) for name in ("sm_clock_mhz", "no_store_sm_clock_mhz"))
        if row["key"] in known and clock is not None and bare_clock is not None:
            total, bare = predict(known[row["key"]], clock)
            # The twin ran at a clock of its own; without stores all of its time is the SM's.
            row = {**row, "predicted_us": total / 1e3, "predicted_no_store_us": bare / 1e3 * clock / bare_clock}
        rows.append(row)
    document = {**document, "rows": rows}
    return {**document, "prediction": errors(summary_rows(document))}


def errors(rows: Iterable[dict[str, Any]]) -> dict[str, float | int | None]:
    """Judge the predictions: relative errors of the total and of the part that is due to stores, as fractions.

    The part due to stores is judged where stores cost 15 % or more: below, its relative error is that of a small difference.
    """
    total, part = [], []
    for row in rows:
        measured, bare = row["measured_us"], row["no_store_us"]
        predicted, predicted_bare = row.get("predicted_us"), row.get("predicted_no_store_us")
        if measured is None or bare is None or predicted is None:
            continue
        total.append(abs(predicted / measured - 1))
        if predicted_bare is not None and measured >= 1.15 * bare:
            part.append(abs((predicted - predicted_bare) / (measured - bare) - 1))
    return {
        "n": len(total),
        "total_median_error": _quantile(total, 0.5),
        "total_p95_error": _quantile(total, 0.95),
        "total_largest_error": _quantile(total, 1.0),
        "slowed": len(part),
        "stores_median_error": _quantile(part, 0.5),
    }


def _quantile(values: list[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def _value(estimate: dict[str, Any]) -> float | None:
    value: float | None = estimate["value"]
    return value


def _to_ns(us: float | None) -> float | None:
    return None if us is None else round(us, 3)
