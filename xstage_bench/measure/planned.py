"""What a plan amounts to: the executions of its run, laid out by the functions that the run itself uses, and about what that costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from xstage_bench.device.backend import open_device
from xstage_bench.device.replay import ReplayDevice
from xstage_bench.measure.order import RUNNER, chunks_of
from xstage_bench.measure.plan import DEVICE_BYTES, Options, Plan
from xstage_bench.schedule.bursts import HOST, Schedule
from xstage_bench.schedule.device import Device

#: Seconds to start a process; in it, of each schedule that is new; of an execution beside what its schedule takes; of a burst of it.
#: Measured on 2 x H200 and on a 2-core machine.
_START_S = {"cuda": 5.0, "sim": 0.1, "replay": 0.5}
_NEW_S = {"cuda": 0.0, "sim": 0.9e-3, "replay": 0.0}
_EXECUTION_S = {"cuda": 0.15e-3, "sim": 0.16e-3, "replay": 0.3e-3}
_BURST_S = {"cuda": 0.0, "sim": 0.085e-3, "replay": 0.0}
#: Bytes of a run folder: the record beside the samples, a row of the samples, and one producer's two times.
_FOLDER_BYTES, _ROW_BYTES, _PRODUCER_BYTES = 15_000, 23, 5.5


def summary(device: Device, plan: Plan, options: Options) -> dict[str, Any]:
    """Count what a run of `plan` executes, in all processes, and estimate what it takes.

    Parameters
    ----------
    device : Device
        Open; nothing is executed on it.
    plan : Plan
    options : Options

    Returns
    -------
    dict
        Plain data: `schedules` are distinct ones, so that one which two probes ask for counts once in all. `executions` are those that
        become samples; `timelines` come on top. Of the probes, ``runner`` is the warm-up and the sentinel of every process and pair.
    """
    kind = plan.backend_kind
    titles = {i.probe.name: i.probe.title for items in plan.pairs.values() for i in items}
    titles[RUNNER] = "warm-up, and the sentinel that shows drift"
    rows: dict[str, dict[str, Any]] = {}
    keys: dict[str, set[str]] = {}
    known: dict[Schedule, tuple[str, float]] = {}
    kernels: Counter[tuple[str, str, str, bool]] = Counter()
    stored, timelines = float(_FOLDER_BYTES), 0
    others = range(1, plan.processes)
    devices = [device, *(open_device(options.backend, process=p) if isinstance(device, ReplayDevice) else device for p in others)]
    for process, current in enumerate(devices):
        solved: set[str] = set()
        for pair in plan.pairs:
            for job in (job for chunk in chunks_of(current, plan, options, pair, process) for job in chunk):
                s = job.execution.schedule
                if s not in known:
                    known[s] = (s.key(), _EXECUTION_S[kind] + len(s.bursts) * _BURST_S[kind] + (_device_s(s) if kind == "cuda" else 0.0))
                row = rows.setdefault(job.probe, {"title": titles.get(job.probe, ""), "schedules": 0, "executions": 0, "seconds": 0.0})
                row["executions"] += not job.execution.timeline
                row["seconds"] += known[s][1] + (0.0 if known[s][0] in solved else _NEW_S[kind])
                solved.add(known[s][0])
                timelines += job.execution.timeline
                keys.setdefault(job.probe, set()).add(known[s][0])
                kernels[s.flavour, s.layout, s.completion, job.execution.timeline] += 1
                stored += len(s.bursts) * (_ROW_BYTES + (job.keep_producers and s.producer_count * _PRODUCER_BYTES))
        if current is not device:
            current.close()
    seconds = sum(r["seconds"] for r in rows.values()) + plan.processes * _START_S[kind]
    for name, row in rows.items():
        row |= {"schedules": len(keys[name]), "seconds": round(row["seconds"], 1)}
    return {
        "kernels": [f"{f}, {form}, {after}{', stamping every store' if line else ''}" for f, form, after, line in sorted(kernels)],
        "device_bytes_per_gpu": DEVICE_BYTES if kind == "cuda" else None,
        "folder_bytes": round(stored),
        "pairs": [f"{a}>{b}" for a, b in plan.pairs],
        "processes": plan.processes,
        "probes": {name: rows[name] for name in (*(n for n in titles if n in rows and n != RUNNER), *({RUNNER} & set(rows)))},
        "schedules": len(set().union(*keys.values())),
        "executions": sum(r["executions"] for r in rows.values()),
        "timelines": timelines,
        "seconds": round(seconds, 1),
    }


def _device_s(s: Schedule) -> float:
    # Written and read back; PCIe carries a few tens of GB/s.
    seconds = 2 * s.producer_count * sum(b.bytes for b in s.bursts) / (30e9 if s.destination == HOST else 300e9)
    if s.start == "free":
        seconds += sum(b.gap_cycles for b in s.bursts[1:]) / 1.9e9
    return seconds + (s.bursts[-1].start_ns * 1e-9 if s.start == "timed" else 0.0)
