"""``xstage fused``: kernels that store to their peers as they compute. A kernel's module is imported only when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from xstage_bench.cli.group import one_of

#: Every kernel with its one line; ``xstage_bench.cli.fused_KERNEL`` defines ``command``.
KERNELS: dict[str, str] = {
    "moe": "An expert-parallel MoE layer, Linear-1 and Linear-2 interleaved, beside Expert-Wave order.",
    "ulysses": "Attention whose tiles go to their owners, beside attention and All-to-All one after the other.",
}


class _Kernels(click.Group):
    """The kernels by name and line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KERNELS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in KERNELS:
            return None
        command: click.Command = import_module(f"xstage_bench.cli.fused_{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        one_of("kernel", args, KERNELS, ctx)
        return super().resolve_command(ctx, args)


@click.group("fused", cls=_Kernels, short_help="Measure kernels that store to their peers as they compute.")
def command() -> None:
    """Measure a kernel that stores to its peers from the tile it has just computed, beside the same work done one after the other.

    Needs two or more GPUs of sm_90: no simulator answers here.
    """
