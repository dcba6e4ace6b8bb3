"""Figures: drawn from a small simulated run, the same bytes each time, labelled, readable in grey, absent with a reason."""

import dataclasses
import re
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from xstage_bench.errors import UsageError
from xstage_bench.model.estimate import Estimate
from xstage_bench.show import figures as plot

FIGURES = ("issue_time", "gap", "onset", "timeline", "sm_count", "holdout", "pairs", "drain", "placement")


@pytest.fixture(scope="module")
def small(quick_run: tuple[Any, Any]) -> tuple[Any, Any]:
    return plot.read_once(quick_run[0]), quick_run[1]


@pytest.fixture(scope="module")
def drawn(small: tuple[Any, Any]) -> dict[str, plot.Drawn]:
    return {d.spec.name: d for d in plot.render_figures(*small, None)}


def changed(run: Any, **change: Any) -> Any:
    """Return a run with other tables, or another manifest."""
    tables = {name: change.pop(name, getattr(run, name)()) for name in ("samples", "producers", "traces")}
    manifest = dataclasses.replace(run.manifest, **change)
    functions = {name: (lambda t=table: t) for name, table in tables.items()}
    return SimpleNamespace(folder=run.folder, name=run.name, manifest=manifest, **functions)


def texts(figure: Any) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(Text))


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_drawn_in_its_turn_and_labelled(drawn: dict[str, plot.Drawn], small: tuple[Any, Any], name: str) -> None:
    assert tuple(drawn) == FIGURES
    one = drawn[name]
    assert one.figure is not None, one.reason
    written = texts(one.figure)
    assert "SIMULATED" in written
    assert "NVIDIA H200" in written
    assert small[0].manifest.created[:10] in written
    assert re.search(r"n = \d", written)
    assert plot.image_bytes(one, "png").startswith(b"\x89PNG")
    assert "NVIDIA H200" in plot.image_bytes(one, "svg").decode(), "labels are text, which can be searched"


def test_drawing_again_gives_the_same_bytes_whatever_the_users_settings(drawn: dict[str, plot.Drawn], small: tuple[Any, Any]) -> None:
    def images(one: plot.Drawn) -> list[bytes]:
        # Without the ids of the SVG: they are hashes of floats to the last bit, and the layout's solver sums in an order of its own.
        return [re.sub(rb"\b[pm][0-9a-f]{10}\b", b"", plot.image_bytes(one, fmt)) for fmt in plot.FORMATS]

    first = {name: images(d) for name, d in drawn.items()}
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0, "svg.hashsalt": "other", "savefig.transparent": True}):
        again = {d.spec.name: images(d) for d in plot.render_figures(*small, None)}
        assert matplotlib.rcParams["lines.linewidth"] == 9.0
    assert again == first
    assert not [name for name, data in first.items() if b"<dc:date>" in data[1]]
    run, model = small
    (one,) = plot.render_figures(changed(run, simulated=False, backend="cuda"), model, None, only=["issue_time"])
    assert "SIMULATED" not in texts(one.figure)


@pytest.mark.parametrize("how", ["no rows", "all throttled"])
def test_figures_without_data_say_why(small: tuple[Any, Any], how: str) -> None:
    run, model = small
    samples = run.samples().iloc[:0] if how == "no rows" else run.samples().assign(status="throttled")
    bare = changed(run, samples=samples, producers=run.producers().iloc[:0], traces=run.traces().iloc[:0])
    empty = dataclasses.replace(model, pairs=[])
    for one in plot.render_figures(bare, empty, None):
        assert (one.figure, one.failed) == (None, False), one.reason
        assert len(one.reason or "") > 15
    for one in plot.render_figures(bare, model, None, only=["issue_time", "gap", "onset", "timeline", "holdout", "drain", "placement"]):
        assert (one.figure, one.failed) == (None, False), (one.spec.name, one.reason)


def test_figure_of_a_model_that_never_saturated(small: tuple[Any, Any]) -> None:
    run, model = small
    none = Estimate.missing("no burst saturated")
    unknown = dict.fromkeys(("knee_bytes", "capacity_bytes", "capacity_bytes_per_producer", "stalled_cycles_per_warp_store"), none)
    pairs = [dataclasses.replace(p, burst_gap=[dataclasses.replace(e, **unknown) for e in p.burst_gap]) for p in model.pairs]
    for one in plot.render_figures(run, dataclasses.replace(model, pairs=pairs), None):
        assert not one.failed, (one.spec.name, one.reason)
        if one.spec.name in ("issue_time", "gap", "sm_count", "pairs", "drain"):
            assert one.figure is not None, one.reason


def test_failed_pair_and_outlier_are_called_out(small: tuple[Any, Any]) -> None:
    run, model = small
    base = next(p for p in model.pairs if p.pair == "0>1")
    gpus = tuple(dataclasses.replace(run.manifest.node.gpus[0], index=i) for i in range(4))
    node = dataclasses.replace(run.manifest.node, gpus=gpus, pairs=tuple((a, b) for a in range(4) for b in range(4) if a != b))

    def scaled(pair: str, factor: float) -> Any:
        def times(e: Any) -> Any:
            return e if e.value is None else dataclasses.replace(e, value=e.value * factor)

        names = ("makespan", "sustained", "zero_gap")
        rates = [dataclasses.replace(d, **{name: times(getattr(d, name)) for name in names}) for d in base.drain]
        return dataclasses.replace(base, pair=pair, drain=rates)

    names = [f"{a}>{b}" for a, b in node.pairs if (a, b) != (3, 0)]
    pairs = [scaled(name, 0.5 if name == "2>1" else 1.0 + 0.002 * i) for i, name in enumerate(names)]
    broken = changed(run, node=node, failed_pairs={"3>0": "hangs"})
    (one,) = plot.render_figures(broken, dataclasses.replace(model, pairs=pairs), None, only=["pairs"])
    written = texts(one.figure)
    assert "outlier 2 → 1" in written
    assert (written.count("outlier"), written.count("failed")) == (1, 1)


def test_a_figure_that_raises_costs_no_other(small: tuple[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mine.py").write_text(
        "from xstage_bench.show.figures import FigureSpec, label, new_figure\n"
        "def draw(run, model, validation):\n    raise KeyError('column')\n"
        "FIGURE = FigureSpec(name='mine', title='Mine', caption='None', draw=draw)\n"
    )
    bad, good = plot.render_figures(*small, None, only=["mine", "pairs"], extra_dirs=[tmp_path])
    assert (bad.figure, bad.failed) == (None, True)
    assert "KeyError" in str(bad.reason)
    assert "mine" in caplog.text
    assert good.figure is not None
    with pytest.raises(ValueError, match="was not drawn"):
        plot.image_bytes(bad, "png")
    with pytest.raises(UsageError, match="no figure 'nonsense'") as caught:
        plot.render_figures(*small, None, only=["nonsense"])
    assert "issue_time" in str(caught.value.hint)


def test_files_are_written_whole_and_stale_ones_go(small: tuple[Any, Any], tmp_path: Path) -> None:
    run, model = small
    out = tmp_path / "run" / "figures"
    written = plot.draw_figures(run, model, None, out, only=["pairs", "drain"])
    assert [p.name for p in written] == ["pairs.png", "pairs.svg", "drain.png", "drain.svg"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in written)
    bare = changed(run, samples=run.samples().iloc[:0])
    assert plot.draw_figures(bare, model, None, out, only=["drain"]) == []
    assert sorted(p.name for p in out.iterdir()) == ["pairs.png", "pairs.svg"]


def test_series_differ_in_marker_line_and_grey() -> None:
    styles = [plot.series_style(i) for i in range(6)]
    assert len({s["marker"] for s in styles}) == len({str(s["linestyle"]) for s in styles}) == 6
    for a, b in combinations(styles[:4], 2):
        grey_a, grey_b = (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(s["color"]), strict=True)) for s in (a, b))
        assert abs(grey_a - grey_b) > 0.02 or a["marker"] != b["marker"]


def test_long_names_are_shrunk_into_the_figure(small: tuple[Any, Any]) -> None:
    run, _ = small
    gpu = dataclasses.replace(run.manifest.node.gpus[0], name="A GPU with quite a long marketing name " * 3)
    figure = plot.new_figure(4.0, 3.0)
    plot.label(figure, changed(run, node=dataclasses.replace(run.manifest.node, gpus=(gpu,), pairs=())), 123456, "A heading " * 12)
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1
