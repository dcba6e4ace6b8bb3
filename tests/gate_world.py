"""Runs whose truth is known: a node model's own predictions, an imperfection of a known size, and a closing stamp of a known meaning.

What a run measures is made from the model that is then judged by it, so what the gate must say follows from how the world was made. The
folders are real: written by the package's own writer, validated and checked by its own verbs. `World.issued` ends a burst of one or two
warp-stores a warp when they have been issued, though the stage is full; `fence_cycles` is what a fence before the stamp adds to each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from xstage_bench.measure.probe import Sweep, load_probes
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model, save
from xstage_bench.model.node.entry import NodeBasis
from xstage_bench.model.node.intervals import REGIMES, BurstRange, ResidualQuantiles
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import uniform
from xstage_bench.model.node.predict import predict_node
from xstage_bench.record.columns import MEASURED
from xstage_bench.record.manifest import Manifest
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.trace import Trace

CLOCK, SMS, PROCESSES = 1980.0, 132, 3
BACKEND = "sim:known-truth"
SCHEDULES, TINY_SCHEDULES = 200, 60
#: Of the world's imperfection: most bursts as well predicted as the recorded node's, a part (stalled ones) much worse.
BODY, TAIL_SHARE = 0.022, 0.25


@dataclass(frozen=True)
class World:
    """How a run's measurements differ from the model that was fitted on it. `tail` is the spread of the badly predicted part."""

    seed: int = 0
    tail: float = 0.15
    issued: bool = False
    fence_cycles: float = 0.0
    host: bool = False
    gpu: str = "NVIDIA H200"
    noise: float = 0.003  # between processes
    probes: tuple[str, ...] = ("holdout", "holdout_tiny")


def node(world: World) -> Node:
    gpus = tuple(Gpu(i, world.gpu, tuple(range(SMS)), CLOCK, f"GPU-{i}") for i in range(2))
    return Node(gpus, ((0, HOST if world.host else 1),), 32.0)


def truth(world: World) -> NodeModel:
    values = {name: p.start for name, p in PARAMETERS.items()}
    if world.host:
        values |= {"link_gb_per_s": 52.0, "link_buffer_bytes": 1.3e6}
    return NodeModel(**values, placement=uniform(np.arange(SMS)), sm_clock_mhz=CLOCK)


def heldout(world: World, probe: str) -> list[Schedule]:
    source, destination = node(world).pairs[0]
    sweep = Sweep(node(world), source, destination, False, np.random.default_rng([world.seed, len(probe)]))
    return load_probes()[probe].schedules(sweep)[: TINY_SCHEDULES if probe == "holdout_tiny" else SCHEDULES]


def model_of(world: World) -> Model:
    """What a fit that found the truth would have written: the node model, and the three-parameter law of isolated bursts."""
    pair = node(world).pairs[0]
    isolated = [Schedule((Burst(512 * 4 * n),), SMS, 4, *pair) for n in (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512)]
    found = predict_node(truth(world), isolated)
    rows: list[dict[str, Any]] = []
    for i, s in enumerate(isolated):
        for process in range(PROCESSES):
            rows.append(
                {
                    "schedule": s.key(), "probe": "isolated", "kind": "measure", "source": s.source, "destination": s.destination,
                    "flavour": s.flavour, "layout": s.layout, "start": s.start, "producers": SMS, "producer_set": "even", "warps": 4,
                    "burst": 0, "bursts": 1, "bytes": s.bursts[0].bytes, "gap_cycles": np.nan, "start_ns": np.nan, "process": process,
                    "repetition": process, "status": "ok", "issue_mean_cycles": found.issue_cycles[i],
                    "issue_max_cycles": found.issue_max_cycles[i], "gap_mean_cycles": np.nan, "start_mean_ns": 0.0, "sm_clock_mhz": CLOCK,
                }
            )  # fmt: skip
    model = calibrate(pd.DataFrame(rows), backend=BACKEND, gpu=world.gpu, sm_clock_mhz=CLOCK, resamples=20)
    own = truth(world)
    used = {name: float(v) for name, v in zip(PARAMETERS, own.values(), strict=True)}
    ends = (-1.0 * world.tail, 1.0 * world.tail)  # of the mixture these hold 90 %
    spread = ResidualQuantiles(*((e,) * len(REGIMES) for e in ends), BurstRange((1, SMS), (1, 16), (512, 1 << 20)))
    basis = NodeBasis(used=used, placement=own.placement, sm_clock_mhz=CLOCK, spread=spread, issue=IssueLaw(), n_schedules=100)
    return replace(model, pairs=[replace(p, node_basis=basis) for p in model.pairs])


def measured(world: World, schedules: list[Schedule], rng: np.random.Generator) -> list[list[np.ndarray]]:
    """Issue times in cycles of each schedule in each process."""
    found = predict_node(truth(world), schedules)
    isolated = np.array([s.start == "isolated" for s in schedules])
    owner = np.repeat(np.arange(len(schedules)), np.diff(found.first))
    spread = np.where(rng.random(owner.size) < TAIL_SHARE, world.tail, BODY)
    cycles = found.issue_cycles * np.exp(spread * rng.standard_normal(owner.size)) + world.fence_cycles
    if world.issued:
        few = np.concatenate([s.stores_per_warp() for s in schedules]) <= 2
        behind = found.stalled & ~isolated[owner]
        cycles = np.where(few & behind, found.t0_cycles, cycles)
    each = [cycles * np.exp(world.noise * rng.standard_normal(owner.size)) for _ in range(PROCESSES)]
    return [[process[found.first[i] : found.first[i + 1]] for process in each] for i in range(len(schedules))]


def trace_of(schedule: Schedule, cycles: np.ndarray) -> Trace:
    """An execution as a run keeps it: its summary, and no producer."""
    shape = (cycles.size, schedule.producer_count)
    nothing = np.full(shape, np.nan)
    start = np.zeros(cycles.size)
    for i, burst in enumerate(schedule.bursts):
        end = start[i - 1] + cycles[i - 1] * 1e3 / CLOCK if i else 0.0
        start[i] = {"isolated": 0.0, "free": end + burst.gap_cycles * 1e3 / CLOCK * bool(i), "timed": max(end, float(burst.start_ns))}[
            schedule.start
        ]
    summary = dict.fromkeys(MEASURED, np.full(cycles.size, np.nan))
    summary |= dict.fromkeys(("issue_mean_cycles", "issue_min_cycles", "issue_max_cycles"), cycles) | {"start_mean_ns": start}
    return Trace(
        schedule=schedule, smids=schedule.smids(range(SMS)), issue_cycles=nothing, gap_cycles=nothing, start_ns=nothing, end_ns=nothing,
        drain_cycles=nothing, sm_clock_mhz=CLOCK, recorded=summary,
    )  # fmt: skip


def record(world: World, folder: Path) -> Path:
    """Write the run of a world, with its model."""
    rng = np.random.default_rng([7, world.seed])
    described = Manifest(backend=BACKEND, simulated=True, node=node(world), seed=world.seed)
    with RunWriter(folder, described) as writer:
        order = 0
        for probe in world.probes:
            schedules = heldout(world, probe)
            for schedule, processes in zip(schedules, measured(world, schedules, rng), strict=True):
                for process, cycles in enumerate(processes):
                    execution = Execution(schedule, process)
                    writer.write(probe, process, order, [execution], [trace_of(schedule, cycles)], keep_producers=False)
                    order += 1
        writer.finish()
    save(folder / "model.json", model_of(world))
    return folder
