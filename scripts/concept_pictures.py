"""Draw the pictures of docs/concepts.md into docs/images, as SVG: two from the simulator, two schematic; each says which it is.

``python scripts/concept_pictures.py [FOLDER]``
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.sim.core import Conditions, course_of_first_burst
from xstage_bench.device.sim.device import SimDevice
from xstage_bench.device.sim.port import issue_times
from xstage_bench.device.sim.presets import PRESETS, Preset
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution
from xstage_bench.show.style import COLOURS, FITTED, MEASURED, freeze_layout, matplotlib_settings, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
PRESET = PRESETS["h200-nv18-x2"]
WARPS = 4
WORK, FREE, STALL = "#dfe3e8", COLOURS[2], COLOURS[3]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """One burst of all SMs, simulated: bytes issued and drained over time, when issue ends (mean over SMs) and when the stage is empty."""

    time_ns: FloatArray
    issued_bytes: FloatArray
    drained_bytes: FloatArray
    issue_ns: float
    empty_ns: float


def burst_course(preset: Preset, kib: int) -> Course:
    """Follow a burst of `kib` KiB per SM by all SMs. A warp-store is issued when the port lets it and the SM has room for it."""
    schedule = Schedule((Burst(kib * 1024),), preset.sm_count, WARPS)
    stores = int(schedule.stores_per_warp()[0])
    credit, capacity, times, drained = course_of_first_burst(preset, schedule, Conditions())
    sent = np.arange(1, stores * WARPS + 1) * schedule.warp_store_bytes
    port = np.sort(issue_times(preset.port, WARPS, stores).ravel())
    issue = np.empty((preset.sm_count, sent.size))
    for i, room in enumerate(capacity):
        known = np.interp(sent - room, drained[:, i], times) + credit
        issue[i] = np.maximum.accumulate(np.where(sent > room, np.maximum(port, known), port))
    at = np.linspace(0.0, 1.05 * times[-1], 400)
    issued = np.asarray(np.searchsorted(np.sort(issue.ravel()), at, side="right") * schedule.warp_store_bytes, dtype=np.float64)
    left = sum(np.interp(at, times, drained[:, i]) for i in range(preset.sm_count))
    ns = 1e3 / preset.sm_clock_mhz
    return Course(at * ns, issued, np.asarray(left), float(issue[:, -1].mean()) * ns, float(times[-1]) * ns)


def stage(preset: Preset = PRESET) -> Figure:
    """A burst that fits beside one that does not: what has been issued, what has drained, and the stage between them."""
    figure = _figure(7.2, 2.9)
    panels = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1, 1.55]})
    for axes, kib, name in zip(panels, (12, 40), ("fits", "does not fit"), strict=True):
        c = burst_course(preset, kib)
        x, issued, drained = c.time_ns / 1e3, c.issued_bytes / 1e6, c.drained_bytes / 1e6
        axes.fill_between(x, drained, issued, color=WORK, label="in the stage")
        axes.plot(x, issued, color=MEASURED, label="issued")
        axes.plot(x, drained, color=FITTED, linestyle="--", label="drained")
        axes.axvline(c.issue_ns / 1e3, color="0.35", linewidth=0.8, linestyle=":")
        axes.set(title=f"{kib} KiB from each of {preset.sm_count} SMs: {name}", xlabel="time (us)", xlim=(0, None), ylim=(0, 5.8))
        if kib == 12:
            axes.annotate("issue ends (T0)", (c.issue_ns / 1e3, 1.7), (0.9, 2.9), arrowprops={"arrowstyle": "-", "lw": 0.6}, fontsize=7.5)
            axes.set_ylabel("bytes of all SMs (MB)")
            axes.legend(loc="upper left")
        else:
            inside = issued - drained
            begins, middle = int(np.argmax(inside > 0.95 * inside.max())), int(np.searchsorted(x, 4.0))
            axes.annotate("", (x[middle], issued[middle]), (x[middle], drained[middle]), arrowprops={"arrowstyle": "<->", "lw": 0.8})
            axes.text(x[middle] + 0.2, 0.68 * issued[middle], f"full: {inside[middle]:.1f} MB", fontsize=7.5, va="center")
            axes.annotate(
                "the stall begins", (x[begins], issued[begins]), (0.8, 4.6), arrowprops={"arrowstyle": "-", "lw": 0.6}, fontsize=7.5
            )
            axes.text(c.issue_ns / 1e3 + 0.2, 0.6, "issue ends\n(mean over SMs)", fontsize=7.5, va="center")
    _foot(figure, f"SIMULATED ({preset.name}); {WARPS} warps per SM, st.v4, no noise")
    return figure


def periods(preset: Preset, kib: int, gaps_cycles: tuple[int, ...], bursts: int = 16) -> list[tuple[FloatArray, FloatArray]]:
    """Return, for each gap, the mean start and end over SMs of equal bursts by all SMs, in ns, as the simulated device measures them."""
    device = SimDevice(preset.name, seed=1)
    found = []
    for gap in gaps_cycles:
        schedule = Schedule((Burst(kib * 1024, gap),) * bursts, preset.sm_count, WARPS, start="free")
        (trace,) = device.measure([Execution(schedule, 0)])
        found.append((trace.start_ns.mean(axis=1), trace.end_ns.mean(axis=1)))
    device.close()
    return found


KIB, GAPS_CYCLES = 12, (0, 3000, 6000, 9000, 14000)
FIRST, LAST = 3, 8  # bursts that are shown: the first ones fill the stage, in the last ones some SMs have finished


def gap(preset: Preset = PRESET) -> Figure:
    """Equal bursts with more and more work between them: the stall shrinks by what the work grows, until it is gone."""
    figure = _figure(7.2, 2.5)
    axes = figure.subplots()
    shown = periods(preset, KIB, GAPS_CYCLES)
    free_ns = float(np.mean(shown[-1][1][FIRST:LAST] - shown[-1][0][FIRST:LAST]))
    for row, (asked, (start, end)) in enumerate(zip(GAPS_CYCLES, shown, strict=True)):
        y = len(GAPS_CYCLES) - 1 - row
        for i in range(FIRST, LAST):
            left, cost, work = ((t / 1e3) for t in (start[i] - start[FIRST], end[i] - start[i], start[i + 1] - end[i]))
            free = min(cost, free_ns / 1e3)
            axes.barh(y, free, 0.62, left, color=FREE, edgecolor="white", linewidth=0.4)
            axes.barh(y, cost - free, 0.62, left + free, color=STALL, hatch="////", edgecolor="white", linewidth=0.4)
            axes.barh(y, work, 0.62, left + cost, color=WORK, edgecolor="white", linewidth=0.4)
        period = float(np.mean(np.diff(start[FIRST : LAST + 1])))
        axes.text(-0.15, y, f"gap {asked / preset.sm_clock_mhz:.1f} us", ha="right", va="center", fontsize=7.5)
        axes.text(22.6, y, f"{period / 1e3:.1f} us", ha="left", va="center", fontsize=7.5)
    axes.text(22.6, len(GAPS_CYCLES) - 0.45, "period", fontsize=7.5, ha="left")
    for colour, hatch, name in ((FREE, "", "issue, free (T0)"), (STALL, "////", "issue, stalled"), (WORK, "", "work in the gap")):
        axes.barh(0, 0, color=colour, hatch=hatch, edgecolor="white", label=name)
    axes.set(xlim=(0, 22.4), xlabel="time (us)", yticks=[], ylim=(-0.6, len(GAPS_CYCLES) + 0.2))
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper left", ncols=3, bbox_to_anchor=(0, 1.08), borderaxespad=0)
    _foot(
        figure,
        f"SIMULATED ({preset.name}); {KIB} KiB from each of {preset.sm_count} SMs, {WARPS} warps, bursts {FIRST + 1} to {LAST} of 16",
    )
    return figure


def stamps() -> Figure:
    """The life of a burst's last stores, and what each stamp waits for."""
    figure = _figure(7.2, 2.2)
    axes = _blank(figure, 100, 34)
    lanes = ((26, "warp"), (18, "SM"), (10, "link"))
    for y, name in lanes:
        axes.text(1, y, name, va="center", fontsize=8.5, fontweight="bold")
    for i in range(6):
        _box(axes, 12 + 5 * i, 26, 4, 4, FREE)
        _box(axes, 22 + 7 * i, 18, 6, 4, COLOURS[4])
        _box(axes, 30 + 10 * i, 10, 9, 4, STALL)
    for x, text, colour in ((41.5, "issued", MEASURED), (63.5, "taken", MEASURED), (89.5, "drained", FITTED)):
        axes.plot([x, x], [4.5, 30], color=colour, linewidth=1.0, linestyle="--")
        axes.text(x, 31, text, ha="center", va="bottom", fontsize=8.5, color=colour, fontweight="bold")
    for x, text in (
        (41.5, "the last store\nhas left its warp"),
        (63.5, "registers free;\nthe SM holds the bytes"),
        (89.5, "a system fence\nreturns after this"),
    ):
        axes.text(x, 4, text, ha="center", va="top", fontsize=7.5)
    axes.annotate("", (63.5, 22.2), (41.5, 22.2), arrowprops={"arrowstyle": "<->", "lw": 0.8})
    axes.text(52.5, 22.6, "stores wait in registers", ha="center", va="bottom", fontsize=7)
    _foot(figure, "schematic, not to scale: six warp-stores of one warp, into a stage that is nearly full")
    return figure


def node() -> Figure:
    """From the SM to the peer: which part of the stage has which number of the node model."""
    figure = _figure(7.2, 2.9)
    axes = _blank(figure, 100, 44)
    y = 36.0
    for unit, pairs in enumerate((3, 2)):
        top = y
        for _ in range(pairs):
            for k in range(2):
                _box(axes, 2 + 7 * k, y, 6, 3.4, WORK, "SM")
            axes.plot([15.2, 24], [y, top - 2.2 * (pairs - 1)], color="0.4", linewidth=0.8)
            y -= 4.4
        middle = top - 2.2 * (pairs - 1)
        _box(axes, 24, middle, 13, 6, COLOURS[2], f"unit of {2 * pairs}", "white")
        axes.annotate("", (52, 22), (37, middle), arrowprops={"arrowstyle": "-|>", "lw": 0.9, "color": "0.3"})
        y -= 2.4 if unit == 0 else 0
    axes.text(15, 7.6, "... 24 units on an H200", fontsize=7.5, ha="center")
    axes.annotate("", (52, 22), (30, 8.5), arrowprops={"arrowstyle": "-|>", "lw": 0.9, "color": "0.3", "linestyle": ":"})
    _box(axes, 52, 22, 12, 8, STALL, "buffer", "white")
    axes.annotate("", (84, 22), (64, 22), arrowprops={"arrowstyle": "-|>", "lw": 2.4, "color": FITTED})
    axes.text(74, 23.4, "link", ha="center", fontsize=8.5, fontweight="bold")
    _box(axes, 84, 22, 14, 12, WORK, "peer's\nmemory")
    for x, text in (
        (9, "an SM drains at r,\nholds c of its own"),
        (30.5, "its SMs share g\nand one turn\nat the link"),
        (58, "takes in b before\nanybody waits"),
        (74, "R, shared evenly by\nthe units that store"),
    ):
        axes.text(x, 4.6, text, ha="center", va="top", fontsize=7.2)
    back = {"arrowstyle": "-|>", "lw": 0.8, "linestyle": "--", "connectionstyle": "arc3,rad=0.22", "color": "0.3"}
    axes.annotate("", (11, 38.4), (66, 23.5), arrowprops=back)
    axes.text(50, 38.5, "credit: an SM learns d cycles later that a byte of its own has drained", fontsize=7.2, ha="left", va="center")
    _foot(figure, "schematic; the letters are those of the node model")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {"stage": stage, "gap-hides-drain": gap, "stamps": stamps, "node": node}


def svg(name: str) -> bytes:
    """Draw one picture; the same matplotlib gives the same bytes."""
    out = io.BytesIO()
    with matplotlib_settings({**style(), "svg.hashsalt": f"xstage-{name}", "path.simplify_threshold": 0.5}):
        figure = PICTURES[name]()
        freeze_layout(figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue()


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure with room for the line at its foot, and none for a heading: the page has one."""
    figure = new_figure(width, height)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0.008, 0.24 / height, 0.984, 1 - 0.24 / height))  # type: ignore[call-arg]
    return figure


def _blank(figure: Figure, width: float, height: float) -> Axes:
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, text: str = "", ink: str = "0.1") -> None:
    """Draw a filled box whose left edge's middle is at (x, y)."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y - height / 2), width, height, facecolor=colour, edgecolor="0.25", linewidth=0.5))
    axes.text(x + width / 2, y, text, ha="center", va="center", fontsize=7.5, color=ink)


def _foot(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, 0.07 / height, text, fontsize=7, color="0.35", ha="left", va="bottom")


def main() -> None:
    """Write every picture into the folder of the first argument."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        (folder / f"{name}.svg").write_bytes(svg(name))
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
