"""Matrix of ordered pairs with R, Q and T0; a pair that is far from the others is called out, a failed one is hatched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.headline import headline_entry, headline_rate, t0_bytes
from xstage_bench.schedule.bursts import HOST
from xstage_bench.show.figures import Absent, FigureSpec, counted, label, new_figure

from ._common import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, PairModel, Validation
    from xstage_bench.record.reader import Run

#: An outlier is both far from the median pair in units of the pairs' own spread, and far enough to matter.
OUTLIER_SPREADS, OUTLIER_SHARE = 5.0, 0.05
DETAILED_UP_TO = 4


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw R as shade and number, Q and T0 below it, one cell for each source and destination."""
    failed = run.manifest.failed_pairs
    by_pair = {(int(s), int(d)): p for p in model.pairs for s, _, d in [p.pair.partition(">")]}
    rates = {key: rate[0].value for key, p in by_pair.items() if (rate := headline_rate(p)) is not None and rate[0].value is not None}
    if not rates and not failed:
        return Absent("no pair has an identified drain rate")
    gpus = [g.index for g in run.manifest.node.gpus] or sorted({i for key in by_pair for i in key if i >= 0})
    if any(destination == HOST for _, destination in by_pair):
        gpus.append(HOST)
    remote = {key: rate for key, rate in rates.items() if key[0] != key[1]}
    odd = outliers(remote)
    values = list(remote.values()) or list(rates.values()) or [0.0]
    median = float(np.median(values))

    size = max(2.4, min(7.2, 0.3 + (1.15 if len(gpus) <= DETAILED_UP_TO else 0.72) * len(gpus)))
    figure = new_figure(max(5.4, size + 1.6), size + 1.3)
    axes = figure.subplots()
    low, high = min(0.8 * median, *values), max(1.05 * median, *values)
    for row, source in enumerate(gpus):
        for column, destination in enumerate(gpus):
            key = (source, destination)
            if f"{source}>{destination}" in failed:
                _cell(axes, row, column, "white", hatch="////")
                axes.text(column, row, "failed", ha="center", va="center", fontsize=7.5, fontweight="bold", bbox=_PAPER)
            elif key in rates and source != destination:
                shade = 0.97 - 0.45 * (rates[key] - low) / max(high - low, 1e-9)
                _cell(axes, row, column, str(round(shade, 3)), thick=key in odd)
                _write(axes, row, column, by_pair[key], rates[key], len(gpus) <= DETAILED_UP_TO, key in odd)
            elif key in rates:
                _cell(axes, row, column, "white")
                axes.text(column, row, f"own memory\n{rates[key]:.0f} GB/s", ha="center", va="center", fontsize=6.5, color="0.35")
            else:
                _cell(axes, row, column, "white")
                axes.text(column, row, "–", ha="center", va="center", color="0.5")
    ticks = np.arange(len(gpus))
    axes.set(xticks=ticks, yticks=ticks, xticklabels=_names(gpus), yticklabels=_names(gpus))
    axes.set(xlim=(-0.55, len(gpus) - 0.45), ylim=(len(gpus) - 0.45, -0.55), xlabel="destination", ylabel="source (stores)", aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(_summary(run, remote, odd, median), fontsize=7.5, loc="left", color="0.2")
    repetitions = max((e.repetitions for p in by_pair.values() for e in p.burst_gap), default=0)
    label(
        figure,
        run,
        f"n = {counted(len(remote), 'pair')}, {counted(repetitions, 'repetition')}",
        _finding(remote, odd) + (": R, Q, T0" if len(gpus) <= DETAILED_UP_TO else ": R (GB/s) above Q (MB)"),
    )
    return figure


def outliers(rates: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
    """Return the pairs whose R is more than 5 median deviations and 5 % from the median pair; none among fewer than 4 pairs."""
    if len(rates) < 4:
        return set()
    values: Array = np.array(list(rates.values()))
    median = float(np.median(values))
    typical = float(np.median(np.abs(values - median)))
    limit = max(OUTLIER_SPREADS * 1.4826 * typical, OUTLIER_SHARE * median)
    return {key for key, rate in rates.items() if abs(rate - median) > limit}


def _finding(remote: dict[tuple[int, int], float], odd: set[tuple[int, int]]) -> str:
    """Say whether the pairs are alike, or how many are not."""
    if not remote:
        return "No pair has a rate"
    slowest = min(remote, key=lambda key: remote[key])
    what = f"{len(odd)} of {len(remote)} pairs stand out" if odd else f"{counted(len(remote), 'pair')} and none stands out"
    return f"{what}, the slowest is {slowest[0]} → {slowest[1]}"


def _write(axes: Axes, row: int, column: int, pair: PairModel, rate: float, detailed: bool, odd: bool) -> None:
    entry = headline_entry(pair)
    lines = [f"{rate:.0f} GB/s" if detailed else f"{rate:.0f}"]
    if entry is not None:
        q, t0 = entry.capacity_bytes.value, entry.t0_cycles.value
        if detailed:
            lines.append("Q not identified" if q is None else f"Q {q / 1e6:.2f} MB")
        else:
            lines.append("–" if q is None else f"{q / 1e6:.2f}")
        if detailed and t0 is not None:
            lines.append(f"T0 {t0:.0f} cycles")
            lines.append(f"({t0_bytes(entry) / 1e3:.0f} kB per SM)")
    heavy = "bold" if odd else "normal"
    axes.text(
        column, row, "\n".join(lines), ha="center", va="center", fontsize=7.5 if detailed else 6.5, fontweight=heavy, linespacing=1.35
    )


def _cell(axes: Axes, row: int, column: int, colour: str, *, hatch: str = "", thick: bool = False) -> None:
    from matplotlib.patches import Rectangle

    width, edge = (2.4, "#d55e00") if thick else (0.6, "0.6")
    box = Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, facecolor=colour, edgecolor=edge, linewidth=width, hatch=hatch)
    axes.add_patch(box)


def _names(gpus: list[int]) -> list[str]:
    return ["host" if g == HOST else f"GPU {g}" for g in gpus]


def _summary(run: Run, remote: dict[tuple[int, int], float], odd: set[tuple[int, int]], median: float) -> str:
    line = run.manifest.node.line_rate_gb_per_s
    of_line = f" of {line:.0f} line rate" if line else ""
    parts = [f"median R {median:.0f} GB/s{of_line}"] if remote else []
    parts += [f"outlier {s} → {d}: {remote[s, d]:.0f} ({100 * (remote[s, d] / median - 1):+.0f} %)" for s, d in sorted(odd)[:3]]
    if len(odd) > 3:
        parts.append(f"and {len(odd) - 3} more")
    return "\n".join(parts)


_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}

FIGURE = FigureSpec(
    name="pairs",
    title="Ordered pairs of GPUs",
    caption=(
        "Row: the GPU that stores; column: the GPU whose memory receives. Darker is a higher drain rate. A pair far from the "
        "median of the others is framed and named, a pair that failed is hatched and has no number."
    ),
    draw=draw,
    order=70,
)
