"""What a run will execute: every probe's schedules for every pair, how often, and about how long that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.replay import ReplayDevice, find_run
from xstage_bench.errors import UsageError
from xstage_bench.measure.probe import Probe, Sweep, load_probes
from xstage_bench.measure.until import CEILING, FLOOR
from xstage_bench.record.manifest import MANIFEST_NAME, load_manifest
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.device import Device, Node
from xstage_bench.schedule.flavour import Flavour
from xstage_bench.schedule.layouts import Layout

#: Of every GPU: the destination window of 64 MiB, two sets of buffers, time lines. CUDA itself takes some 0.5 GB beside it.
DEVICE_BYTES = 182_000_000
PROCESSES = 3  # fresh processes and allocations: the spread between them is part of every interval
REPETITIONS, QUICK_REPETITIONS = 21, 9
WARMUP = 48  # executions of the sentinel at the start of each process and pair: clocks ramp from idle over milliseconds


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    Parameters
    ----------
    backend : BackendChoice
    pairs : tuple of (source, destination), optional
        Default: every usable ordered pair.
    only : tuple of str
        Names of probes; empty means all.
    quick : bool
    seed : int
        Of the order, the hold-out schedules and the simulator's noise.
    budget_s : float, optional
        Stop measuring after this long. Executions are in random order, so what is left out is left out at random.
    probe_path : tuple of Path
        Folders of the user's own probes.
    schedules : tuple of Schedule
        Measure these instead of the probes.
    processes, repetitions : int
        `repetitions` in all, spread over the processes; 0 means the default. With `until` they are the most.
    until : float, optional
        Repeat each schedule until its issue time is known as well as this, a fraction (`until.Certainty`).
    warmup : int
        Executions at the start of each process and pair that enter no number.
    flavours : tuple of Flavour
        The user's own, so that the manifest can say what they were.
    fresh_seed : bool
        The seed was drawn for this run: nobody can have chosen anything by its hold-out.
    """

    backend: BackendChoice
    pairs: tuple[tuple[int, int], ...] | None = None
    only: tuple[str, ...] = ()
    quick: bool = False
    seed: int = 0
    budget_s: float | None = None
    probe_path: tuple[Path, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    processes: int = PROCESSES
    repetitions: int = 0
    until: float | None = None
    warmup: int = WARMUP
    own: tuple[Flavour | Layout, ...] = ()
    fresh_seed: bool = False

    def facts(self) -> dict[str, Any]:
        """Return what decided the plan, for the manifest."""
        return {
            "peer": self.backend.peer,
            "expect_links": self.backend.expect_links,
            "pairs": None if self.pairs is None else [f"{a}>{b}" for a, b in self.pairs],
            "only": list(self.only),
            "quick": self.quick,
            "budget_s": self.budget_s,
            "probe_path": [str(p) for p in self.probe_path],
            "schedules": len(self.schedules),
            "processes": self.processes,
            "repetitions": self.repetitions,
            "until": self.until,
            "warmup": self.warmup,
            "own_flavours": [asdict(f) for f in self.own if isinstance(f, Flavour)],
            "own_layouts": [asdict(f) for f in self.own if isinstance(f, Layout)],
            "fresh_seed": self.fresh_seed,
        }


def recorded_seed(backend: BackendChoice, resumed: Path | None) -> int | None:
    """Return the seed of the run that is resumed or replayed: its schedules are those of that seed. None where there is neither."""
    kind, _, where = backend.spec.partition(":")
    if resumed is not None and (resumed / MANIFEST_NAME).exists():
        return load_manifest(resumed).seed
    return find_run(where).manifest.seed if kind == "replay" else None


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """One schedule, and how often it is executed in each process.

    `first_repetition` is not 0 where another probe has the same schedule: executions of a schedule are numbered through. `timeline`
    asks for per-store stamps, once.
    """

    probe: Probe
    schedule: Schedule
    repetitions: int
    first_repetition: int = 0
    timeline: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """All schedules of a run, by ordered pair. A LOCAL control belongs to the first pair that has its source.

    `notes` say what was left out because the device does not know it.
    """

    node: Node
    pairs: dict[tuple[int, int], tuple[PlannedSchedule, ...]]
    processes: int
    backend_kind: str
    notes: tuple[str, ...] = ()

    def executions(self, items: tuple[PlannedSchedule, ...]) -> int:
        """Count the executions of `items` in all processes; a time line is executed once."""
        return sum(1 if i.timeline else i.repetitions * self.processes for i in items)


def make_plan(node: Node, options: Options) -> Plan:
    """Lay out a run.

    Raises
    ------
    UsageError
        A probe or pair that does not exist, or a schedule that the source GPU cannot execute.
    """
    pairs = options.pairs if options.pairs is not None else node.pairs
    for pair in pairs:
        if pair not in node.pairs:
            reason = (node.unusable or {}).get(f"{pair[0]}>{pair[1]}", "no such pair")
            known = ", ".join(f"{a}>{b}" for a, b in node.pairs[:8]) + (" ..." if len(node.pairs) > 8 else "")
            raise UsageError(f"pair {pair[0]}>{pair[1]} cannot be measured: {reason}", f"usable pairs: {known or 'none'}")
    usual = QUICK_REPETITIONS if options.quick else REPETITIONS
    repetitions = options.repetitions or (usual if options.until is None else CEILING * usual)
    per_process = max(1, -(-repetitions // options.processes))
    notes: tuple[str, ...] = ()
    if options.schedules:
        by_pair = _own_schedules(options.schedules, per_process)
    else:
        probes = chosen_probes(options)
        seen: set[str] = set()
        by_pair = {pair: _pair_items(probes, node, pair, options, per_process, seen) for pair in pairs}
        by_pair, notes = _executable(node, by_pair)
    by_pair = {pair: _numbered(items, options.processes) for pair, items in by_pair.items()}
    for items in by_pair.values():
        for item in items:
            _check(node, item.schedule)
    return Plan(node, by_pair, options.processes, options.backend.spec.partition(":")[0], notes)


def plan_for(device: Device, options: Options) -> Plan:
    """Lay out a run on an open device: what the options ask for, or for a replay what was recorded (see `make_plan` for errors)."""
    if not isinstance(device, ReplayDevice):
        return make_plan(device.node(), options)
    node = device.node()
    by_pair: dict[tuple[int, int], Counter[tuple[str, Schedule, bool]]] = {
        pair: Counter() for pair in node.pairs if options.pairs is None or pair in options.pairs
    }
    for recorded in device.executions():
        s = recorded.execution.schedule
        pair = (s.source, s.destination) if not s.is_local else next((p for p in by_pair if p[0] == s.source), None)
        if pair in by_pair and recorded.execution.kind == "measure" and (not options.only or recorded.probe in options.only):
            by_pair[pair][recorded.probe, s, recorded.execution.timeline] += 1
    titles = load_probes(options.probe_path)
    pairs = {
        pair: tuple(
            PlannedSchedule(titles.get(name) or Probe(name, "recorded", lambda sweep: []), s, n, timeline=lines)
            for (name, s, lines), n in counted.items()
        )
        for pair, counted in by_pair.items()
    }
    return Plan(node, pairs, device.processes, "replay")


def chosen_probes(options: Options) -> list[Probe]:
    """Return the probes that a run executes, in order of name; `UsageError` for a name that no probe has."""
    probes = load_probes(options.probe_path)
    for name in options.only:
        if name not in probes:
            raise UsageError(f"unknown probe '{name}'", f"use one of: {', '.join(probes)}")
    return [p for p in probes.values() if (p.name in options.only if options.only else p.by_default)]


def _pair_items(
    probes: list[Probe], node: Node, pair: tuple[int, int], options: Options, per_process: int, seen: set[str]
) -> tuple[PlannedSchedule, ...]:
    items = []
    for probe in probes:
        salt = int.from_bytes(probe.name.encode()[:8].ljust(8, b"\0"), "little")
        sweep = Sweep(node, *pair, options.quick, np.random.default_rng([options.seed, *(i % 65536 for i in pair), salt]))
        for schedule in probe.schedules(sweep):
            key = schedule.key() + probe.name
            if key not in seen:
                seen.add(key)
                # A sweep that is repeated less has room to become as sure as the others, where the rule and not the sweep decides.
                least = 1 if options.until is None else min(2 * FLOOR, per_process)
                items.append(PlannedSchedule(probe, schedule, max(least, round(per_process * probe.effort))))
        items += [PlannedSchedule(probe, s, 1, timeline=True) for s in (probe.exemplars(sweep) if probe.exemplars else ())]
    return tuple(items)


def _numbered(items: tuple[PlannedSchedule, ...], processes: int) -> tuple[PlannedSchedule, ...]:
    """Number the executions of each schedule through, whichever probe asks for them."""
    used: dict[str, int] = {}
    out = []
    for item in items:
        key = item.schedule.key()
        out.append(item if item.timeline else replace(item, first_repetition=used.get(key, 0)))
        used[key] = used.get(key, 0) + (0 if item.timeline else item.repetitions * processes)
    return tuple(out)


_Items = dict[tuple[int, int], tuple[PlannedSchedule, ...]]


def _executable(node: Node, by_pair: _Items) -> tuple[_Items, tuple[str, ...]]:
    """Leave out what the device does not know, and say what that was."""
    unknown = Counter(why for items in by_pair.values() for i in items if (why := node.cannot(i.schedule)) is not None)
    notes = tuple(f"left out: {count} schedules with {why}, which this device does not know" for why, count in unknown.items())
    return {pair: tuple(i for i in items if node.cannot(i.schedule) is None) for pair, items in by_pair.items()}, notes


def _own_schedules(schedules: tuple[Schedule, ...], per_process: int) -> dict[tuple[int, int], tuple[PlannedSchedule, ...]]:
    probe = Probe("schedule", "schedules of the user's own", lambda sweep: [], keep_producers=True)
    by_pair: dict[tuple[int, int], list[PlannedSchedule]] = {}
    for s in dict.fromkeys(schedules):
        by_pair.setdefault((s.source, s.destination), []).append(PlannedSchedule(probe, s, per_process))
    return {pair: tuple(items) for pair, items in by_pair.items()}


def _check(node: Node, schedule: Schedule) -> None:
    unknown = node.cannot(schedule)
    if unknown is not None:
        raise UsageError(f"this device does not know {unknown}", "real GPUs know all that their architecture has: --backend cuda")
    for index in (schedule.source, schedule.destination):
        if index >= len(node.gpus):
            raise UsageError(f"GPU {index} asked for, but there are {len(node.gpus)}", "GPU indices start at 0")
    if not schedule.is_local and (schedule.source, schedule.destination) not in node.pairs:
        raise UsageError(f"pair {schedule.source}>{schedule.destination} cannot be measured", "xstage topo shows the usable pairs")
    schedule.smids(node.gpus[schedule.source].smids)
