"""Options that several verbs share, and the types of their values."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from xstage_bench.cli.following import following
from xstage_bench.cli.output import STDOUT, Output
from xstage_bench.errors import GATE, REGRESSION, WAIVED, UsageError

if TYPE_CHECKING:
    from xstage_bench.device.backend import Peer
    from xstage_bench.measure.plan import Options

Verb = Callable[..., Any]
FILE = click.Path(path_type=Path)


class _Named(click.types.StringParamType):
    """A node of the registry: completed by name."""

    name = "node"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from xstage_bench.machine.gpus import entry_names

        return [CompletionItem(name) for name in entry_names() if name.startswith(incomplete)]


class _ModelPath(click.Path):
    """A file or run folder, or a node of the registry."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [*NODE.shell_complete(ctx, param, incomplete), *super().shell_complete(ctx, param, incomplete)]


NODE, MODEL = _Named(), _ModelPath(path_type=Path)
_HOST = -1  # schedule.HOST; importing it would load numpy for --help


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Click callback: a finite, positive number of seconds (click's own range lets NaN through)."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a number of seconds", ctx, param) from None
    if not (math.isfinite(number) and number > 0):
        raise click.BadParameter(f"'{value}' is not a positive, finite number of seconds", ctx, param)
    return number


def percent(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Click callback: a positive number of per cent below 100, as a fraction."""
    if value is None:
        return None
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a number of per cent", ctx, param) from None
    if not 0 < number < 100:
        raise click.BadParameter(f"'{value}' is not between 0 and 100 per cent", ctx, param)
    return number / 100


def ordered_pairs(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[tuple[int, int], ...] | None:
    """Click callback: ordered pairs of GPU indices, ``0:1,1:0``, or ``0:host``; ``0>1`` is understood too (quote it from the shell)."""
    if value is None:
        return None
    pairs = []
    for part in value.split(","):
        ends = part.strip().replace(">", ":").split(":")
        if len(ends) == 2 and ends[1] == "host":
            ends[1] = str(_HOST)
        elif len(ends) != 2 or not ends[1].isdecimal() or not ends[1].isascii():
            ends = [""]
        if not (ends[0].isascii() and ends[0].isdecimal()):
            raise click.BadParameter(f"'{part}' is not SOURCE:DESTINATION, for example 0:1 or 0:host", ctx, param)
        pairs.append((int(ends[0]), int(ends[1])))
    return tuple(dict.fromkeys(pairs))


def common(verb: Verb) -> Verb:
    """Add ``--json`` and ``--debug``; the verb receives an `Output` as its first argument. What comes next is named at its end."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object alone on stdout.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(verb)
    def wrapped(*args: Any, as_json: bool, debug: bool, **kwargs: Any) -> Any:
        _log_to_stderr(debug)
        out = Output(as_json)
        status = verb(out, *args, **kwargs)
        ctx = click.get_current_context()
        then = following(ctx.command_path.split()[1], ctx.params, status == 0) if status in (0, WAIVED, GATE, REGRESSION) else None
        if then is not None and ctx.params.get("path") != STDOUT:  # a document on stdout is for a program
            out.next(then)
        return status

    return wrapped


_SEED = "Seed of every random choice, the hold-out's too; fresh in every run, so that what judges was never looked at."
_UNTIL = "Repeat each schedule until its issue time is known to +-PERCENT (95 %): --until 1%."
_REPETITIONS = "Of each schedule, over all processes; with --until, at most. Default 21, of --quick 9, with --until twice that."
_WARMUP = "Executions at the start of each process and pair that enter no number; default 48."
_LINKS = "NVLinks that should be up on each GPU, where fewer than it has are fitted or set; 0: its peers are reached over PCIe."
_PEER = "What is stored to: other GPUs, or pinned host memory over PCIe. auto: GPUs where a pair is usable, else host memory."


def adding(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Return a decorator that adds options, shown in this order."""

    def add(verb: Verb) -> Verb:
        return functools.reduce(lambda done, option: option(done), reversed(options), verb)

    return add


def completing(names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """Return what lets the shell complete an option's value from names; they are looked up only then."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return {"shell_complete": complete}


def flavour_names() -> Iterable[str]:
    """Return the store flavours that are built in."""
    from xstage_bench.schedule.flavour import FLAVOURS

    return FLAVOURS


def _probe_names() -> Iterable[str]:
    from xstage_bench.io.assets import asset_dir

    return sorted(path.stem for path in asset_dir("probes").glob("[!_]*.py"))


def _backends() -> Iterable[str]:
    from xstage_bench.device.replay import replayable
    from xstage_bench.device.sim import PRESETS

    return ["auto", "cuda", "sim", *(f"sim:{name}" for name in PRESETS), *(f"replay:{name}" for name in replayable())]


def backend(verb: Verb) -> Verb:
    """Add ``--backend``."""
    words = "auto, cuda, sim[:PRESET] or replay:WHERE. auto: the GPUs, the simulator only where there is none."
    return click.option("--backend", "spec", default="auto", show_default=True, metavar="BACKEND", help=words, **completing(_backends))(
        verb
    )


def expect_links(verb: Verb) -> Verb:
    """Add ``--expect-links``."""
    return click.option("--expect-links", type=click.IntRange(0, 64), metavar="N", help=_LINKS)(verb)


def measuring(verb: Verb) -> Verb:
    """Add the options that decide what is measured, and how often."""
    add = adding(
        click.option("--pairs", callback=ordered_pairs, metavar="A:B,...", help="Only these ordered pairs: 0:1,1:0."),
        click.option("--peer", type=click.Choice(["auto", "gpu", "host"]), default="auto", show_default=True, help=_PEER),
        expect_links,
        click.option("--only", multiple=True, metavar="PROBE", help="Only this probe; may be repeated.", **completing(_probe_names)),
        click.option("--budget", callback=seconds, metavar="SECONDS", help="Measure no longer than this."),
        click.option("--until", callback=percent, metavar="PERCENT", help=_UNTIL),
        click.option("--repetitions", type=click.IntRange(1, 1000), metavar="N", help=_REPETITIONS),
        click.option("--processes", type=click.IntRange(1, 20), metavar="N", help="Fresh ones, each with new memory; default 3."),
        click.option("--warmup", type=click.IntRange(0, 100_000), metavar="N", help=_WARMUP),
        click.option("--quick/--full", default=None, help="Fewer sizes and repetitions; default: quick where auto simulates."),
        click.option("--seed", type=click.IntRange(0, 2**32 - 1), show_default="fresh", help=_SEED),
        click.option("--flavour-path", type=FILE, multiple=True, metavar="FILE", help="A store flavour of your own (.cuh); repeatable."),
        click.option("--layout-path", type=FILE, multiple=True, metavar="FILE", help="A layout of your own (.cuh); repeatable."),
        click.option("--probe-path", type=FILE, multiple=True, metavar="DIR", help="A folder with probes of your own; repeatable."),
    )
    return backend(add(verb))


def surveying(verb: Verb) -> Verb:
    """Add the options of every ``xstage measure NAME`` that writes one document."""
    add = adding(
        expect_links,
        click.option("--processes", type=click.IntRange(1, 20), default=3, show_default=True, help="Fresh ones, each with new memory."),
        click.option("--quick", is_flag=True, help="One process, and less of everything."),
        click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the order."),
        click.option("--out", "path", type=FILE, metavar="FILE", help="Write the document here, as JSON; - is stdout."),
    )
    return backend(add(verb))


def some_pairs(verb: Verb) -> Verb:
    """Add ``--pairs``."""
    words = "Only these ordered pairs: 0:1,1:0; 0:0 is the GPU's own memory."
    return click.option("--pairs", callback=ordered_pairs, metavar="A:B,...", help=words)(verb)


def own_schedules(verb: Verb) -> Verb:
    """Add ``--schedule``."""
    words = "Measure the schedules of this file (JSON or CSV) instead of the probes; repeatable."
    return click.option("--schedule", type=FILE, multiple=True, metavar="FILE", help=words)(verb)


def run_options(
    out: Output, *, spec: str, peer: Peer, pairs: tuple[tuple[int, int], ...] | None, only: tuple[str, ...], budget: float | None,
    quick: bool | None, seed: int | None, probe_path: tuple[Path, ...], flavour_path: tuple[Path, ...] = (),
    layout_path: tuple[Path, ...] = (), schedule: tuple[Path, ...] = (), resumed: Path | None = None,
    expect_links: int | None = None, until: float | None = None, repetitions: int | None = None, processes: int | None = None,
    warmup: int | None = None,
) -> Options:  # fmt: skip
    """Resolve the backend, say on stderr when it is the simulator, and return the runner's options.

    The seed is the one typed, else that of the run `resumed` or replayed, else a fresh one from the operating system.
    """
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.measure.plan import Options, recorded_seed
    from xstage_bench.schedule.burst_files import load_bursts
    from xstage_bench.schedule.flavour import load_flavour, register
    from xstage_bench.schedule.layouts import load_layout, register_layout

    if schedule and (only or probe_path or pairs):
        raise UsageError("--schedule brings its own pairs and needs no probe", "leave out --only, --probe-path and --pairs")
    flavours, layouts = [load_flavour(path) for path in flavour_path], [load_layout(path) for path in layout_path]
    for flavour in flavours:
        register(flavour)
    for layout in layouts:
        register_layout(layout)
    schedules = tuple(s for path in schedule for s in load_bursts(path))
    choice = resolve_backend(spec, peer, expect_links=expect_links)
    out.note_backend(choice)
    if quick is None:
        quick = choice.simulated and spec == "auto"
    known = recorded_seed(choice, resumed) if seed is None else seed
    fresh = secrets.randbits(32) if known is None else known
    if choice.spec.startswith("replay") and not (until is repetitions is processes is warmup is None):
        raise UsageError("a recording has the repetitions that it has", "leave out --until, --repetitions, --processes and --warmup")
    often: dict[str, Any] = {"until": until, "repetitions": repetitions, "processes": processes, "warmup": warmup}
    return Options(
        choice, pairs, only, quick, fresh, budget, probe_path, schedules, own=(*flavours, *layouts), fresh_seed=known is None,
        **{name: value for name, value in often.items() if value is not None},
    )  # fmt: skip


def _log_to_stderr(debug: bool) -> None:
    import logging

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.DEBUG if debug else logging.WARNING, force=True)
    for noisy in ("matplotlib", "PIL"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
