"""Imported traces as a run folder, so that `validate`, `export` and `--backend replay` take them like any other recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.measure.stamps.layout import read_stamps
from xstage_bench.measure.stamps.schedule import trace_of
from xstage_bench.model.cells import HOLDOUT
from xstage_bench.record.manifest import Manifest
from xstage_bench.record.reader import Run, load_run
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.trace import Trace
from xstage_bench.version import __version__

BACKEND = "cuda"


def read_traces(paths: Sequence[Path], source: int = 0, destination: int = 1, flavour: str = "st.v4") -> list[Trace]:
    """Read dumps of the same kernel, one launch each, as executions of one schedule: that of the first, whose warps meet if they do in all.

    Raises
    ------
    DataError
        As `trace_of`; or a dump has other bursts or SMs than the first.
    """
    traces: list[Trace] = []
    for path in paths:
        try:
            trace = trace_of(read_stamps(path), source, destination, flavour)
        except DataError as error:
            named = error.message if error.message.startswith(str(path)) else f"{path}: {error.message}"
            raise DataError(named, error.hint) from error
        first = traces[0] if traces else trace
        if [b.bytes for b in trace.schedule.bursts] != [b.bytes for b in first.schedule.bursts] or not np.array_equal(
            trace.smids, first.smids
        ):
            raise DataError(f"{path} has other bursts or SMs than {paths[0]}", "import launches of one kind at a time")
        traces.append(trace)
    meet = all(t.schedule.warps_meet for t in traces)
    return [replace(t, schedule=replace(traces[0].schedule, warps_meet=meet)) for t in traces]


def record_traces(traces: Sequence[Trace], folder: Path, argv: Sequence[str], names: Sequence[str], gpu: str = "unknown") -> Run:
    """Write traces into a new run folder as held-out schedules: no fit has seen them, and none will.

    Parameters
    ----------
    traces : sequence of Trace
        Executions of one schedule, the first one too: a kernel's first launch is what it is.
    folder : Path
        New or empty.
    argv : sequence of str
        For the manifest.
    names : sequence of str
        Where each came from, for the manifest's notes.
    gpu : str
        Name of the GPU.

    Raises
    ------
    UsageError
        `folder` holds anything already.
    """
    schedule = traces[0].schedule
    clock = float(np.median([t.sm_clock_mhz for t in traces]))
    smids = tuple(int(s) for s in traces[0].smids)
    ends = dict.fromkeys((schedule.source, schedule.destination))
    manifest = Manifest(
        backend=BACKEND,
        simulated=False,
        argv=list(argv),
        versions={"xstage-bench": __version__},
        node=Node(
            gpus=tuple(Gpu(index=i, name=gpu, smids=smids, sm_clock_mhz=clock) for i in ends),
            pairs=((schedule.source, schedule.destination),),
            timer_tick_ns=0.0,
        ),
        notes=[f"imported: stamps of a kernel of the user's own, not of the instrument; from {', '.join(names)}"],
    )
    with RunWriter(folder, manifest) as writer:
        executions = [Execution(schedule, i) for i in range(len(traces))]
        writer.write(HOLDOUT[0], 0, 0, executions, traces, keep_producers=True)
        writer.finish()
    return load_run(folder)
