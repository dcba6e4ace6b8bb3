"""``xstage topo``: the GPUs, the links between them, the pairs that can be measured and why the others cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from xstage_bench.cli.options import backend, common, expect_links
from xstage_bench.cli.output import Output, table
from xstage_bench.errors import WAIVED

if TYPE_CHECKING:
    from xstage_bench.machine.topology import Topology

_LEGEND = (
    "Row stores to column. NV# = that many NVLinks, PCIe = peer access over PCIe, peer = by a path not known here, none = no path;",
    "! = the pair cannot be measured, for the reason below. Every other pair is measured in both directions.",
)


@click.command("topo", short_help="Show GPUs, links and usable pairs.")
@backend
@expect_links
@common
def command(out: Output, spec: str, expect_links: int | None) -> int:
    """Show the GPUs, what joins each ordered pair (row stores to column), and which pairs can be measured.

    NV18 means 18 NVLinks; a pair marked with ! cannot be measured. Exit 3 when there are GPUs but no usable pair.
    """
    from xstage_bench.device.backend import open_device, resolve_backend
    from xstage_bench.machine.topology import from_node, read_topology

    if spec in ("auto", "cuda"):
        node = read_topology(expect_links=expect_links)
        if node.gpus or node.unseen is not None or spec == "cuda":
            _show(out, "cuda", node, simulated=False)
            return 0 if node.usable_pairs() else WAIVED
    choice = resolve_backend(spec)
    if choice.simulated:
        out.note(f"SIMULATED: backend {choice.spec} ({choice.reason})")
    device = open_device(choice)
    try:
        _show(out, device.backend, from_node(device.node()), simulated=choice.simulated)
    finally:
        device.close()
    return 0


def _or(number: int | None) -> str:
    return "?" if number is None else str(number)


def _show(out: Output, name: str, node: Topology, *, simulated: bool) -> None:
    from xstage_bench.machine.topology import matrix

    lines = [f"backend {name}" + (", SIMULATED" if simulated else "")]
    up = {g.index: f"{_or(g.links_active)}/{_or(g.links_expected)}" if node.nvml else None for g in node.gpus}
    rows = [[g.index, g.name, up[g.index], g.line_rate_gb_per_s, g.pci_address, g.uuid] for g in node.gpus]
    if rows:
        lines += ["", table(["GPU", "name", "links", "GB/s", "PCI", "UUID"], rows)]
        grid = [[str(g.index), *cells] for g, cells in zip(node.gpus, matrix(node), strict=True)]
        lines += ["", table(["from\\to", *(str(g.index) for g in node.gpus)], grid)]
    if len(node.gpus) > 1:
        lines += ["", *_LEGEND]
    lines += [f"{c.source}>{c.destination} cannot be measured: {c.reason}" for c in node.connections if not c.usable]
    lines += [f"note: {note}" for note in node.notes]
    lines += [f"the driver does not say: {name} ({reason})" for name, reason in node.unavailable.items()]
    if not node.usable_pairs():
        lines.append(f"No pair can be measured here: {node.why_not()}")
    document = {"backend": name, "simulated": simulated, "usable_pairs": node.usable_pairs(), "matrix": matrix(node), **node.as_dict()}
    out.result(document, "\n".join(lines))
