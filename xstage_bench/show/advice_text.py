"""An advice as text and as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xstage_bench.model.advise.choose import TaskAdvice
from xstage_bench.model.advise.job import JobAdvice

#: Times are shown with this unit; the JSON has nanoseconds.
_US = 1e-3


def tasks_document(advice: TaskAdvice) -> dict[str, Any]:
    """Return the advice for one task schedule as plain values."""
    interval = advice.gain_interval
    return {
        "name": advice.present.schedule.name, "schedule": advice.present.schedule.key(), "advised_schedule": advice.schedule.key(),
        "pair": advice.present.pair, "sm_clock_mhz": advice.present.sm_clock_mhz, "helps": advice.helps, "reason": advice.reason,
        "recipe": asdict(advice.recipe), "total_ns": advice.present.total_ns, "without_stores_ns": advice.present.without_stores_ns,
        "advised_total_ns": advice.advised.total_ns, "advised_without_stores_ns": advice.advised.without_stores_ns, "gain": advice.gain,
        "gain_low": None if interval is None else interval[0], "gain_high": None if interval is None else interval[1],
        "gain_level": None if interval is None else 0.9,
        "candidates": [{**asdict(c.recipe), "total_ns": c.total_ns, "without_stores_ns": c.without_stores_ns} for c in advice.candidates],
        "notes": list(advice.present.notes),
    }  # fmt: skip


def job_document(advice: JobAdvice) -> dict[str, Any]:
    """Return the advice for a job as plain values; what does not apply is null."""
    stage = advice.stage
    return {
        "job": asdict(advice.job), "stored_bytes": advice.job.stored_bytes,
        "t0_ns": stage.free_cycles(advice.job.stored_bytes) * 1e3 / stage.sm_clock_mhz,
        "drain_gb_per_s": asdict(stage.drain_gb_per_s), "capacity_bytes": asdict(stage.capacity_bytes), "limited_by": limited_by(advice),
        "drain_ns": advice.drain_ns, "compute_ns": advice.job.compute_ns, "drain_over_compute": advice.drain_over_compute,
        "bound_ns": advice.bound_ns, "largest_free_burst_bytes": advice.largest_free_burst_bytes,
        "smallest_gap_ns": advice.smallest_gap_ns, "quiet_tiles_per_storing_tile": advice.quiet_per_storing,
        "minimum_lead_tiles": advice.minimum_lead, "storing_sms": advice.storing_sms, "flavours": [asdict(row) for row in advice.flavours],
        "flavour": advice.flavours[0].flavour if advice.flavours else None, "tasks": tasks_document(advice.tasks),
    }  # fmt: skip


def limited_by(advice: JobAdvice) -> str:
    """``drain`` where all bytes need longer than all the work, else ``compute``."""
    return "drain" if advice.drain_over_compute > 1 else "compute"


def tasks_text(advice: TaskAdvice) -> str:
    """Return the advice for one task schedule in a few lines."""
    p, a = advice.present, advice.advised
    lines = [
        f"{p.schedule.name or 'schedule'}: {p.schedule.task_count} tasks of {p.schedule.producer_count} SMs, pair {p.pair}, "
        f"SM clock {p.sm_clock_mhz:.0f} MHz",
        f"present   {p.total_ns * _US:10.1f} us, of which the stores are {p.stores_ns * _US:.1f} us",
    ]
    if advice.helps:
        lines += [
            f"advised   {a.total_ns * _US:10.1f} us, of which the stores are {a.stores_ns * _US:.1f} us: {advice.recipe.words()}",
            f"gain      {gain_words(advice)}",
        ]
    else:
        lines.append(f"nothing to change: {advice.reason}")
    return "\n".join([*lines, *(f"note: {note}" for note in p.notes)])


def gain_words(advice: TaskAdvice) -> str:
    """Return a gain with its interval."""
    interval = advice.gain_interval
    return f"{advice.gain:.3f} times" + ("" if interval is None else f" (90 %: {interval[0]:.3f} to {interval[1]:.3f})")


def job_text(advice: JobAdvice) -> str:
    """Return the advice for a job: what limits it, what follows from T0, R and Q, and the two schedules."""
    job = advice.job
    share = f"V/R is {advice.drain_over_compute:.2f} of the compute time ({advice.drain_ns * _US:.1f} of {job.compute_ns * _US:.1f} us)"
    head = [
        f"{job.producers} SMs x {job.warps} warps, pair {job.pair}, {job.flavour}: {share}",
        f"limited by the {limited_by(advice)}: no order is faster than {advice.bound_ns * _US:.1f} us",
    ]
    return "\n".join([*head, *job_lines(advice), tasks_text(advice.tasks)])


def job_lines(advice: JobAdvice) -> list[str]:
    """Return what follows for a job from T0, R and Q alone: bursts, gaps, quiet tiles, SMs, flavours."""
    job, stage, free = advice.job, advice.stage, advice.largest_free_burst_bytes
    lines = [
        "a burst never stalls on a drained stage"
        if free is None
        else f"largest stall-free burst    {free} bytes per SM, on a drained stage",
        f"smallest gap                {advice.smallest_gap_ns:.0f} ns between stores of {job.stored_bytes} bytes per SM",
    ]
    if job.with_stores_ns is not None:
        lines.append(f"the stores cost now         {max(0.0, job.with_stores_ns - job.tile_ns):.0f} ns a storing tile (as given)")
    if advice.quiet_per_storing is None:
        lines.append("interleaving                there are no quiet tiles to put between the storing ones")
    else:
        have = job.quiet_tiles / job.tiles
        enough = "enough" if have >= advice.quiet_per_storing else "not enough: the drain stays the limit"
        lines.append(
            f"interleaving                {advice.quiet_per_storing:.2f} quiet tiles a storing tile; the job has {have:.2f}, {enough}"
        )
    if advice.minimum_lead is not None:
        lines.append(f"minimum lead                {advice.minimum_lead:g} quiet tiles of an SM: the shortest within 1 % of the best")
    rate = stage.rate_gb_per_s
    lines.append(f"SMs that should store       {advice.storing_sms} drain nearly what all {job.producers} do ({_number(rate)} GB/s)")
    lines.append(f"flavour                     {_flavour_words(advice)}")
    return lines


def _flavour_words(advice: JobAdvice) -> str:
    rows = advice.flavours
    if len(rows) == 1:
        return f"{rows[0].flavour}; the model has no other for this pair (xstage profile --only flavours)"
    best, own = rows[0], next(r for r in rows if r.flavour == advice.job.flavour)
    if own.period_ns <= best.period_ns:
        return f"{own.flavour}: none of {len(rows)} is faster here"
    return f"{best.flavour}: {best.period_ns:.0f} instead of {own.period_ns:.0f} ns a storing tile with its share of quiet work"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"
