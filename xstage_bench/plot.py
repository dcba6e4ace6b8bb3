"""Figures of a recorded run: the common style, the label that every figure carries, and how they are drawn and written.

A figure is a function of (run, model, validation) in one file of ``analysis/``; it reads what was measured and what was fitted,
and never fits. Drawing the same run again gives the same bytes: the Agg canvas, fixed SVG ids, no date in the metadata.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xstage_bench.errors import UsageError
from xstage_bench.loader import load_named
from xstage_bench.record.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run

log = logging.getLogger(__name__)

FORMATS = ("png", "svg")
#: Series from dark to light, so that they stay apart in grey; they differ in marker and line style as well.
COLOURS = ("#1b1b3a", "#8c2d04", "#1f6f8b", "#d0702b", "#5d9c59", "#9aa5b1", "#c9a227")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
HATCHES = ("", "////", "....", "xxxx")
MEASURED, FITTED, FAINT = "#1b1b3a", "#c0392b", "#b8b8b8"


@dataclass(frozen=True, slots=True)
class Absent:
    """What a figure returns in place of a drawing: the reason, in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """One figure.

    Parameters
    ----------
    name : str
        File name without suffix.
    title : str
        Heading in the report.
    caption : str
        How to read it: one or two sentences.
    draw : callable
        (run, model, validation or None) to a Figure, or to `Absent` when the run lacks its data.
    order : int
        Place in the report, ascending.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Run, Model, Validation | None], Figure | Absent | None]
    order: int = 100


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn, or why not. `failed` tells an error in the figure's own code from data that is absent."""

    spec: FigureSpec
    figure: Figure | None
    reason: str | None = None
    failed: bool = False


def style() -> dict[str, Any]:
    """Return the matplotlib settings of all figures, for `matplotlib.rc_context`."""
    return {
        "figure.dpi": 120,
        "savefig.dpi": 160,
        "figure.facecolor": "white",
        "axes.facecolor": "white",
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "axes.titlesize": 9,
        "axes.labelsize": 8.5,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.0,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "path",
        "axes.unicode_minus": True,
    }


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
        Left above the axes.
    """
    manifest = run.manifest
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
    """Make a line of text smaller until it fits into so many inches: names of GPUs and backends have no fixed length."""
    taken = written.get_window_extent().width / figure.dpi
    if taken > room:
        written.set_fontsize(0.97 * float(written.get_fontsize()) * room / taken)  # hinting rounds each letter


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


def load_figures(extra_dirs: Sequence[Path] = ()) -> dict[str, FigureSpec]:
    """Load the figures of ``analysis/`` and of the user's folders: each file defines ``FIGURE``.

    Raises
    ------
    UsageError, DataError
        As `xstage_bench.loader.load_named`.
    """
    found = load_named("analysis", "FIGURE", FigureSpec, extra_dirs)
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def render_figures(
    run: Run, model: Model, validation: Validation | None, only: Iterable[str] | None = None, extra_dirs: Sequence[Path] = ()
) -> list[Drawn]:
    """Draw figures in memory.

    A figure whose code raises is returned as failed with its error and logged, so that one bad figure of a user does not cost
    the others; absent data is no failure.

    Raises
    ------
    UsageError
        `only` names a figure that does not exist.
    """
    specs = load_figures(extra_dirs)
    wanted = list(specs) if only is None else list(only)
    for name in wanted:
        if name not in specs:
            raise UsageError(f"there is no figure '{name}'", f"use one of: {', '.join(specs)}")
    drawn, run = [], read_once(run)
    for name in wanted:
        with _settings(style()):
            drawn.append(_draw(specs[name], run, model, validation))
    return drawn


def read_once(run: Run) -> Run:
    """Return the run with tables that are read on first use and then kept: ten figures ask for them, and none changes them."""
    kept: dict[str, Any] = {}

    class Kept:
        folder, manifest, name = run.folder, run.manifest, run.name

        def __getattr__(self, table: str) -> Any:
            read = getattr(run, table)
            return lambda: kept[table] if table in kept else kept.setdefault(table, read())

    return cast("Run", Kept())


@contextmanager
def _settings(settings: dict[str, Any]) -> Iterator[None]:
    """Set matplotlib's settings for one drawing, from its defaults: a user's matplotlibrc must not change a figure."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")})
        matplotlib.rcParams.update(cast(Any, settings))
        yield


def _draw(spec: FigureSpec, run: Run, model: Model, validation: Validation | None) -> Drawn:
    try:
        result = spec.draw(run, model, validation)
        if result is not None and not isinstance(result, Absent):
            _freeze_layout(result)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        log.warning("figure '%s' could not be drawn: %s", spec.name, what)
        log.debug("figure '%s'", spec.name, exc_info=True)
        return Drawn(spec, None, f"could not be drawn: {what}", failed=True)
    if result is None:
        return Drawn(spec, None, "the run does not hold its data")
    if isinstance(result, Absent):
        return Drawn(spec, None, result.reason)
    return Drawn(spec, result)


def _freeze_layout(figure: Figure) -> None:
    """Lay the axes out once and round where they stand: the solver's last bits differ between runs and would reach every SVG id."""
    from matplotlib.transforms import Bbox

    engine = figure.get_layout_engine()
    if engine is None:
        return
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        for which in (True, False):
            corners = axes.get_position(original=which).get_points().round(5)
            axes.set_position(Bbox(corners), which="original" if which else "active")


def image_bytes(drawn: Drawn, fmt: str) -> bytes:
    """Return a drawn figure as PNG or SVG; the same figure gives the same bytes.

    Parameters
    ----------
    drawn : Drawn
        With a figure.
    fmt : {'png', 'svg'}
    """
    if drawn.figure is None:
        raise ValueError(f"figure '{drawn.spec.name}' was not drawn: {drawn.reason}")
    metadata = {"Software": None} if fmt == "png" else {"Date": None, "Creator": None, "Format": None, "Type": None}
    out = io.BytesIO()
    settings = {**style(), "svg.hashsalt": f"xstage-{drawn.spec.name}"}  # a salt per figure keeps the ids of two inline SVGs apart
    with _settings(settings):
        drawn.figure.savefig(out, format=fmt, metadata=metadata)
    return out.getvalue()


def draw_figures(
    run: Run,
    model: Model,
    validation: Validation | None,
    out_dir: Path,
    only: Iterable[str] | None = None,
    extra_dirs: Sequence[Path] = (),
) -> list[Path]:
    """Draw figures and write each as PNG and SVG.

    Returns
    -------
    list of Path
        What was written. A figure whose data is absent writes nothing; the report says why.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for drawn in render_figures(run, model, validation, only, extra_dirs):
        for fmt in FORMATS:
            path = out_dir / f"{drawn.spec.name}.{fmt}"
            if drawn.figure is None:
                path.unlink(missing_ok=True)  # figures are derived: one of an older model must not stay
            else:
                write_bytes(path, image_bytes(drawn, fmt))
                written.append(path)
    return written
