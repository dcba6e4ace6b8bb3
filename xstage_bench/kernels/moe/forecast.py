"""The MoE layer as a TaskSchedule, and the order that the node model chooses for it: no search on hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.moe.build import COMBINE_BYTES, STEP_BYTES, ring_stages
from xstage_bench.kernels.moe.layer import PADDING, ExpertRows, Layer, tiles_per_sm
from xstage_bench.kernels.moe.order import Order, TaskLists, task_lists, wave_orders
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.tasks.costs import AHEAD, PUBLISHERS
from xstage_bench.schedule.tasks import NONE, TaskSchedule
from xstage_bench.workloads.shapes import TILE

if TYPE_CHECKING:
    from xstage_bench.model.document import Model
    from xstage_bench.model.tasks.costs import TaskCosts
    from xstage_bench.model.tasks.predict import TaskPrediction

#: Linear-1 tiles per CTA by which Linear-1 may be ahead. With less than one a tile that is a little late holds up its SM, which is not
#: predicted: in 48 searches half a tile was never the fastest lead, and up to 1.7 times slower (results/h200-x2/moe).
LEADS = (1.0, 2.0, 4.0, 8.0)
#: A short lead waits when a tile is late, a long one leaves a long tail: what the replayed skeleton found best stands first.
PREFERRED = (2.0, 1.0, 4.0, 8.0)
#: How near predictions must be to count as one: as far as the model is off in the median on this kernel.
ALIKE = 0.03
#: By how much leads must be predicted slower than waves to count as slower. In one case of ten they are predicted too slow beside waves by
#: this much and more (results/h200-x2/moe): what is not predicted costs waves more.
SURELY_SLOWER = 0.05
#: Of R: what the Linear-2 tiles of a wave ask of the link, all SMs at once, up to which no burst meets a full stage and interleaving has
#: nothing to gain, where all experts have as many rows; less where they have not, since waves then wait for the busiest ones, which leads
#: do not. From three runs of the suite.
CALM, CALM_UNEVEN = 1.0, 2 / 3
#: Blocks of the busiest expert over the mean, from which on experts do not have as many rows.
UNEVEN = 1.5
#: Blocks of an expert, in the mean, below which each weight is read for one block only. Memory limits such a layer, and a small wave finds
#: the activations that it wrote still in the cache: up to 3 % in three runs of the suite, which is not predicted.
ONE_BLOCK = 1.5
STORE_BYTES, STORING_WARPS = 512, 4
NS_OF_CYCLE_MHZ = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeTileTimes:
    """What one tile occupies the tensor cores of an SM for, the hand-over between the two warpgroups included; *rest*: from the end of its
    products to the end of its stores, where all destinations are local.
    """

    linear1_ns: float
    linear2_ns: float
    linear1_rest_ns: float
    linear2_rest_ns: float


def tile_times(stamps: NDArray[Any], lists: TaskLists) -> MoeTileTimes:
    """Read the tile times off an execution whose stores stay on their GPU: a tile's products are slowed by another one's epilogue.

    The tensor cores of an SM are handed from task to task, so a task that waits for nothing else ends its products one tile time after the
    task before it. The median passes over those that did wait.
    """
    computed = stamps["computed_ns"].astype(np.int64)
    step = np.diff(computed, prepend=computed[:1])
    inside = np.ones(computed.size, dtype=bool)
    inside[lists.first[:-1][np.diff(lists.first) > 0]] = False
    rest = stamps["stored_ns"].astype(np.int64) - computed

    def typical(values: NDArray[np.int64], second: bool) -> float:
        return float(np.median(values[inside & (lists.second == second)]))

    return MoeTileTimes(
        linear1_ns=typical(step, False),
        linear2_ns=typical(step, True),
        linear1_rest_ns=typical(rest, False),
        linear2_rest_ns=typical(rest, True),
    )


def remote_tile_bytes(rows: ExpertRows, rank: int, combine: str) -> NDArray[np.int64]:
    """Bytes that one Linear-2 tile of each block sends to other ranks; shape (blocks,)."""
    owner = rows.owner.reshape(-1, TILE)
    return np.asarray(((owner != PADDING) & (owner != rank)).sum(axis=1) * TILE * COMBINE_BYTES[combine])


def as_tasks(
    layer: Layer, rank: int, rows: ExpertRows, lists: TaskLists, times: MoeTileTimes, combine: str, sm_clock_mhz: float
) -> TaskSchedule:
    """Describe what one rank's GPU does; `sm_clock_mhz` turns the tile times into cycles.

    A Linear-2 tile stores the rows of its block that are no padding, in whole warp-stores of its four warps; those whose owner is another
    rank cross the link. A Linear-1 tile is published by a release of another warp.
    """
    per_ns = sm_clock_mhz / NS_OF_CYCLE_MHZ
    unit = STORING_WARPS * STORE_BYTES
    segment = TILE * COMBINE_BYTES[combine]
    owner = rows.owner.reshape(-1, TILE)
    real = owner != PADDING
    stored = -(-real.sum(axis=1) * segment // unit) * unit
    away = remote_tile_bytes(rows, rank, combine) // STORE_BYTES * STORE_BYTES
    second, block = lists.second, lists.block
    kept = TILE * (TILE // 2) * layer.element_bytes  # activations of a Linear-1 tile
    cycles = np.where(second, round(times.linear2_ns * per_ns), round(times.linear1_ns * per_ns))
    return TaskSchedule(
        producers=lists.ctas, producer=np.repeat(np.arange(lists.ctas), np.diff(lists.first)), compute_cycles=cycles,
        bytes=np.where(second, stored[block], kept), remote_bytes=np.where(second, away[block], 0),
        waits_for=np.where(second, block, NONE), signals=np.where(second, NONE, block), phase=second.astype(np.int64),
        phases=("linear1", "linear2"), warps=STORING_WARPS, publish="release.gpu", both_ways=True, source=0, destination=1,
        name=f"{layer.shape.name}-{layer.dtype}-{layer.routing}-{layer.tokens}",
    )  # fmt: skip


def kernel_costs(costs: TaskCosts, layer: Layer, tasks: TaskSchedule, times: MoeTileTimes, sm_clock_mhz: float, stages: int) -> TaskCosts:
    """Return the costs of the replay with this kernel's own in their place, in cycles of the clock that the tasks are predicted at.

    Everything that a group reads at a tile's beginning and end is asked for a tile ahead; operands by as much as the ring of stages holds.
    A tile time already contains the hand-over of the tensor cores, and an epilogue takes longer than a plain loop of its stores: it is what
    was measured where nothing leaves the GPU.
    """
    contained = ("compute_excess_cycles.", "turn_cycles.", "store_cycles.")
    known = {name: e for name, e in costs.instrument.items() if not name.startswith(contained)}
    steps = layer.shape.hidden * layer.element_bytes // STEP_BYTES
    ahead = (stages - 1) * times.linear1_ns / steps * sm_clock_mhz / NS_OF_CYCLE_MHZ
    known[AHEAD] = _median(ahead, "the ring's stages but the one that is multiplied, at the pace of a Linear-1 tile")
    known[PUBLISHERS] = _median(1.0, "by construction")
    usual = TILE * TILE * COMBINE_BYTES["bf16"]  # what a Linear-2 tile stored when its time was read
    for phase, rest_ns in enumerate((times.linear1_rest_ns, times.linear2_rest_ns)):
        size = int(tasks.bytes[tasks.phase == phase].max(initial=0))
        if size:
            cycles = rest_ns * sm_clock_mhz / NS_OF_CYCLE_MHZ * (size / usual if phase else 1.0)
            stores = size // (tasks.warps * tasks.warp_store_bytes)
            known[f"store_cycles.{stores}"] = _median(cycles, "median over tiles with local destinations")
    return replace(costs, instrument=known)


def forecast_notes(model: Model) -> list[str]:
    """Say what a forecast with this model stands on beside it: whose task costs, and defaults for late operands."""
    from xstage_bench.model.tasks.costs import find_costs, notes_of, reference_costs

    own = find_costs(model.tasks, "mma")
    costs = own or reference_costs()
    late = replace(costs, instrument=costs.instrument | {AHEAD: _median(0.0, "of the ring of stages")})
    return notes_of(late, model.gpu, own=own is not None)


def _median(value: float, statistic: str) -> Estimate:
    return Estimate(value=value, standard_error=None, low=None, high=None, level=0.95, status="ok", statistic=statistic)


@dataclass(frozen=True, slots=True)
class Choice:
    """The order that the model chose, and the predicted time of every order that was considered, ns by the order's name."""

    order: Order
    predicted_ns: dict[str, float]


def choose_order(model: Model, layer: Layer, rows: Sequence[ExpertRows], times: MoeTileTimes, combine: str, ctas: int) -> Choice:
    """Choose the order from the calibrated node model and the tile times; nothing is searched on hardware.

    `rows` are those of each rank that a GPU executes: the layer ends with the one that has most rows. Waves, where their Linear-2 tiles ask
    so little of the link that interleaving has nothing to gain: see `calm`. Of those predicted within `ALIKE` of the fastest, the smallest
    where experts have one block (`ONE_BLOCK`), else the largest. Waves, too, where every lead is predicted to be slower than the fastest of
    them by more than `SURELY_SLOWER`, else a lead. Of leads that are predicted within `ALIKE` of each other, the first of `PREFERRED`.
    """
    rank = busiest(rows)
    waves = wave_orders(layer, rows[0], ctas)  # all ranks execute the same order
    orders = {order.name: order for order in (*waves, *(Order("interleaved", lead=lead) for lead in LEADS))}
    found = {name: predict_order(model, layer, rows[rank], times, combine, ctas, order, rank).total_ns for name, order in orders.items()}
    of_experts = np.bincount(rows[rank].block_expert, minlength=layer.local_experts)
    if calm(asked_of_link(model, rows[rank], rank, times, combine, ctas), of_experts):
        best = min(found[order.name] for order in waves)
        alike = [order for order in waves if found[order.name] <= (1 + ALIKE) * best]
        return Choice(alike[0 if of_experts.mean() < ONE_BLOCK else -1], found)
    return Choice(orders[pick(found, [order.name for order in waves])], found)


def calm(asked: float, blocks_of_experts: NDArray[np.int64]) -> bool:
    """Return whether waves never ask too much of the link, of which their Linear-2 tiles ask this share (`asked_of_link`)."""
    uneven = blocks_of_experts.max(initial=0) > UNEVEN * blocks_of_experts.mean()
    return asked < (CALM_UNEVEN if uneven else CALM)


def asked_of_link(model: Model, rows: ExpertRows, rank: int, times: MoeTileTimes, combine: str, ctas: int) -> float:
    """Return the rate at which all SMs together store to other ranks while they execute Linear-2 tiles only, over R."""
    from xstage_bench.model.stage import stage_at

    away = remote_tile_bytes(rows, rank, combine)
    rate = stage_at(model, ctas, STORING_WARPS).rate_gb_per_s
    return float(away.mean()) * ctas / times.linear2_ns / rate if rate and away.size else 0.0


def pick(predicted_ns: Mapping[str, float], waves: Sequence[str]) -> str:
    """Return the name of the order to use; see `choose_order`."""
    wave = min(waves, key=lambda name: predicted_ns[name])
    leads = {name: ns for name, ns in predicted_ns.items() if name not in waves}
    best = min(leads.values(), default=float("inf"))
    if best > (1 + SURELY_SLOWER) * predicted_ns[wave]:
        return wave
    enough = (1 + ALIKE) * best
    preferred = (Order("interleaved", lead=lead).name for lead in PREFERRED)
    return next(name for name in preferred if leads.get(name, float("inf")) <= enough)


def busiest(rows: Sequence[ExpertRows]) -> int:
    """Return the rank with most rows."""
    return max(range(len(rows)), key=lambda rank: int(rows[rank].block_rows.sum()))


def predict_order(
    model: Model, layer: Layer, rows: ExpertRows, times: MoeTileTimes, combine: str, ctas: int, order: Order, rank: int = 0,
    stages: int | None = None,
) -> TaskPrediction:  # fmt: skip
    """Predict one order of one rank, whose rows these are, without its twin that stores nothing; `stages`: default as of `ring_stages`."""
    from xstage_bench.model.tasks.costs import find_costs, reference_costs
    from xstage_bench.model.tasks.predict import predict_tasks

    if stages is None:
        stages = ring_stages(tiles_per_sm(layer, rows, ctas))
    lists = task_lists(layer, rows, order, ctas)
    tasks = as_tasks(layer, rank, rows, lists, times, combine, model.sm_clock_mhz)
    costs = kernel_costs(find_costs(model.tasks, "mma") or reference_costs(), layer, tasks, times, model.sm_clock_mhz, stages)
    return predict_tasks(model, tasks, pair="0>1", costs=costs, twin=False)
