"""``xstage measure NAME``: one thing, measured by itself. A survey writes one document; a probe or a study is asked for by its name too."""

from __future__ import annotations

import functools
from importlib import import_module

import click

from xstage_bench.cli.group import one_of
from xstage_bench.cli.measure_scenes import COMPANY, STUDIES
from xstage_bench.cli.measure_scenes import command as scenes

#: Every survey with its one line; ``xstage_bench.cli.measure_NAME`` defines ``command``.
SURVEYS: dict[str, str] = {
    "visibility": "When stores become visible at the peer, and what publishing costs.",
    "copies": "The sustained drain rate beside a copy engine and a copy kernel on the same pair.",
    "scenes": "Several schedules at the same time: fan-out, incast, both directions, and their company.",
    "footprint": "How far a destination may spread before address translation costs.",
    "pulls": "How long loads from a peer or from host memory take, and how fast they come.",
    "processes": "The same bursts into memory that another process owns, by CUDA IPC or NVSHMEM.",
}


class _Surveys(click.Group):
    """The surveys by name and line; a study or a probe by its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SURVEYS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SURVEYS:
            command: click.Command = import_module(f"xstage_bench.cli.measure_{cmd_name}").command
            return command
        if cmd_name == "company" or cmd_name in STUDIES:
            return preset(
                scenes,
                cmd_name,
                ("patterns", "studies", "files"),
                studies=COMPANY if cmd_name == "company" else (cmd_name,),
                patterns=(),
                files=(),
            )
        if cmd_name in _probes():
            from xstage_bench.cli.run import command as run

            own = ("only", "schedule", "compute", "model")
            return preset(run, cmd_name, own, only=(cmd_name,), schedule=(), compute=None, model=None)
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in SURVEYS and args[0] not in STUDIES:
            one_of("survey, study or probe", args, (*SURVEYS, "company", *STUDIES, *_probes()), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Surveys"):
            formatter.write_dl(list(SURVEYS.items()))
        with formatter.section("Studies, by the survey scenes"):
            formatter.write_text(", ".join(("company", *STUDIES)))
        with formatter.section("Probes, into a run folder"):
            formatter.write_text("every name that 'xstage probes' lists, for example: sleep, placement, fences, flavours")


def _probes() -> list[str]:
    from xstage_bench.measure.probe import load_probes

    return list(load_probes(()))


def preset(command: click.Command, name: str, without: tuple[str, ...], **values: object) -> click.Command:
    """Return a command with some of its options decided, and not offered any more."""
    assert command.callback is not None
    decided = functools.partial(command.callback, **values)
    left = [p for p in command.params if p.name not in without]
    return click.Command(name, params=left, callback=decided, help=command.help, short_help=command.short_help)


@click.group("measure", cls=_Surveys, short_help="Measure one thing by itself.")
def command() -> None:
    """Measure one thing by itself: a survey, a study or a probe.

    A survey or a study writes one document, which `xstage report` shows. A probe writes a run folder, as `xstage run --only` does.
    """
