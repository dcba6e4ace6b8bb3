"""The group of verbs. A verb's module is imported only when the verb is called, so that ``xstage --help`` stays fast."""

from __future__ import annotations

import difflib
import keyword
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import click

from xstage_bench.cli.fitted_text import columns_of
from xstage_bench.version import __version__

#: Every verb, in the order of ``--help``, with its one line; ``xstage_bench.cli.VERB`` defines ``command``.
VERBS: dict[str, str] = {
    "profile": "Profile this node: doctor, topology, probes, fit, validation, figures, report.",
    "doctor": "Check whether this machine can be measured, and what would spoil a number.",
    "topo": "Show the GPUs, the links between them and the pairs that can be measured.",
    "report": "Draw the figures and write one self-contained HTML page.",
    "explain": "Say what a column, key or warning means.",
    "fit": "Fit the Burst-Gap model to a run folder; writes model.json.",
    "validate": "Judge the model on the held-out schedules; writes validation.json.",
    "predict": "Predict the issue times of a schedule file with a fitted model.",
    "advise": "Advise how to order, size and space a kernel's stores so that they cost least.",
    "diagnose": "Say whether a kernel stalls on its stores, why, and what would help; from timings or a profiler's file.",
    "import": "Import the time stamps of a kernel of your own as a schedule and a run folder.",
    "export": "Write the model (header, metrics, TOML, JSON, CSV) or the samples of a run for other programs.",
    "check": "Say what speaks against a run, or judge it by an operator's limits.",
    "compare": "Compare two fitted runs, or one with a shipped node: same, better, worse or undetermined.",
    "fleet": "Rank the runs of many nodes, and name what stands out.",
    "nodes": "List the GPUs and links that have a name, what is known of each, and add your own.",
    "probes": "List the probes.",
    "plan": "Show what a run would measure and how long it would take.",
    "run": "Measure, and write a run folder.",
    "measure": "Measure one thing by itself: visibility, copies, scenes, footprint, a study, a probe.",
    "fused": "Measure kernels that store to their peers as they compute, beside the same work done in turn.",
}
#: The verb with which each heading of ``--help`` begins.
_HEADINGS = {"profile": "Start", "fit": "Understand", "check": "Operate", "probes": "Research"}
#: Spellings of before, each with the words that replace it; they go with version 0.2.
OLDER: dict[str, tuple[str, str]] = {verb: ("measure", name) for verb, name in (("scene", "scenes"), ("visibility",) * 2, ("copies",) * 2)}
_LEAST_OF_CLICK = 50
INTERRUPTED = 128 + signal.SIGINT


def one_of(what: str, args: list[str], known: Iterable[str], ctx: click.Context) -> None:
    """Refuse a first argument that is no option and none of `known`; the message names the nearest."""
    if args and args[0] not in (names := list(known)) and not args[0].startswith("-"):
        near = difflib.get_close_matches(args[0], names, n=1)
        raise click.UsageError(f"no {what} '{args[0]}'" + (f"; did you mean '{near[0]}'?" if near else ""), ctx)


class Terminated(KeyboardInterrupt):
    """SIGTERM: everything that keeps what was measured on Ctrl-C keeps it now too."""


class Stopped(Exception):  # noqa: N818 - not an error of the program
    """The verb ended early for an outside reason that needs no message."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class LazyGroup(click.Group):
    """A click group that knows its verbs by name and line, and imports one when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        """Give help pages the columns that there are; click itself goes no lower than 50."""
        columns = columns_of(sys.stdout)
        if columns is not None and columns < _LEAST_OF_CLICK + 2:
            extra.setdefault("terminal_width", columns - 2)
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of `VERBS`."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb."""
        if cmd_name not in VERBS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"xstage_bench.cli.{module}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one. A spelling of before is understood, and the new one said."""
        if args and args[0] in OLDER:
            new = OLDER[args[0]]
            click.echo(f"'xstage {args[0]}' is now 'xstage {' '.join(new)}'; the old spelling goes with version 0.2", err=True)
            args = [*new, *args[1:]]
        one_of("verb", args, VERBS, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing them."""
        heading, groups = "Start", dict[str, list[tuple[str, str]]]()
        for verb, line in VERBS.items():
            heading = _HEADINGS.get(verb, heading)
            groups.setdefault(heading, []).append((verb, line))
        for heading, verbs in groups.items():
            with formatter.section(heading):
                formatter.write_dl(verbs)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the verb; a signal becomes `Stopped` before click turns it into an exit status of its own."""
        try:
            return super().invoke(ctx)
        except Terminated:
            raise Stopped(128 + signal.SIGTERM) from None
        except KeyboardInterrupt:
            raise Stopped(INTERRUPTED) from None


_EPILOG = (
    "Exit codes: 0 ok, 1 error, 2 usage, 3 nothing here can be measured, 4 a gate failed, 5 a regression, 130 interrupted, 143 terminated."
)


@click.group(
    "xstage", cls=LazyGroup, epilog=_EPILOG, subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip
@click.version_option(__version__, prog_name="xstage")
def xstage() -> None:
    """Measure what happens to a GPU's remote stores after they are issued.

    Three numbers for each pair of GPUs: issue time T0, drain rate R, outstanding capacity Q.
    """
