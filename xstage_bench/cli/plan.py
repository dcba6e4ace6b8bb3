"""``xstage plan``: what a run with the same options would measure, and how long it would take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import common, measuring, own_schedules, run_options
from xstage_bench.cli.output import Output, table

if TYPE_CHECKING:
    from xstage_bench.measure.plan import Options


@click.command("plan", short_help="Show what would be measured.")
@measuring
@own_schedules
@common
def command(out: Output, **chosen: Any) -> int:
    """Show what `xstage run` with the same options would measure and about how long it would take. Measures nothing."""
    from xstage_bench.device.backend import open_device
    from xstage_bench.measure.plan import plan_for
    from xstage_bench.measure.planned import summary as summary_of

    options = run_options(out, **chosen)
    device = open_device(options.backend, seed=options.seed)
    try:
        summary = summary_of(device, plan_for(device, options), options)
    finally:
        device.close()
    seed = {"seed": options.seed, "fresh_seed": options.fresh_seed}
    out.result({"backend": options.backend.spec, "simulated": options.backend.simulated, **seed, **summary}, _text(options, summary))
    return 0


def _text(options: Options, summary: dict[str, Any]) -> str:
    rows = [[name, p["schedules"], p["executions"], f"{p['seconds']:.1f}", p["title"]] for name, p in summary["probes"].items()]
    rows.append(["all", summary["schedules"], summary["executions"], f"{summary['seconds']:.1f}", "with starting the processes"])
    head = f"pairs {', '.join(summary['pairs']) or 'none'}; {summary['processes']} fresh processes; seed {options.seed}"
    head += " (fresh: a run draws another, unless --seed is typed)" if options.fresh_seed else ""
    head += f"; a run folder of {summary['folder_bytes'] / 1e6:.1f} MB"
    head += (
        "" if options.until is None else f"; executions and seconds at most, for what is known to +-{100 * options.until:g} % ends earlier"
    )
    if summary["device_bytes_per_gpu"] is not None:
        head += f"; {summary['device_bytes_per_gpu'] / 1e6:.0f} MB of each GPU"
    kernels = "\n".join(f"  {kernel}" for kernel in summary["kernels"])
    return f"{head}\n\n{table(['probe', 'schedules', 'executions', 'seconds', 'what it measures'], rows)}\n\nkernels:\n{kernels}"
