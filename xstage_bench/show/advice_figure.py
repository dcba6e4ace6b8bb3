"""The one figure of an advice: what periodic stores cost against their size and the gap between them, present and advised marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.io.atomic import write_bytes
from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.show.figures import Drawn, FigureSpec, image_bytes
from xstage_bench.show.style import FITTED, MEASURED, matplotlib_settings, new_figure, plain_ticks, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xstage_bench.model.advise.choose import TaskAdvice
    from xstage_bench.model.stage import Stage

#: Period over T0 + G: 1 is no stall.
LEVELS = (1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
SHADES = ("white", "0.96", "0.91", "0.86", "0.80", "0.73", "0.66")
_POINTS = 121


def spacing(schedule: TaskSchedule, sm_clock_mhz: float) -> tuple[float, float]:
    """Bytes that a storing task sends, and the work between two of them in one producer, ns: means over the schedule."""
    s = schedule
    storing = s.remote_bytes > 0
    at = np.flatnonzero(storing)
    done = np.cumsum(s.compute_cycles)
    together = s.producer[at[1:]] == s.producer[at[:-1]]
    gaps = np.diff(done[at])[together]
    gap = float(np.median(gaps)) if gaps.size else float(np.mean(done[at] - done[s.first[s.producer[at]]]))
    return float(s.remote_bytes[storing].mean()), gap * 1e3 / sm_clock_mhz


def draw_advice(advice: TaskAdvice, stage: Stage) -> Figure:
    """Draw period over T0 + G of a stage of all producers alike, max(T0 + G, V/R), and where the two schedules lie.

    Parameters
    ----------
    advice : TaskAdvice
        Of a schedule that stores something.
    stage : Stage
    """
    clock = advice.present.sm_clock_mhz
    marks = {"present": spacing(advice.present.schedule, clock), "advised": spacing(advice.schedule, clock)}
    sizes = [size for size, _ in marks.values()]
    gaps = [max(gap, 50.0) for _, gap in marks.values()]
    x = np.geomspace(min(1024.0, *sizes) / 2, 4 * max(65536.0, *sizes), _POINTS)
    y = np.geomspace(min(200.0, *gaps) / 2, 4 * max(20000.0, *gaps), _POINTS)
    period = np.array([[stage.period_cycles(b, g * stage.sm_clock_mhz * 1e-3) for b in x] for g in y])
    free = np.array([stage.free_cycles(b) for b in x])[None, :] + y[:, None] * stage.sm_clock_mhz * 1e-3
    with matplotlib_settings(style()):
        figure = new_figure(5.8, 4.0)
        axes = figure.subplots()
        axes.contourf(x / 1024, y * 1e-3, period / free, levels=[*LEVELS, np.inf], colors=SHADES)
        lines = axes.contour(x / 1024, y * 1e-3, period / free, levels=LEVELS[1:], colors="0.35", linewidths=0.6)
        axes.clabel(lines, fmt=lambda v: f"{v:g}x", fontsize=7, colors="0.2")
        knee = stage.largest_free_burst_bytes()
        if knee:
            axes.axvline(knee / 1024, color="0.35", linestyle="--", linewidth=0.9)
            axes.text(knee / 1024, y[-1] * 0.9e-3, " larger ones stall alone", fontsize=6.5, va="top", color="0.25")
        for (name, (size, gap)), colour, marker in zip(marks.items(), (FITTED, MEASURED), ("o", "D"), strict=True):
            total = (advice.present if name == "present" else advice.advised).total_ns
            axes.plot(size / 1024, max(gap, 50.0) * 1e-3, marker, color=colour, markersize=7, label=f"{name}: {total * 1e-3:.1f} µs in all")
        axes.set(xscale="log", yscale="log", xlabel="bytes of one storing task, KiB per SM", ylabel="work between two of them, µs")
        plain_ticks(axes)
        axes.grid(False)
        axes.margins(0)
        axes.legend(loc="lower left", frameon=True, framealpha=0.9)
        axes.set_title(f"Period over T0 + gap, {stage.producers} SMs x {stage.warps} warps, {stage.flavour}, predicted", loc="left")
    return figure


def write_advice_figure(advice: TaskAdvice, stage: Stage, path: Path) -> None:
    """Draw and write it; the suffix says as what: .png or .svg."""
    spec = FigureSpec("advice", "Advice", "", lambda *_: None)
    write_bytes(path, image_bytes(Drawn(spec, draw_advice(advice, stage)), path.suffix.lstrip(".").lower()))
