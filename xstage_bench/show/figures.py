"""Figures of a recorded run: what a figure is, and how figures are loaded, drawn and written. Their look is in `plot_style`.

A figure is a function of (run, model, validation) in one file of ``analysis/``; it reads what was measured and what was fitted,
and never fits. Drawing the same run again gives the same bytes: the Agg canvas, fixed SVG ids, no date in the metadata.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xstage_bench.errors import UsageError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.loader import load_named
from xstage_bench.show.style import (
    FAINT,
    FITTED,
    MEASURED,
    counted,
    freeze_layout,
    gpu_names,
    label,
    matplotlib_settings,
    new_figure,
    plain_ticks,
    series_style,
    style,
    thousands,
    top_legend,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run

__all__ = [
    "FAINT", "FITTED", "FORMATS", "MEASURED", "Absent", "Drawn", "FigureSpec", "counted", "draw_figures", "gpu_names", "image_bytes",
    "label", "load_figures", "new_figure", "plain_ticks", "read_once", "render_figures", "series_style", "style", "thousands", "top_legend",
]  # fmt: skip

log = logging.getLogger(__name__)

FORMATS = ("png", "svg")


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
    """A figure that was drawn, or why not. `failed` tells an error in the figure's own code from data that is absent.

    `images` keeps what `image_bytes` made of it: the files and the report want the same ones, and making one takes a second.
    """

    spec: FigureSpec
    figure: Figure | None
    reason: str | None = None
    failed: bool = False
    images: dict[str, bytes] = field(default_factory=dict)


def load_figures(extra_dirs: Sequence[Path] = ()) -> dict[str, FigureSpec]:
    """Load the figures of ``analysis/`` and of the user's folders: each file defines ``FIGURE``.

    Raises
    ------
    UsageError, DataError
        As `xstage_bench.io.loader.load_named`.
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
        with matplotlib_settings(style()):
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


def _draw(spec: FigureSpec, run: Run, model: Model, validation: Validation | None) -> Drawn:
    try:
        result = spec.draw(run, model, validation)
        if result is not None and not isinstance(result, Absent):
            freeze_layout(result)
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
    if fmt in drawn.images:
        return drawn.images[fmt]
    metadata = {"Software": None} if fmt == "png" else {"Date": None, "Creator": None, "Format": None, "Type": None}
    out = io.BytesIO()
    settings = {**style(), "svg.hashsalt": f"xstage-{drawn.spec.name}"}  # a salt per figure keeps the ids of two inline SVGs apart
    with matplotlib_settings(settings):
        drawn.figure.savefig(out, format=fmt, metadata=metadata)
    return drawn.images.setdefault(fmt, out.getvalue())


def draw_figures(
    run: Run, model: Model, validation: Validation | None, out_dir: Path, only: Iterable[str] | None = None,
    extra_dirs: Sequence[Path] = (), drawn: Sequence[Drawn] | None = None,
) -> list[Path]:  # fmt: skip
    """Draw figures and write each as PNG and SVG.

    Parameters
    ----------
    drawn : sequence of Drawn, optional
        What `render_figures` gave for the same arguments, to save drawing twice when there is also a report.

    Returns
    -------
    list of Path
        What was written. A figure whose data is absent writes nothing; the report says why.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for one in render_figures(run, model, validation, only, extra_dirs) if drawn is None else drawn:
        for fmt in FORMATS:
            path = out_dir / f"{one.spec.name}.{fmt}"
            if one.figure is None:
                path.unlink(missing_ok=True)  # figures are derived: one of an older model must not stay
            else:
                write_bytes(path, image_bytes(one, fmt))
                written.append(path)
    return written
