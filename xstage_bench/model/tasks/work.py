"""From a TaskSchedule and a NodeModel to what the event loop executes."""

from __future__ import annotations

from typing import cast

import numpy as np

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.backpressure import FAR
from xstage_bench.model.node.issue import free_cycles
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import BLUR, EVENS_OUT_BYTES
from xstage_bench.model.tasks.costs import PASSED_BYTES, REACH_CYCLES, STORE_WARPS, Costs
from xstage_bench.model.tasks.state import GPU, RELAXED, SYS, State, TaskWork
from xstage_bench.schedule.tasks import TaskSchedule

PUBLISH = {"relaxed": RELAXED, "release.gpu": GPU, "release.sys": SYS}
LAG = {"single": 1, "ping_pong": 2}


def free_store_cycles(model: NodeModel, schedule: TaskSchedule, costs: Costs) -> FloatArray:
    """Issue time of each task's stores when nothing holds them back; negative where there are none.

    Notes
    -----
    The replay's loop is measured with `STORE_WARPS` warps; of another number of warps, the same stores of the SM in all, plus what the
    issue law of the burst instrument makes of the difference.
    """
    n = (schedule.bytes // (schedule.warps * schedule.warp_store_bytes)).astype(np.float64)

    def law(warps: int, stores: FloatArray) -> FloatArray:
        return free_cycles(model.issue, model.issue_cycles_per_store, warps, stores, False)

    cycles = law(schedule.warps, n)
    if costs.stores:
        like = n * schedule.warps / STORE_WARPS
        at, cost = np.array(costs.stores), np.array(costs.store_cycles)
        slope = (cost[-1] - cost[-2]) / (at[-1] - at[-2]) if at.size > 1 else 0.0
        measured = np.interp(like, at, cost) + np.maximum(like - at[-1], 0.0) * slope
        cycles = measured + cycles - law(STORE_WARPS, np.rint(like))
    return np.where(n > 0, np.maximum(cycles, 0.0), -1.0)


def work_of(model: NodeModel, schedule: TaskSchedule, clock_mhz: float, costs: Costs) -> tuple[TaskWork, State, IntArray]:
    """Return what the loop executes, a fresh state, and the producers' smids.

    Raises
    ------
    UsageError
        The schedule asks for SMs that the model's map lacks.
    """
    smids = schedule.smids(cast("list[int]", model.placement.smids))
    used, unit = np.unique(model.placement.unit_of(smids), return_inverse=True)
    members = np.bincount(unit, minlength=used.size)
    k, t, u, e = smids.size, schedule.task_count, used.size, max(schedule.event_count, 1)
    work = TaskWork(
        first=schedule.first,
        owner=schedule.producer,
        unit=unit.astype(np.int64),
        compute=schedule.compute_cycles.astype(np.float64) + costs.compute,
        free=free_store_cycles(model, schedule, costs),
        load=schedule.remote_bytes.astype(np.float64) * (0.0 if schedule.source == schedule.destination else 1.0),
        waits=schedule.waits_for,
        signals=schedule.signals,
        needed=schedule.signals_of_event,
        capacity=model.unit_capacity(members) / members,
        log_weight=np.log(model.weights())[used],
        lag=LAG[schedule.form],
        publish=PUBLISH[schedule.publish],
        link=model.link_bytes_per_cycle(clock_mhz) * costs.link,
        sm_rate=model.sm_bytes_per_cycle,
        buffer=model.link_buffer_bytes,
        credit=model.credit_cycles,
        evens_out=EVENS_OUT_BYTES,
        blur=BLUR * model.service_spread,
        turn=costs.turn,
        again=costs.again,
        signal=costs.signal,
        wait=costs.wait,
        trip=costs.wait / 2,
        fetch=int(costs.fetch),
        ahead=costs.ahead,
        elsewhere=int(costs.elsewhere),
        passed=PASSED_BYTES.value,
        reach=REACH_CYCLES.value,
    )
    missing = np.zeros(e)
    missing[: schedule.event_count] = schedule.signals_of_event
    state = State(
        **{name: np.full(t, np.nan) for name in ("start", "computed", "stored", "ended", "left", "drained", "ready", "compute_left")},
        next_task=schedule.first[:-1].copy(),
        operands_at=np.zeros(k),
        storing_task=np.full(2 * k, -1, dtype=np.int64),
        starved_task=np.full(k, -1, dtype=np.int64),
        asked_at=np.zeros(k),
        outstanding=np.zeros(k),
        caught_up_to=np.zeros(k),
        target=np.full(k, FAR),
        buffer_exit=np.zeros(k),
        room_needed=np.full(2 * k, -1.0),
        release_behind=np.full(2 * k, -1.0),
        fetch_behind=np.full(2 * k, -1.0),
        read_behind=np.full(2 * k, -1.0),
        looking_task=np.full(2 * k, -1, dtype=np.int64),
        slot_task=np.full(2 * k, -1, dtype=np.int64),
        release_from=np.zeros(2 * k),
        course=np.zeros(u),
        rate=np.zeros(u),
        nearest_target=np.full(u, FAR),
        weight=np.zeros(u),
        stored_since_idle=np.zeros(u),
        active_sms=np.zeros(u),
        held_sms=np.zeros(u),
        signals_missing=missing,
        happened_at=np.zeros(e),
        first_waiting=np.full(e, -1, dtype=np.int64),
        next_waiting=np.full(t, -1, dtype=np.int64),
        sms_by_unit=np.argsort(unit, kind="stable").astype(np.int64),
        unit_begin=np.concatenate([[0], np.cumsum(members)]).astype(np.int64),
        stage=np.zeros(6),
    )
    return work, state, smids
