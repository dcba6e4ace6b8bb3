"""``xstage diagnose``: whether a kernel stalls on its stores, why, and what would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, MODEL, common, completing, flavour_names, percent
from xstage_bench.cli.output import Output, check_file, model_gate
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from xstage_bench.measure.profiles.kernels import KernelRun
    from xstage_bench.measure.profiles.read import Profile
    from xstage_bench.model.diagnose.timings import KernelTimes
    from xstage_bench.model.document import Model

_POSITIVE = click.IntRange(min=1)
_TIMINGS = "--local-us 210 --remote-us 290 --bytes 16777216 --tiles 256"


@click.command("diagnose", short_help="Say whether a kernel stalls on its stores, and why.")
@click.argument("model", type=MODEL)
@click.argument("what", type=FILE, required=False)
@click.option("--local", type=FILE, metavar="FILE", help="The same of the kernel with its stores kept local.")
@click.option("--local-us", type=float, metavar="US", help="Time of the kernel with its stores kept local.")
@click.option("--remote-us", type=float, metavar="US", help="Time of the kernel as it stores to its peer.")
@click.option("--bytes", "size", type=_POSITIVE, metavar="B", help="Bytes that the whole kernel stores to its peer.")
@click.option("--tiles", type=_POSITIVE, metavar="N", help="Tiles that store them; default: the blocks of the kernel, where known.")
@click.option("--sms", type=_POSITIVE, metavar="K", help="SMs that work; default: all of the model's GPU.")
@click.option("--tile-bytes", type=_POSITIVE, metavar="B", help="Bytes of a full tile; default: --bytes over --tiles.")
@click.option("--warps", type=click.IntRange(1, 8), default=4, show_default=True, metavar="W", help="Storing warps of an SM.")
@click.option("--flavour", default="st.v4", show_default=True, metavar="NAME", help="How they store.", **completing(flavour_names))
@click.option("--both-ways/--one-way", default=False, help="Whether the other GPU stores back at the same time.")
@click.option("--noise", callback=percent, default="2%", show_default=True, metavar="PERCENT", help="By how much a timing may be off.")
@click.option("--kernel", metavar="NAME", help="The kernel that stores to its peer: its name, or a part that no other has.")
@click.option("--local-kernel", metavar="NAME", help="The kernel that stores locally, in the same file.")
@click.option("--store-scope", metavar="NAME", help="The scope of a Proton time line that stores.")
@click.option("--compute-scope", metavar="NAME", help="The scope that computes.")
@click.option("--pair", default="0>1", show_default=True, metavar="A>B", help="Use the model of this pair.")
@click.option("--sm-clock-mhz", type=float, metavar="MHZ", help="SM clock of the kernel; default: the model's, or the stamps'.")
@click.option("--split/--no-split", default=False, help="Whether the advice may cut a tile's stores in two.")
@click.option("--trace", type=FILE, metavar="FILE", help="Write the measured and the predicted time line for ui.perfetto.dev.")
@common
def command(out: Output, model: Path, what: Path | None, trace: Path | None, **given: Any) -> int:
    """Say with MODEL (as of advise) whether a kernel stalls on its stores to a peer, where its time goes, and what would help.

    WHAT is what a profiler wrote of the kernel: stamps (xstage import), a Proton time line, a PyTorch trace, a table of ncu or nsys.
    Without it two timings will do: --local-us, --remote-us, --bytes, --tiles, --sms.
    """
    from xstage_bench.model.run_fit import find_model, is_simulated

    check_file(trace)
    loaded = find_model(model)
    if is_simulated(loaded):
        out.note(f"SIMULATED: the model of {model} was fitted on backend {loaded.backend}")
    head = {"backend": loaded.backend, "simulated": is_simulated(loaded), "model_gate": model_gate(out, loaded)}
    if what is None:
        times = _times(given, _ns(given["local_us"]), _ns(given["remote_us"]), None)
        return _timings(out, loaded, head, times, given, trace)
    for name in ("local_us", "remote_us"):
        if given[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for two timings without a file", "leave it out, or leave the file out")
    from xstage_bench.measure.profiles.read import kernels_in, read_profile

    profile = read_profile(what)
    runs = kernels_in(profile)
    if runs is None:
        return _time_line(out, loaded, head, profile, what, given, trace)
    return _timings(out, loaded, head, _kernels(runs, what, given), given, trace)


def _kernels(runs: list[KernelRun], what: Path, given: dict[str, Any]) -> KernelTimes:
    """Find the kernel and its local twin among the launches of one file or two."""
    from xstage_bench.measure.profiles.kernels import timing_of
    from xstage_bench.measure.profiles.read import kernels_in, read_profile

    file, name, local = given["local"], given["local_kernel"], None
    remote = timing_of(runs, given["kernel"], what, "--kernel", "remote")
    if file is not None:
        twins = kernels_in(read_profile(file))
        if twins is None:
            raise UsageError(f"{file} is a time line, and {what} is not", "give two of one kind")
        local = timing_of(twins, name or given["kernel"] or remote.name, file, "--local-kernel")
    elif name is not None or len({run.name for run in runs}) > 1:
        local = timing_of(runs, name, what, "--local-kernel", "local")
        if local.name == remote.name:
            raise UsageError(f"{what}: {remote.name[:60]} is both kernels", "--local-kernel NAME, or --local FILE")
    times = _times(given, None if local is None else local.duration_ns, remote.duration_ns, remote.blocks)
    return replace(times, noise=max(times.noise, remote.noise, 0.0 if local is None else local.noise))


def _ns(us: float | None) -> float | None:
    return None if us is None else us * 1e3


def _times(given: dict[str, Any], local_ns: float | None, remote_ns: float | None, blocks: int | None) -> KernelTimes:
    from xstage_bench.model.diagnose.timings import KernelTimes

    tiles = given["tiles"] or blocks
    needed = {"remote-us": remote_ns, "bytes": given["size"], "tiles": tiles}
    missing = [f"--{name}" for name, value in needed.items() if value is None]
    if remote_ns is None or tiles is None or missing:
        raise UsageError(f"without a time line these are needed: {', '.join(missing)}", _TIMINGS)
    names = ("sms", "tile_bytes", "warps", "noise", "both_ways", "flavour", "pair")
    return KernelTimes(local_ns=local_ns, remote_ns=remote_ns, bytes=given["size"], tiles=tiles, **{n: given[n] for n in names})


def _timings(
    out: Output, model: Model, head: dict[str, Any], times: KernelTimes, given: dict[str, Any], trace: Path | None
) -> int:  # fmt: skip
    from xstage_bench.model.advise.job import advise_job
    from xstage_bench.model.diagnose.timings import diagnose_timings
    from xstage_bench.show.diagnosis_text import diagnosis_document, diagnosis_text

    if trace is not None:
        raise UsageError("two timings have no time line to write", "leave --trace out")
    clock = given["sm_clock_mhz"]
    with at_work("predicting the kernel"):
        found = diagnose_timings(model, times, sm_clock_mhz=clock)
        advice = None
        try:
            if found.stalls == "yes":
                advice = advise_job(model, times.job(model), sm_clock_mhz=clock, splitting=given["split"])
        except DataError as error:  # a model without a node model still knows T0, R and Q
            out.note(f"no advice: {error.message}; {error.hint}")
    out.result({**head, **diagnosis_document(found, advice)}, diagnosis_text(found, advice))
    return 0


def _time_line(
    out: Output, model: Model, head: dict[str, Any], profile: Profile, what: Path, given: dict[str, Any], trace: Path | None
) -> int:
    from xstage_bench.measure.profiles.read import TimeLineWords, read_profile, time_line_of
    from xstage_bench.measure.stamps.layout import Stamps
    from xstage_bench.model.advise.choose import advise_tasks
    from xstage_bench.model.diagnose.time_line import diagnose_time_line
    from xstage_bench.show.diagnosis_text import diagnosis_document, diagnosis_text
    from xstage_bench.show.perfetto import task_events, write_trace

    pair, clock = given["pair"], given["sm_clock_mhz"] or model.sm_clock_mhz
    words = TimeLineWords(
        tile_bytes=given["tile_bytes"], sm_clock_mhz=clock, store=given["store_scope"], compute=given["compute_scope"],
        kernel=given["kernel"],
    )  # fmt: skip
    here = time_line_of(profile, what, words, pair=pair, flavour=given["flavour"])
    twin = given["local"]
    words = replace(words, kernel=given["local_kernel"] or words.kernel)
    local = None if twin is None else time_line_of(read_profile(twin), twin, words, pair=pair, flavour=given["flavour"])
    with at_work("predicting the kernel"):
        found, predicted = diagnose_time_line(model, here, local, pair=pair, same_clock=isinstance(profile, Stamps))
        schedule, mhz = here.schedule, here.sm_clock_mhz
        advice = None
        if found.stalls == "yes":
            advice = advise_tasks(model, schedule, pair=pair, sm_clock_mhz=mhz, splitting=given["split"])
    if trace is not None:
        events = task_events(here, 1, f"{what.name} (measured)")
        write_trace(trace, [*events, *task_events(predicted, 2, "the same tasks (predicted)")])
        out.note(f"the time line: {trace} (open it in https://ui.perfetto.dev)")
    out.result({**head, **diagnosis_document(found, advice)}, diagnosis_text(found, advice))
    return 0
