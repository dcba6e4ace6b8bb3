"""What several schedules at once cost: the law of each pair, and ports that they share max-min fairly (`device.sim.flows`).

That a source's egress and a destination's ingress are shared so is assumed: on more than two GPUs nobody has measured it here. Company is
left out. Producers of a schedule are all alike, so this is coarser than the prediction of one pair by the node model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from xstage_bench.device.sim.flows import Flow, run_flows, shared_ports
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.document import Model
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.schedule.scenes import Scene

ASSUMED = (
    "schedules that share a source or a destination are assumed to share its port fairly; nobody has measured that on more than two GPUs"
)
NO_COMPANY = "the companions of a scene are left out of its prediction"


@dataclass(frozen=True, slots=True, eq=False)
class PredictedFlow:
    """One schedule of a scene.

    Parameters
    ----------
    schedule : Schedule
    start_ns, issue_ns : ndarray of float, shape (bursts,)
        When each burst begins after the common start, and how long its issue takes.
    alone_ns : ndarray of float, shape (bursts,)
        The issue times with nothing else under way.
    drained_ns : float
        When its last byte has drained.
    gb_per_s : float
        Bytes over the time from its first start to the end of its last issue.
    """

    schedule: Schedule
    start_ns: FloatArray
    issue_ns: FloatArray
    alone_ns: FloatArray
    drained_ns: float
    gb_per_s: float


@dataclass(frozen=True, slots=True, eq=False)
class PredictedScene:
    """A scene: its schedules in order, and what was assumed."""

    scene: Scene
    flows: tuple[PredictedFlow, ...]
    notes: tuple[str, ...]

    @property
    def total_ns(self) -> float:
        """From the common start until everything has drained."""
        return max((f.drained_ns for f in self.flows), default=0.0)


def node_of(model: Model) -> Node:
    """Return the node that a model was fitted on, as far as scenes need it: as many GPUs as its pairs name, with SMs in a row."""
    ends = [int(end) for pair in model.pairs for end in pair.pair.split(">") if end.lstrip("-").isdecimal()]
    sms = max((e.producers for pair in model.pairs for e in pair.burst_gap), default=1)
    gpus = tuple(Gpu(i, model.gpu or "", tuple(range(sms)), model.sm_clock_mhz) for i in range(max(ends, default=0) + 1))
    return Node(gpus, tuple((int(a), int(b)) for a, b in (pair.pair.split(">") for pair in model.pairs)), 32.0)


def predict_scene(model: Model, scene: Scene, sm_clock_mhz: float | None = None) -> PredictedScene:
    """Predict a scene.

    Raises
    ------
    UsageError
        The model has no such pair, flavour or layout.
    """
    clock = model.sm_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
    stages = [stage_at(model, s.producer_count, s.warps, pair=f"{s.source}>{s.destination}").at_clock(clock) for s in scene.schedules]
    links = [_link(model, stage, clock) for stage in stages]
    together = _run(list(scene.schedules), stages, links, clock)
    alone = [_run([s], [stage], [link], clock)[0] for s, stage, link in zip(scene.schedules, stages, links, strict=True)]
    ns = 1e3 / clock
    flows = []
    for s, flow, other in zip(scene.schedules, together, alone, strict=True):
        spent = flow.end[-1] - flow.start[0]
        flows.append(
            PredictedFlow(
                s, flow.start * ns, (flow.end - flow.start) * ns, (other.end - other.start) * ns,
                max(flow.empty_at, flow.end[-1]) * ns, float(flow.size.sum() / (spent * ns)) if spent > 0 else inf,
            )
        )  # fmt: skip
    ends = [(("from", s.source), ("to", s.destination)) for s in scene.schedules]
    shared = len({end for pair in ends for end in pair}) < 2 * len(ends)
    notes = ((ASSUMED,) if shared else ()) + ((NO_COMPANY,) if scene.company else ())
    return PredictedScene(scene, tuple(flows), notes)


def _link(model: Model, stage: Stage, clock: float) -> float:
    """Bytes per cycle that the pair of a stage drains at most, by whatever SMs."""
    pair = model.find(stage.pair)
    counts = {e.producers for e in pair.burst_gap} if pair else set()
    whole = stage_at(model, max(counts | {stage.producers}), stage.warps, pair=stage.pair).at_clock(clock)
    return max(_some(whole.bytes_per_cycle), _some(stage.bytes_per_cycle))


def _some(rate: float) -> float:
    return min(rate, 1e9)  # where nothing saturates a pair takes what comes


def _run(schedules: list[Schedule], stages: list[Stage], links: list[float], clock: float) -> list[Flow]:
    flows = []
    for s, stage in zip(schedules, stages, strict=True):
        held = stage.capacity_bytes.value
        free = np.array([stage.free_cycles(b.bytes) for b in s.bursts])
        flows.append(Flow(s, free, inf if held is None else held, clock / 1e3))
    own = np.array([_some(stage.bytes_per_cycle) for stage in stages])

    def capacity(kind: str, gpu: int) -> float:
        """A port carries what its best pair of this scene does."""
        mine = [rate for s, rate in zip(schedules, links, strict=True) if gpu == (s.destination if kind == "ingress" else s.source)]
        return max(mine)

    run_flows(flows, shared_ports(schedules, own, capacity))
    return flows
