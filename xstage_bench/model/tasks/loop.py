"""The event loop: each SM executes its own list of tasks, and what the SMs have outstanding shares the link as in the node model (`drain`).

The same source runs twice: as it is, on lists, and compiled by numba, on arrays (`compiled`). It uses only what both know.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from xstage_bench.model.backpressure import FAR, TIE, blurred_excess, is_full
from xstage_bench.model.tasks.drain import advance, aim_next, all_drained_at, bursts_waiting, catch_up, role_of, share_link
from xstage_bench.model.tasks.state import CHUNK, FULL, LEVEL, LOOK, NOW, OUTSTANDING, POLL, RELAXED, STORE, STORED, Queue, State, TaskWork


def start_ready_tasks(work: TaskWork, state: State, queue: Queue, p: int) -> None:
    """Start the SM's next tasks as far as it is known when their roles are ready: their starts may lie ahead."""
    while state.next_task[p] < work.first[p + 1]:
        t = state.next_task[p]
        at = state.ready[t]
        if math.isnan(at) or (t > work.first[p] and math.isnan(state.computed[t - 1])) or math.isnan(state.operands_at[p]):
            return
        if t > work.first[p]:
            at = max(at, state.computed[t - 1] + work.turn, state.operands_at[p])
        state.start[t] = at
        state.next_task[p] = t + 1
        if work.ahead > 0.0:
            state.compute_left[t] = work.compute[t]
            heappush(queue, (at, CHUNK, t))
        else:
            state.computed[t] = at + work.compute[t]
            heappush(queue, (state.computed[t], STORE, t))


def compute_chunk(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """Compute as far as operands have been asked for, and ask for those behind: of this task, or of the beginning of the next one."""
    now, p = state.stage[NOW], work.owner[t]
    state.asked_at[p] = now
    if state.compute_left[t] <= work.ahead:
        state.computed[t] = now + state.compute_left[t]
        state.operands_at[p] = math.nan
        heappush(queue, (state.computed[t], STORE, t))
    state.starved_task[p] = t
    if state.storing_task[role_of(p, t + 1)] < 0:  # the other role's: its own task stores nothing yet
        supply_operands(work, state, queue, p)


def supply_operands(work: TaskWork, state: State, queue: Queue, p: int) -> None:
    """The SM has taken all stores that lay before its operands, which come when most of those have drained."""
    t = state.starved_task[p]
    state.starved_task[p] = -1
    catch_up(work, state, p)
    # Where nothing is stored they come in time, or the compute time that was given has that in it already.
    supplied = state.stage[NOW] + min(work.reach, work.ahead)
    rate = state.rate[work.unit[p]]
    if state.outstanding[p] > work.passed and rate > 0.0:
        supplied += (state.outstanding[p] - work.passed) / rate
    if math.isnan(state.computed[t]):
        state.compute_left[t] -= work.ahead
        heappush(queue, (max(state.asked_at[p] + work.ahead, supplied), CHUNK, t))
        return
    state.operands_at[p] = supplied - (work.ahead - state.compute_left[t])
    start_ready_tasks(work, state, queue, p)


def fetch_task(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """A task's role is free: it fetches the task from shared memory, behind all stores that the SM has outstanding."""
    p = work.owner[t]
    catch_up(work, state, p)
    if work.fetch > 0 and state.outstanding[p] > 0.0:
        i = role_of(p, t)
        state.fetch_behind[i] = state.outstanding[p]
        state.looking_task[i] = t
        aim_next(work, state, p)
    else:
        await_event(work, state, queue, t)


def await_event(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """A role has its task: look for the event as soon as it has happened, which an earlier look would have missed."""
    event = work.waits[t]
    if event < 0:
        state.ready[t] = state.stage[NOW]
        start_ready_tasks(work, state, queue, work.owner[t])
    elif state.signals_missing[event] > 0:
        state.next_waiting[t] = state.first_waiting[event]
        state.first_waiting[event] = t
    else:
        heappush(queue, (max(state.stage[NOW], state.happened_at[event]), POLL, t))


def read_event(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """A role reads its event. The load leaves the SM behind the stores that are outstanding."""
    p = work.owner[t]
    catch_up(work, state, p)
    if state.outstanding[p] > 0.0:
        i = role_of(p, t)
        state.read_behind[i] = state.outstanding[p]
        state.looking_task[i] = t
        aim_next(work, state, p)
    else:
        see_event(work, state, queue, t)


def see_event(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """The read has reached the event."""
    state.ready[t] = max(state.stage[NOW] + work.trip, state.happened_at[work.waits[t]] + work.wait)
    start_ready_tasks(work, state, queue, work.owner[t])


def end_task(work: TaskWork, state: State, queue: Queue, t: int, at: float) -> None:
    """Note a task's end, which may lie ahead; its role goes on to its next task, and who waited for the event reads it."""
    free_role(work, state, queue, t, at)
    signal_event(work, state, queue, t, at)


def free_role(work: TaskWork, state: State, queue: Queue, t: int, at: float) -> None:
    """A task has ended: its role goes on to its next one."""
    state.ended[t] = at
    if t + work.lag < work.first[work.owner[t] + 1]:
        heappush(queue, (at + work.again, LOOK, t + work.lag))


def signal_event(work: TaskWork, state: State, queue: Queue, t: int, at: float) -> None:
    """A task's signal is out: note when its event is complete, and let those read it who wait for it."""
    event = work.signals[t]
    if event < 0:
        return
    state.happened_at[event] = max(state.happened_at[event], at)
    state.signals_missing[event] -= 1
    if state.signals_missing[event] == 0:
        waiting = state.first_waiting[event]
        state.first_waiting[event] = -1
        while waiting >= 0:
            heappush(queue, (state.happened_at[event], POLL, waiting))
            waiting = state.next_waiting[waiting]


def issue_stores(work: TaskWork, state: State, queue: Queue, t: int) -> bool:
    """Issue a task's stores as far as there is room; return whether the rates change."""
    now, p = state.stage[NOW], work.owner[t]
    u = work.unit[p]
    if work.free[t] < 0.0:
        if work.signals[t] >= 0:
            heappush(queue, (now, STORED, t))
        else:
            end_task(work, state, queue, t, now)
        return False
    size = work.load[t]
    if size <= 0.0:
        state.stored[t] = now + work.free[t]
        heappush(queue, (state.stored[t], STORED, t))
        return False
    state.storing_task[role_of(p, t)] = t
    catch_up(work, state, p)
    before, rate = state.outstanding[p], state.rate[u]
    known = 0.0
    if bursts_waiting(state, p) > 0:
        over = size
    else:
        over = before + size - work.capacity[u]
        if before > TIE * rate and rate > 0.0:
            # A draining SM learns of its room a credit late; what its bursts differ by blurs the onset.
            over = blurred_excess(over, rate, work.credit - work.free[t], work.blur * before + 1e-9)
            known = now + work.credit + over / rate
    issued = size - max(min(over, size), 0.0)
    changed: bool = before <= 0.0
    if changed:
        state.active_sms[u] += 1
    state.outstanding[p] += issued
    state.stage[OUTSTANDING] += issued
    state.stored_since_idle[u] += size / (state.unit_begin[u + 1] - state.unit_begin[u])
    if over > 0.0:
        i = role_of(p, t)
        if bursts_waiting(state, p) == 0:
            state.held_sms[u] += 1
        state.room_needed[i] = min(over, size)
        state.slot_task[i] = t
        if state.outstanding[p] <= 0.0:
            state.outstanding[p] = 1e-6
    else:
        state.stored[t] = max(now + work.free[t], known)
        heappush(queue, (state.stored[t], STORED, t))
    aim_next(work, state, p)
    return changed


def publish(work: TaskWork, state: State, queue: Queue, t: int) -> None:
    """A task's stores have been issued: signal, at once or when what the fence waits for has drained."""
    now, p = state.stage[NOW], work.owner[t]
    state.left[t] = state.stage[OUTSTANDING] + state.stage[LEVEL]
    if state.storing_task[role_of(p, t)] == t:
        state.storing_task[role_of(p, t)] = -1
        if state.starved_task[p] >= 0 and state.starved_task[p] % 2 != t % 2:
            supply_operands(work, state, queue, p)
    catch_up(work, state, p)
    state.drained[t] = max(now, state.buffer_exit[p])
    if state.outstanding[p] > 0.0:
        state.drained[t] = now + state.outstanding[p] / state.rate[work.unit[p]] + state.stage[LEVEL] / work.link
    if work.signals[t] < 0 or work.publish == RELAXED:
        end_task(work, state, queue, t, now + (work.signal if work.signals[t] >= 0 else 0.0))
        return
    if work.elsewhere > 0:
        free_role(work, state, queue, t, now)
        signal_event(work, state, queue, t, max(state.drained[t], all_drained_at(work, state)) + work.signal)
    elif state.outstanding[p] > 0.0:
        i = role_of(p, t)
        state.release_behind[i] = state.outstanding[p]
        state.slot_task[i] = t
        state.release_from[i] = all_drained_at(work, state)
        aim_next(work, state, p)
    else:
        end_task(work, state, queue, t, max(state.buffer_exit[p], all_drained_at(work, state)) + work.signal)


def settle_targets(work: TaskWork, state: State, queue: Queue, u: int) -> bool:
    """Handle the SMs of a unit whose target the course has reached; return whether the rates change."""
    changed = False
    now = state.stage[NOW]
    for k in range(state.unit_begin[u], state.unit_begin[u + 1]):
        p = state.sms_by_unit[k]
        if state.target[p] > state.course[u] + TIE * 1e-3 * state.rate[u]:
            continue
        catch_up(work, state, p)
        slack = 1e-3 * state.rate[u] + 1e-9
        for i in (2 * p, 2 * p + 1):
            t = state.slot_task[i]
            if state.room_needed[i] >= 0.0 and state.room_needed[i] <= slack:
                state.room_needed[i] = -1.0
                if bursts_waiting(state, p) == 0:
                    state.held_sms[u] -= 1
                state.stored[t] = max(state.computed[t] + work.free[t], now + work.credit)
                heappush(queue, (state.stored[t], STORED, t))
            if state.release_behind[i] >= 0.0 and state.release_behind[i] <= slack:
                state.release_behind[i] = -1.0
                end_task(work, state, queue, t, max(now + state.stage[LEVEL] / work.link, state.release_from[i]) + work.signal)
            if state.read_behind[i] >= 0.0 and state.read_behind[i] <= slack:
                state.read_behind[i] = -1.0
                see_event(work, state, queue, state.looking_task[i])
            if state.fetch_behind[i] >= 0.0 and state.fetch_behind[i] <= slack:
                state.fetch_behind[i] = -1.0
                await_event(work, state, queue, state.looking_task[i])
        if bursts_waiting(state, p) == 0 and state.outstanding[p] <= slack:
            state.stage[OUTSTANDING] = max(state.stage[OUTSTANDING] - state.outstanding[p], 0.0)
            state.outstanding[p] = 0.0
            state.buffer_exit[p] = now + state.stage[LEVEL] / work.link
            state.active_sms[u] -= 1
            if state.active_sms[u] == 0:
                state.stored_since_idle[u] = 0.0
            changed = True
        aim_next(work, state, p)
    return changed


def run(work: TaskWork, state: State) -> None:
    """Execute all tasks; the results stand in `state`.

    Parameters
    ----------
    work : TaskWork
    state : State
        Fresh.
    """
    queue = [(FAR, STORED, 0)]
    for p in range(len(state.next_task)):
        for t in range(work.first[p], min(work.first[p] + work.lag, work.first[p + 1])):
            heappush(queue, (0.0, LOOK, t))
    while True:
        at, kind, t = queue[0]
        if advance(work, state, at):
            if at >= FAR:
                return
            heappop(queue)
            changed = False
            if kind == STORE:
                changed = issue_stores(work, state, queue, t)
            elif kind == STORED:
                publish(work, state, queue, t)
            elif kind == LOOK:
                fetch_task(work, state, queue, t)
            elif kind == CHUNK:
                compute_chunk(work, state, queue, t)
            else:
                read_event(work, state, queue, t)
        else:
            changed = False
            for u in range(len(state.rate)):
                if state.active_sms[u] > 0 and state.nearest_target[u] <= state.course[u] + TIE * 1e-3 * state.rate[u]:
                    changed = settle_targets(work, state, queue, u) or changed
        full = 1.0 if is_full(state.stage[LEVEL], work.buffer) else 0.0
        if changed or full != state.stage[FULL]:
            state.stage[FULL] = full
            share_link(work, state)


#: What the compiled form compiles after what it takes from `drain`, callees first.
COMPILED = (
    *(
        "start_ready_tasks",
        "supply_operands",
        "compute_chunk",
        "free_role",
        "signal_event",
        "end_task",
        "await_event",
        "fetch_task",
        "see_event",
        "read_event",
    ),
    *("issue_stores", "publish", "settle_targets", "run"),
)
