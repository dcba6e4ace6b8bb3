"""The look that all figures share: settings, colours, the label that every figure carries, ticks and legends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from xstage_bench.record.reader import Run

SMALLEST_TEXT = 5.5
#: Okabe and Ito: told apart without red and green; in grey by marker and line style, which differ as well.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
MEASURED, FITTED, FAINT = "#000000", "#d55e00", "#b8b8b8"


def style() -> dict[str, Any]:
    """Return the matplotlib settings of all figures, for `matplotlib.rc_context`."""
    return {
        "figure.dpi": 120, "savefig.dpi": 160, "figure.facecolor": "white", "axes.facecolor": "white", "font.family": "DejaVu Sans",
        "font.size": 8.5, "axes.titlesize": 9, "axes.labelsize": 8.5, "axes.linewidth": 0.7, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6,
        "legend.fontsize": 7.5, "legend.frameon": False, "legend.handlelength": 2.6, "lines.linewidth": 1.2, "lines.markersize": 4.0,
        "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "hatch.linewidth": 0.6, "svg.fonttype": "none", "axes.unicode_minus": True,
    }  # fmt: skip


def new_figure(width: float = 6.4, height: float = 4.0, *, legend_rows: int = 0) -> Figure:
    """Return an empty figure in inches, with room for the heading, for a legend below it, and for the label at the foot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        foot, head = 0.24 / height, (0.30 + 0.17 * legend_rows) / height
        engine.set(rect=(0.008, foot, 0.984, 1 - foot - head))  # type: ignore[call-arg]
    return figure


def freeze_layout(figure: Figure) -> None:
    """Lay the axes out once and round where they stand: the solver's last bits differ between runs and would reach every SVG id."""
    from matplotlib.transforms import Bbox

    engine = figure.get_layout_engine()
    if engine is None:
        return
    engine.execute(figure)
    figure.set_layout_engine(None)  # "none" would leave a place holder, for whose sake every image is drawn twice
    for axes in figure.axes:
        for which in (True, False):
            corners = axes.get_position(original=which).get_points().round(5)
            axes.set_position(Bbox(corners), which="original" if which else "active")


def label(figure: Figure, run: Run, n: int | str, heading: str = "") -> None:
    """Write heading, GPU, date, backend and n onto a figure, and SIMULATED when the run's manifest says so.

    Parameters
    ----------
    figure : Figure
        Made by `new_figure`.
    run : Run
    n : int or str
        How many bursts are drawn, or a phrase that says it ("21 repetitions of 40 schedules").
    heading : str
        Left above the axes: what this run has found, in words. The report takes it as the figure's title (`Figure.get_label`).
    """
    manifest = run.manifest
    figure.set_label(heading)
    width, height = figure.get_size_inches()
    count = f"n = {thousands(n)} bursts" if isinstance(n, int) else n
    foot = f"{gpu_names(run)}  ·  {manifest.created[:10]}  ·  {count}  ·  backend {manifest.backend}"
    written = figure.text(0.1 / width, 0.07 / height, foot, fontsize=7, color="0.35", ha="left", va="bottom")
    _shrink(figure, written, width - 0.2)
    if heading:
        written = figure.text(0.1 / width, 1 - 0.08 / height, heading, fontsize=9.5, fontweight="bold", ha="left", va="top")
        _shrink(figure, written, width - (1.2 if manifest.simulated else 0.2))
    if manifest.simulated:
        box = {"boxstyle": "square,pad=0.25", "facecolor": "white", "edgecolor": "0.1", "linewidth": 1.0}
        figure.text(1 - 0.12 / width, 1 - 0.1 / height, "SIMULATED", fontsize=8, fontweight="bold", ha="right", va="top", bbox=box)


def _shrink(figure: Figure, written: Text, room: float) -> None:
    """Make a line of text smaller until it fits into so many inches, then cut it: names of GPUs and backends have no fixed length."""

    def taken() -> float:
        return float(written.get_window_extent().width / figure.dpi)

    while taken() > room and float(written.get_fontsize()) > SMALLEST_TEXT:
        written.set_fontsize(max(SMALLEST_TEXT, 0.95 * float(written.get_fontsize())))
    text = written.get_text()
    while taken() > room and len(text) > 1:
        text = text[: min(len(text) - 1, int(len(text) * room / taken()))]
        written.set_text(text.rstrip() + "…")


def plain_ticks(axes: Axes, which: str = "xy") -> None:
    """Label log axes with plain numbers, at 1, 2 and 5 when the axis spans about two decades or fewer."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in which:
        axis, (low, high) = (axes.xaxis, axes.get_xlim()) if name == "x" else (axes.yaxis, axes.get_ylim())
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 150 * low else (1.0,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def top_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Put the legend of `axes` between heading and axes, for a figure made with `legend_rows`."""
    handles, names = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    where = (0.1 / width, 1 - 0.30 / height)
    figure.legend(
        handles, names, loc="upper left", bbox_to_anchor=where, ncols=columns, borderaxespad=0.0, columnspacing=1.4, borderpad=0.0
    )


def gpu_names(run: Run) -> str:
    """Return the GPUs of a run as "2 x NVIDIA H200"; different models are joined."""
    names = [g.name for g in run.manifest.node.gpus]
    return " + ".join(f"{names.count(n)} × {n}" for n in dict.fromkeys(names)) or "no GPU recorded"


def counted(n: int, noun: str) -> str:
    """Return "1 pair" or "12 345 pairs"."""
    return f"{thousands(n)} {noun}{'' if n == 1 else 's'}"


def thousands(n: int) -> str:
    """Return 12345 as "12 345", with a thin space."""
    return f"{n:,}".replace(",", "\u2009")


def series_style(i: int) -> dict[str, Any]:
    """Return colour, marker and line style of series `i`; the first seven differ in all three."""
    k = i % len(COLOURS)
    return {"color": COLOURS[k], "marker": MARKERS[k], "linestyle": LINES[k]}


@contextmanager
def matplotlib_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Set matplotlib's settings for one drawing, from its defaults: a user's matplotlibrc must not change a figure."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")})
        matplotlib.rcParams.update(cast(Any, settings))
        yield
