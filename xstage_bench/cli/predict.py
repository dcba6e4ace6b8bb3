"""``xstage predict``: what a schedule of the user's own would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.workload import check_workload, show_workload, workload_options

if TYPE_CHECKING:
    from xstage_bench.model.predict import PredictedSchedule
    from xstage_bench.schedule import Schedule

ROWS_SHOWN = 64
COLUMNS = (
    "burst",
    "start_ns",
    "t0_cycles",
    "issue_cycles",
    "issue_low_cycles",
    "issue_high_cycles",
    "issue_max_cycles",
    "backlog_bytes",
    "visible_ns",
    "regime",
)


@click.command("predict", short_help="Predict a schedule file.")
@click.argument("model", type=FILE)
@click.argument("schedule", type=FILE, required=False)
@workload_options
@click.option("--pair", metavar="A>B", help="Use the model of this pair; default: the schedule's own.")
@click.option("--sm-clock-mhz", type=float, metavar="MHZ", help="Predict for this SM clock; default: the model's.")
@common
def command(out: Output, model: Path, schedule: Path | None, pair: str | None, sm_clock_mhz: float | None, **workload: Any) -> int:
    """Predict the issue time of every burst of SCHEDULE with MODEL (a model.json, or a fitted run folder).

    SCHEDULE is JSON, {"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536, "gap_cycles": 2000}]},
    or CSV with one row for each burst: columns bytes, producers and, as needed, gap_cycles, start_ns, warps, start,
    flavour, layout, source, destination, schedule.

    Or every phase of a real model under a parallel layout, with its stores as they are and as advised: --workload keye-vl-2 --ep 8 --sp 4.
    """
    from xstage_bench.pipeline import find_model, is_simulated, predict_schedules
    from xstage_bench.schedule_file import load_schedules

    check_workload(schedule, workload)
    loaded = find_model(model)
    if schedule is None:
        return show_workload(out, loaded, pair=pair, sm_clock_mhz=sm_clock_mhz, **workload)
    schedules = load_schedules(schedule)
    predicted = predict_schedules(loaded, schedules, pair=pair, sm_clock_mhz=sm_clock_mhz)
    document = {
        "backend": loaded.backend,
        "simulated": is_simulated(loaded),
        "schedules": [
            {
                "schedule": s.key(),
                "pair": p.pair,
                "model": p.model,
                "sm_clock_mhz": p.sm_clock_mhz,
                "total_ns": p.total_ns,
                "bursts": p.rows(),
            }
            for s, p in zip(schedules, predicted, strict=True)
        ],
    }
    out.result(document, "\n\n".join(_text(s, p) for s, p in zip(schedules, predicted, strict=True)))
    outside = sum(not p.in_calibrated_range.all() for p in predicted)
    if outside:
        out.note(f"{outside} of {len(predicted)} schedules lie outside what the model was fitted on; their numbers are extrapolated")
    return 0


def _text(schedule: Schedule, predicted: PredictedSchedule) -> str:
    rows: list[dict[str, Any]] = predicted.rows()
    k, w = schedule.producer_count, schedule.warps
    what = f"pair {predicted.pair}, {predicted.model} model, {k} producers x {w} warps, {schedule.start}"
    head = f"{what}: {len(rows)} bursts in {predicted.total_ns:.0f} ns"
    shown = table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows[:ROWS_SHOWN]])
    more = f"\n... and {len(rows) - ROWS_SHOWN} more bursts; --json has all" if len(rows) > ROWS_SHOWN else ""
    return f"{head}\n{shown}{more}"
