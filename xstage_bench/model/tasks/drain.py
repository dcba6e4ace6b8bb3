"""What the SMs have outstanding: it drains as a fluid, at rates that are constant between events, so the state at every event is exact.

All active SMs of a unit drain alike; the unit's *course* is how much each of its active SMs has drained since the start. What happens next
to an SM is then a course to be reached, and an event costs a pass over the units, not over the SMs.

Like `loop`, it runs as it is, on lists, and compiled by numba, on arrays.
"""

from __future__ import annotations

from xstage_bench.model.backpressure import FAR, service_weight
from xstage_bench.model.tasks.state import FULL, INFLOW, LEVEL, NOW, OUTSTANDING, STEPS, SYS, State, TaskWork


def role_of(p: int, t: int) -> int:
    """Return the place of the role of SM p that executes task t, in what each role has one of."""
    return 2 * p + t % 2


def bursts_waiting(state: State, p: int) -> int:
    """Count the bursts of an SM that wait for room: one for each role at most."""
    waiting: int = (state.room_needed[2 * p] >= 0.0) + (state.room_needed[2 * p + 1] >= 0.0)
    return waiting


def share_link(work: TaskWork, state: State) -> None:
    """Find the rates: each SM its own, or the link by the units' weights once the buffer before it is full."""
    inflow, total, level = 0.0, 0.0, 0.0
    for u in range(len(state.rate)):
        state.rate[u] = work.sm_rate if state.active_sms[u] > 0 else 0.0
        inflow += state.active_sms[u] * work.sm_rate
        if state.active_sms[u] > 0:
            state.weight[u] = service_weight(work.log_weight[u], work.evens_out, state.stored_since_idle[u])
            total += state.weight[u]
    if state.stage[FULL] > 0 and inflow > work.link:
        left, again = work.link, True
        while again and total > 1e-12:
            # Units that cannot use their share get what they ask for, and the rest is shared again.
            again = False
            level = left / total
            for u in range(len(state.rate)):
                if state.active_sms[u] > 0 and state.weight[u] > 0 and state.active_sms[u] * work.sm_rate <= state.weight[u] * level:
                    left -= state.active_sms[u] * work.sm_rate
                    total -= state.weight[u]
                    state.weight[u] = 0.0
                    again = True
        for u in range(len(state.rate)):
            if state.active_sms[u] > 0 and state.weight[u] > 0:
                state.rate[u] = state.weight[u] * level / state.active_sms[u]
        inflow = work.link
    state.stage[INFLOW] = inflow


def catch_up(work: TaskWork, state: State, p: int) -> None:
    """Bring an SM up to the course of its unit."""
    u = work.unit[p]
    drained = state.course[u] - state.caught_up_to[p]
    state.caught_up_to[p] = state.course[u]
    if state.outstanding[p] <= 0.0:
        return
    waiting = (state.room_needed[2 * p] > 0.0) + (state.room_needed[2 * p + 1] > 0.0)
    for i in (2 * p, 2 * p + 1):
        if state.room_needed[i] > 0.0:
            state.room_needed[i] = max(state.room_needed[i] - drained / waiting, 0.0)
        if state.release_behind[i] > 0.0:
            state.release_behind[i] = max(state.release_behind[i] - drained, 0.0)
        if state.fetch_behind[i] > 0.0:
            state.fetch_behind[i] = max(state.fetch_behind[i] - drained, 0.0)
        if state.read_behind[i] > 0.0:
            state.read_behind[i] = max(state.read_behind[i] - drained, 0.0)
    if waiting == 0:
        state.outstanding[p] = max(state.outstanding[p] - drained, 0.0)


def aim_next(work: TaskWork, state: State, p: int) -> None:
    """Find what happens next to an SM that is up to date, and to its unit."""
    u = work.unit[p]
    waiting = bursts_waiting(state, p)
    ahead = FAR
    if state.outstanding[p] > 0.0:
        ahead = state.outstanding[p] if waiting == 0 else FAR
        for i in (2 * p, 2 * p + 1):
            if state.room_needed[i] >= 0.0:
                ahead = min(ahead, state.room_needed[i] * waiting)
            if state.release_behind[i] >= 0.0:
                ahead = min(ahead, state.release_behind[i])
            if state.fetch_behind[i] >= 0.0:
                ahead = min(ahead, state.fetch_behind[i])
            if state.read_behind[i] >= 0.0:
                ahead = min(ahead, state.read_behind[i])
    state.target[p] = state.course[u] + ahead if ahead < FAR else FAR
    soonest = FAR
    for i in range(state.unit_begin[u], state.unit_begin[u + 1]):
        soonest = min(soonest, state.target[state.sms_by_unit[i]])
    state.nearest_target[u] = soonest


def advance(work: TaskWork, state: State, until: float) -> bool:
    """Move to the next event, at most to `until`; return whether it was `until`."""
    dt = until - state.stage[NOW]
    by_queue = True
    for u in range(len(state.rate)):
        if state.active_sms[u] > 0 and state.rate[u] > 0.0 and state.nearest_target[u] < FAR:
            ahead = (state.nearest_target[u] - state.course[u]) / state.rate[u]
            if ahead < dt:
                dt, by_queue = max(ahead, 0.0), False
    growth = state.stage[INFLOW] - work.link
    if growth > 0.0 and state.stage[FULL] == 0.0:
        filled = (work.buffer - state.stage[LEVEL]) / growth
        if filled < dt:
            dt, by_queue = max(filled, 0.0), False
    if dt >= FAR / 2:
        return True
    for u in range(len(state.rate)):
        if state.active_sms[u] > 0:
            step = state.rate[u] * dt
            state.course[u] += step
            state.stage[OUTSTANDING] -= step * (state.active_sms[u] - state.held_sms[u])
    state.stage[LEVEL] = min(max(state.stage[LEVEL] + growth * dt, 0.0), work.buffer)
    state.stage[NOW] += dt
    state.stage[STEPS] += 1
    return by_queue


def all_drained_at(work: TaskWork, state: State) -> float:
    """When all that all SMs have outstanding has left the link, for a release at system scope; else now."""
    now: float = state.stage[NOW]
    if work.publish == SYS:
        now += (state.stage[OUTSTANDING] + state.stage[LEVEL]) / work.link
    return now


#: What the compiled form compiles, callees first.
COMPILED = ("role_of", "bursts_waiting", "share_link", "catch_up", "aim_next", "advance", "all_drained_at")
