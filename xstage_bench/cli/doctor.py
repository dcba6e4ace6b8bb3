"""``xstage doctor``: can this machine be measured, and what would spoil a number."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common, expect_links
from xstage_bench.cli.output import Output, findings_text
from xstage_bench.errors import WAIVED


@click.command("doctor", short_help="Check this machine.")
@click.option("--out", "folder", type=FILE, default=Path(), metavar="DIR", help="Where the run would go: is there room?")
@expect_links
@common
def command(out: Output, folder: Path, expect_links: int | None) -> int:
    """Check whether this machine's GPUs can be measured, and what would spoil a number.

    Exit 0 when a pair of GPUs can be measured, with warnings or without; 3 when none can.
    """
    from xstage_bench.machine.doctor import can_measure, examine
    from xstage_bench.machine.doctor_host import examine_host
    from xstage_bench.machine.environment import snapshot
    from xstage_bench.machine.host import read_host
    from xstage_bench.machine.topology import read_topology

    environment = snapshot(expect_links=expect_links)
    topology = read_topology(expect_links=expect_links)
    host = read_host(folder)
    findings = [*examine(topology, environment), *examine_host(host, environment, len(topology.usable_pairs()))]
    measurable = can_measure(findings)
    verdict = "A pair of GPUs can be measured here." if measurable else "No pair of GPUs can be measured here."
    if not measurable and topology.usable_pairs():
        verdict = "A pair of GPUs could be measured here, but for what failed above."
    document = {"measurable": measurable, "findings": [asdict(f) for f in findings], "environment": environment, "host": asdict(host)}
    out.result(document, f"{findings_text(findings)}\n{verdict}")
    return 0 if measurable else WAIVED
