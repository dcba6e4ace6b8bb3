"""What fusing will cost, before it is measured: the kernel's schedule as tasks, its compute as measured without stores to a peer, and the
calibrated node model for the rest.

A tile's stores hold up the next tile by either way to store. That is the form ``single``, whose role fetches its next task when what its SM
has outstanding has drained. A warp whose bulk stores leave from a staged copy computes on, but the next tile's keys and values are read by
the copy engine, and behind bulk stores it brings nothing before these have left, for a warp that has stored nothing either
(`cuda/store_queue.cu`, results/h200-x2/ulysses).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.kernels.attention.attention import AttentionBuild, Store, alone_of
from xstage_bench.kernels.attention.problem import BF16_BYTES, Problem
from xstage_bench.kernels.attention.tile_order import tiles_of
from xstage_bench.schedule.tasks import NONE, TaskSchedule

if TYPE_CHECKING:
    from xstage_bench.model.document import Model

_WARP_STORE_BYTES = 512
_COMPUTE = "mma"  # whose costs of tasks hold: the kernel computes on tensor cores
_WARPS = 8  # that store: two warpgroups


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one way to store and one tile order, for the slowest rank.

    `residual_us`: fused less alone, sender-visible: until everything that was stored has been performed. `issue_stall_us`: the longest that
    one SM spends stalled in its stores, over the whole kernel. `fused_us`: the residual on top of attention alone, as measured.
    """

    store: Store
    order: str
    residual_us: float
    issue_stall_us: float
    fused_us: float


@dataclass(frozen=True, slots=True)
class AttentionTileTimes:
    """How long tiles compute and when the SMs have done, in one execution with nothing sent.

    When SMs end decides how far their last stores coincide, and how much their tiles differ does not say it. `wave_us`: mean over the SMs
    of their first, second, ... tile; the first ones fill the caches, and the last have the power to themselves. `late_us`: of each CTA, how
    much later its last tile has been computed than the mean of those with as many tiles. `between_us`, `within_us`: standard deviation over
    the SMs of what an SM's tiles differ from those means by, and of the rest; no forecast reads them, but a control that draws when SMs
    would end if their tiles were independent.
    """

    wave_us: list[float]
    between_us: float
    within_us: float
    late_us: list[float]

    @classmethod
    def of(cls, stamps: NDArray[np.void], ctas: int) -> AttentionTileTimes:
        """Take them from `STAMP`s of shape (tiles, consumers) in the order of the tiles."""
        begin, computed = stamps["begin_ns"].min(axis=1), stamps["computed_ns"].max(axis=1)
        us = (computed - begin).astype(np.float64) / 1e3
        cta, wave = np.arange(us.size) % ctas, np.arange(us.size) // ctas
        means = np.bincount(wave, weights=us) / np.bincount(wave)
        off = us - means[wave]
        per_cta = np.bincount(cta, weights=off) / np.bincount(cta)
        end, last = (computed[-ctas:] - begin.min()).astype(np.float64) / 1e3, wave[-ctas:]  # of each CTA's last tile
        late = np.empty(ctas)
        late[cta[-ctas:]] = end - (np.bincount(last, weights=end) / np.maximum(np.bincount(last), 1))[last]
        return cls(means.round(3).tolist(), float(per_cta.std()), float((off - per_cta[cta]).std()), late.round(3).tolist())

    def tiles_us(self, tiles: int, ctas: int) -> NDArray[np.float64]:
        """Return the time of each tile, tile ``t`` on CTA ``t % ctas``: what a CTA is late by is spread over its tiles."""
        cta, wave = np.arange(tiles) % ctas, np.minimum(np.arange(tiles) // ctas, len(self.wave_us) - 1)
        off = np.resize(np.array(self.late_us), ctas)[cta] / np.bincount(cta)[cta]
        return np.maximum(np.array(self.wave_us)[wave] + off, 0.0)


def tasks_of(
    problem: Problem, build: AttentionBuild, order: NDArray[np.uint32], rank: int, ctas: int, times: AttentionTileTimes, sm_clock_mhz: float
) -> TaskSchedule:
    """Describe one rank's kernel as tasks: each tile of `order` computes, then stores its rows, those of other owners to the peer."""
    unit = _WARPS * _WARP_STORE_BYTES
    cta = np.arange(order.size) % ctas
    turn = np.argsort(cta, kind="stable")
    first = (order & np.uint32(0xFFFF)).astype(np.int64) * build.tile_rows
    last = np.minimum(first + build.tile_rows, problem.seq)
    begin, end = rank * problem.rows_per_owner, rank * problem.rows_per_owner + problem.rows_of(rank)
    kept = np.maximum(np.minimum(last, end) - np.maximum(first, begin), 0)
    width = problem.head_dim * BF16_BYTES
    size = -(-(last - first) * width // unit) * unit
    remote = np.minimum((last - first - kept) * width // _WARP_STORE_BYTES * _WARP_STORE_BYTES, size)
    nothing = np.full(order.size, NONE)
    return TaskSchedule(
        producers=ctas, producer=cta[turn],
        compute_cycles=np.round(times.tiles_us(order.size, ctas) * sm_clock_mhz)[turn].astype(np.int64), bytes=size[turn],
        remote_bytes=remote[turn], waits_for=nothing, signals=nothing, phases=("attention",), warps=_WARPS, form="single",
        publish="relaxed", both_ways=True, name=f"{problem.name} {problem.seq} SP{problem.ranks} {build.store}",
    )  # fmt: skip


def forecast(
    model: Model, problem: Problem, builds: Mapping[Store, AttentionBuild], orders: Mapping[tuple[Store, str], NDArray[np.uint32]],
    alone_us: Mapping[Store, float], times: Mapping[Store, AttentionTileTimes], *, ctas: int, sm_clock_mhz: float,
) -> list[Forecast]:  # fmt: skip
    """Predict every way to store and every order, those of rank 0, best first.

    `alone_us` and `times` are of each build; `sm_clock_mhz` is the clock at which attention runs, which the link does not follow. The
    residual is the difference of two predictions, to the peer and all local, so what both have in common does not enter.
    """
    from xstage_bench.model.tasks.predict import predict_tasks_all

    schedules = [
        tasks_of(problem, builds[store], order, 0, min(ctas, order.size), times[store], sm_clock_mhz)
        for (store, _), order in orders.items()
    ]
    both = [s for schedule in schedules for s in (schedule, schedule.local())]
    predicted = predict_tasks_all(model, both, sm_clock_mhz=sm_clock_mhz, compute=_COMPUTE, compiled=False)
    found = []
    for (store, name), sent, kept in zip(orders, predicted[::2], predicted[1::2], strict=True):
        residual_us = (sent.all_visible_ns - kept.all_visible_ns) / 1e3
        stall_ns = np.nan_to_num(sent.store_end_ns - sent.compute_end_ns - sent.t0_ns)
        per_sm = np.bincount(sent.schedule.producer, weights=np.maximum(stall_ns, 0.0))
        found.append(Forecast(store, name, residual_us, float(per_sm.max()) / 1e3, alone_us[store] + residual_us))
    return sorted(found, key=lambda f: f.fused_us)


def drain_us(model: Model, tasks: TaskSchedule) -> float:
    """Return how long the link needs for all that a rank sends: what any way costs at least that begins when the attention has ended."""
    from xstage_bench.model.node.entry import model_of
    from xstage_bench.model.tasks.costs import costs_of, find_costs, reference_costs
    from xstage_bench.model.tasks.predict import node_of

    costs = find_costs(model.tasks, _COMPUTE) or reference_costs(_COMPUTE)
    link = model_of(node_of(model, tasks)).link_gb_per_s * costs_of(costs, tasks).link
    return tasks.volume_bytes / link / 1e3


def add_forecasts(document: dict[str, Any], model: Model) -> None:
    """Give every row of a document of `ulysses.run` its ``forecast``, every way to store and order, best first, and what the least is that
    doing the All-to-All afterwards costs, ``predicted_serial_us``; and the document its ``forecast_notes``; plain data. `DataError`: the
    document is of a version that did not record when SMs end.
    """
    from xstage_bench.model.tasks.costs import find_costs, notes_of, reference_costs

    for row in document["rows"]:
        if any("late_us" not in facts["compute"] for facts in row["tiles"].values()):
            raise DataError(f"{row['shape']}: the document does not say when its SMs end (late_us)", "record it anew: xstage fused ulysses")
        problem = Problem(row["heads"], row["kv_heads"], row["head_dim"], row["seq"], row["sp"], row["shape"])
        builds = {store: AttentionBuild(**fields) for store, fields in row["builds"].items()}
        names = {name.split()[2] for name in row["times_us"] if name.startswith("fused ") and len(name.split()) == 3}
        orders = {
            (store, name): tiles_of(name, problem.local_heads, problem.seq, build.tile_rows, problem.ranks, 0)
            for store, build in builds.items()
            for name in sorted(names)
        }
        times = {store: AttentionTileTimes(**facts["compute"]) for store, facts in row["tiles"].items()}
        alone = {store: row["times_us"][alone_of(store)]["value"] for store in builds}
        clock = max((gpu["sm_clock_mhz"] or 0 for gpu in row["clocks"] or ()), default=0) or model.sm_clock_mhz
        store, name = next(iter(orders))
        first = tasks_of(problem, builds[store], orders[store, name], 0, row["sms"], times[store], clock)
        row["predicted_serial_us"] = min(alone.values()) + drain_us(model, first)
        row["forecast"] = [asdict(f) for f in forecast(model, problem, builds, orders, alone, times, ctas=row["sms"], sm_clock_mhz=clock)]
    own = find_costs(model.tasks, _COMPUTE)
    document["forecast_notes"] = notes_of(own or reference_costs(_COMPUTE), model.gpu, own=own is not None)
