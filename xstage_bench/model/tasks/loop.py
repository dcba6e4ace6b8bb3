"""The event loop: each SM executes its own list of tasks, and what the SMs have outstanding shares the link as in the node model.

Bytes of an SM are a fluid that leaves at a rate which is constant between events, so the state at every event is exact. All active SMs of
a unit drain alike; the unit's *course* is how much each of its active SMs has drained since the start. What happens next to an SM is then a
course to be reached, and an event costs a pass over the units, not over the SMs.

The same source runs twice: as it is, on lists, and compiled by numba, on arrays (`compiled`). It uses only what both know.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any

from xstage_bench.model.tasks.state import (
    CHUNK,
    FAR,
    FULL,
    INFLOW,
    LEVEL,
    LOOK,
    NOW,
    OUTSTANDING,
    POLL,
    RELAXED,
    STEPS,
    STORE,
    STORED,
    SYS,
    State,
    Work,
)

_TIE = 0.25  # cycles: a queue that empties within this is idle
_WIDE = 34.0  # logaddexp(0, x) is x above this, and 0 below its negative, to double precision


def share(w: Work, s: State) -> None:
    """Find the rates: each SM its own, or the link by the units' weights once the buffer before it is full."""
    inflow, total, level = 0.0, 0.0, 0.0
    for u in range(len(s.rate)):
        s.rate[u] = w.sm_rate if s.active[u] > 0 else 0.0
        inflow += s.active[u] * w.sm_rate
        if s.active[u] > 0:
            s.weight[u] = math.exp(w.log_weight[u] * w.evens_out / (w.evens_out + s.grown[u]))
            total += s.weight[u]
    if s.link[FULL] > 0 and inflow > w.link:
        left, again = w.link, True
        while again and total > 1e-12:
            # Units that cannot use their share get what they ask for, and the rest is shared again.
            again = False
            level = left / total
            for u in range(len(s.rate)):
                if s.active[u] > 0 and s.weight[u] > 0 and s.active[u] * w.sm_rate <= s.weight[u] * level:
                    left -= s.active[u] * w.sm_rate
                    total -= s.weight[u]
                    s.weight[u] = 0.0
                    again = True
        for u in range(len(s.rate)):
            if s.active[u] > 0 and s.weight[u] > 0:
                s.rate[u] = s.weight[u] * level / s.active[u]
        inflow = w.link
    s.link[INFLOW] = inflow


def catch_up(w: Work, s: State, p: int) -> None:
    """Bring an SM up to the course of its unit."""
    u = w.unit[p]
    drained = s.course[u] - s.mark[p]
    s.mark[p] = s.course[u]
    if s.out[p] <= 0.0:
        return
    waiting = (s.pending[2 * p] > 0.0) + (s.pending[2 * p + 1] > 0.0)
    for i in (2 * p, 2 * p + 1):
        if s.pending[i] > 0.0:
            s.pending[i] = max(s.pending[i] - drained / waiting, 0.0)
        if s.due[i] > 0.0:
            s.due[i] = max(s.due[i] - drained, 0.0)
        if s.fetching[i] > 0.0:
            s.fetching[i] = max(s.fetching[i] - drained, 0.0)
        if s.polling[i] > 0.0:
            s.polling[i] = max(s.polling[i] - drained, 0.0)
    if waiting == 0:
        s.out[p] = max(s.out[p] - drained, 0.0)


def aim(w: Work, s: State, p: int) -> None:
    """Find what happens next to an SM that is up to date, and to its unit."""
    u = w.unit[p]
    waiting = (s.pending[2 * p] >= 0.0) + (s.pending[2 * p + 1] >= 0.0)
    ahead = FAR
    if s.out[p] > 0.0:
        ahead = s.out[p] if waiting == 0 else FAR
        for i in (2 * p, 2 * p + 1):
            if s.pending[i] >= 0.0:
                ahead = min(ahead, s.pending[i] * waiting)
            if s.due[i] >= 0.0:
                ahead = min(ahead, s.due[i])
            if s.fetching[i] >= 0.0:
                ahead = min(ahead, s.fetching[i])
            if s.polling[i] >= 0.0:
                ahead = min(ahead, s.polling[i])
    s.target[p] = s.course[u] + ahead if ahead < FAR else FAR
    soonest = FAR
    for i in range(s.begin_of[u], s.begin_of[u + 1]):
        soonest = min(soonest, s.target[s.members[i]])
    s.soonest[u] = soonest


def start_tasks(w: Work, s: State, queue: Any, p: int) -> None:
    """Start the SM's next tasks as far as it is known when their roles are ready: their starts may lie ahead."""
    while s.next[p] < w.first[p + 1]:
        t = s.next[p]
        at = s.ready[t]
        if math.isnan(at) or (t > w.first[p] and math.isnan(s.computed[t - 1])):
            return
        if t > w.first[p]:
            at = max(at, s.computed[t - 1] + w.turn, s.supplied[p])
        s.start[t] = at
        s.next[p] = t + 1
        if w.ahead > 0.0:
            s.rest[t] = w.compute[t]
            heappush(queue, (at, CHUNK, t))
        else:
            s.computed[t] = at + w.compute[t]
            heappush(queue, (s.computed[t], STORE, t))


def compute_on(w: Work, s: State, queue: Any, t: int) -> None:
    """Compute as far as operands have been asked for. Those behind are asked for now, and wait until what the SM has stored has drained."""
    now, p = s.link[NOW], w.owner[t]
    catch_up(w, s, p)
    # Where nothing is stored they come in time, or the compute time that was given has that in it already.
    supplied = now + min(w.reach, w.ahead)
    rate = s.rate[w.unit[p]]
    if s.out[p] > w.passed and rate > 0.0:
        supplied += (s.out[p] - w.passed) / rate
    if s.rest[t] > w.ahead:
        s.rest[t] -= w.ahead
        heappush(queue, (max(now + w.ahead, supplied), CHUNK, t))
        return
    s.computed[t] = now + s.rest[t]
    s.supplied[p] = supplied - (w.ahead - s.rest[t])  # the operands asked for now are those of the next task's beginning
    heappush(queue, (s.computed[t], STORE, t))
    start_tasks(w, s, queue, p)


def look(w: Work, s: State, queue: Any, t: int) -> None:
    """A task's role is free: it fetches the task from shared memory, behind all stores that the SM has outstanding."""
    p = w.owner[t]
    catch_up(w, s, p)
    if w.fetch > 0 and s.out[p] > 0.0:
        i = 2 * p + t % 2
        s.fetching[i] = s.out[p]
        s.looker[i] = t
        aim(w, s, p)
    else:
        fetched(w, s, queue, t)


def fetched(w: Work, s: State, queue: Any, t: int) -> None:
    """A role has its task: look for the event as soon as it has happened, which an earlier look would have missed."""
    event = w.waits[t]
    if event < 0:
        s.ready[t] = s.link[NOW]
        start_tasks(w, s, queue, w.owner[t])
    elif s.missing[event] > 0:
        s.blocked[t] = s.first_blocked[event]
        s.first_blocked[event] = t
    else:
        heappush(queue, (max(s.link[NOW], s.happened[event]), POLL, t))


def poll(w: Work, s: State, queue: Any, t: int) -> None:
    """A role reads its event. The load leaves the SM behind the stores that are outstanding."""
    p = w.owner[t]
    catch_up(w, s, p)
    if s.out[p] > 0.0:
        i = 2 * p + t % 2
        s.polling[i] = s.out[p]
        s.looker[i] = t
        aim(w, s, p)
    else:
        polled(w, s, queue, t)


def polled(w: Work, s: State, queue: Any, t: int) -> None:
    """The read has reached the event."""
    s.ready[t] = max(s.link[NOW] + w.trip, s.happened[w.waits[t]] + w.wait)
    start_tasks(w, s, queue, w.owner[t])


def end_task(w: Work, s: State, queue: Any, t: int, at: float) -> None:
    """Note a task's end, which may lie ahead; its role goes on to its next task, and who waited for the event reads it."""
    go_on(w, s, queue, t, at)
    happen(w, s, queue, t, at)


def go_on(w: Work, s: State, queue: Any, t: int, at: float) -> None:
    """A task has ended: its role goes on to its next one."""
    s.ended[t] = at
    if t + w.lag < w.first[w.owner[t] + 1]:
        heappush(queue, (at + w.again, LOOK, t + w.lag))


def happen(w: Work, s: State, queue: Any, t: int, at: float) -> None:
    """A task's signal is out: note when its event is complete, and let those read it who wait for it."""
    event = w.signals[t]
    if event < 0:
        return
    s.happened[event] = max(s.happened[event], at)
    s.missing[event] -= 1
    if s.missing[event] == 0:
        waiting = s.first_blocked[event]
        s.first_blocked[event] = -1
        while waiting >= 0:
            heappush(queue, (s.happened[event], POLL, waiting))
            waiting = s.blocked[waiting]


def store(w: Work, s: State, queue: Any, t: int) -> bool:
    """Issue a task's stores as far as there is room; return whether the rates change."""
    now, p = s.link[NOW], w.owner[t]
    u = w.unit[p]
    if w.free[t] < 0.0:
        if w.signals[t] >= 0:
            heappush(queue, (now, STORED, t))
        else:
            end_task(w, s, queue, t, now)
        return False
    size = w.load[t]
    if size <= 0.0:
        s.stored[t] = now + w.free[t]
        heappush(queue, (s.stored[t], STORED, t))
        return False
    catch_up(w, s, p)
    before, rate = s.out[p], s.rate[u]
    known = 0.0
    if s.pending[2 * p] >= 0.0 or s.pending[2 * p + 1] >= 0.0:
        over = size
    else:
        over = before + size - w.capacity[u]
        if before > _TIE * rate and rate > 0.0:
            # A draining SM learns of its room a credit late; what its bursts differ by blurs the onset (`fluid`).
            hidden, blur = rate * (w.credit - w.free[t]), w.blur * before + 1e-9
            x = (over + hidden) / blur
            if x < -_WIDE:
                over = -hidden
            elif x < _WIDE:
                over = blur * (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) - hidden
            known = now + w.credit + over / rate
    issued = size - max(min(over, size), 0.0)
    changed: bool = before <= 0.0
    if changed:
        s.active[u] += 1
    s.out[p] += issued
    s.link[OUTSTANDING] += issued
    s.grown[u] += size / (s.begin_of[u + 1] - s.begin_of[u])
    if over > 0.0:
        i = 2 * p + t % 2
        if s.pending[2 * p] < 0.0 and s.pending[2 * p + 1] < 0.0:
            s.held[u] += 1
        s.pending[i] = min(over, size)
        s.slot[i] = t
        if s.out[p] <= 0.0:
            s.out[p] = 1e-6
    else:
        s.stored[t] = max(now + w.free[t], known)
        heappush(queue, (s.stored[t], STORED, t))
    aim(w, s, p)
    return changed


def stored(w: Work, s: State, queue: Any, t: int) -> None:
    """A task's stores have been issued: signal, at once or when what the fence waits for has drained."""
    now, p = s.link[NOW], w.owner[t]
    s.left[t] = s.link[OUTSTANDING] + s.link[LEVEL]
    catch_up(w, s, p)
    s.drained[t] = max(now, s.exit[p])
    if s.out[p] > 0.0:
        s.drained[t] = now + s.out[p] / s.rate[w.unit[p]] + s.link[LEVEL] / w.link
    if w.signals[t] < 0 or w.publish == RELAXED:
        end_task(w, s, queue, t, now + (w.signal if w.signals[t] >= 0 else 0.0))
        return
    if w.elsewhere > 0:
        go_on(w, s, queue, t, now)
        happen(w, s, queue, t, max(s.drained[t], everything(w, s)) + w.signal)
    elif s.out[p] > 0.0:
        i = 2 * p + t % 2
        s.due[i] = s.out[p]
        s.slot[i] = t
        s.cleared[i] = everything(w, s)
        aim(w, s, p)
    else:
        end_task(w, s, queue, t, max(s.exit[p], everything(w, s)) + w.signal)


def everything(w: Work, s: State) -> float:
    """When all that all SMs have outstanding has left the link, for a release at system scope; else now."""
    now: float = s.link[NOW]
    if w.publish == SYS:
        now += (s.link[OUTSTANDING] + s.link[LEVEL]) / w.link
    return now


def reached(w: Work, s: State, queue: Any, u: int) -> bool:
    """Handle the SMs of a unit whose target the course has reached; return whether the rates change."""
    changed = False
    now = s.link[NOW]
    for k in range(s.begin_of[u], s.begin_of[u + 1]):
        p = s.members[k]
        if s.target[p] > s.course[u] + _TIE * 1e-3 * s.rate[u]:
            continue
        catch_up(w, s, p)
        slack = 1e-3 * s.rate[u] + 1e-9
        for i in (2 * p, 2 * p + 1):
            t = s.slot[i]
            if s.pending[i] >= 0.0 and s.pending[i] <= slack:
                s.pending[i] = -1.0
                if s.pending[2 * p] < 0.0 and s.pending[2 * p + 1] < 0.0:
                    s.held[u] -= 1
                s.stored[t] = max(s.computed[t] + w.free[t], now + w.credit)
                heappush(queue, (s.stored[t], STORED, t))
            if s.due[i] >= 0.0 and s.due[i] <= slack:
                s.due[i] = -1.0
                end_task(w, s, queue, t, max(now + s.link[LEVEL] / w.link, s.cleared[i]) + w.signal)
            if s.polling[i] >= 0.0 and s.polling[i] <= slack:
                s.polling[i] = -1.0
                polled(w, s, queue, s.looker[i])
            if s.fetching[i] >= 0.0 and s.fetching[i] <= slack:
                s.fetching[i] = -1.0
                fetched(w, s, queue, s.looker[i])
        if s.pending[2 * p] < 0.0 and s.pending[2 * p + 1] < 0.0 and s.out[p] <= slack:
            s.link[OUTSTANDING] = max(s.link[OUTSTANDING] - s.out[p], 0.0)
            s.out[p] = 0.0
            s.exit[p] = now + s.link[LEVEL] / w.link
            s.active[u] -= 1
            if s.active[u] == 0:
                s.grown[u] = 0.0
            changed = True
        aim(w, s, p)
    return changed


def advance(w: Work, s: State, until: float) -> bool:
    """Move to the next event, at most to `until`; return whether it was `until`."""
    dt = until - s.link[NOW]
    by_queue = True
    for u in range(len(s.rate)):
        if s.active[u] > 0 and s.rate[u] > 0.0 and s.soonest[u] < FAR:
            ahead = (s.soonest[u] - s.course[u]) / s.rate[u]
            if ahead < dt:
                dt, by_queue = max(ahead, 0.0), False
    growth = s.link[INFLOW] - w.link
    if growth > 0.0 and s.link[FULL] == 0.0:
        filled = (w.buffer - s.link[LEVEL]) / growth
        if filled < dt:
            dt, by_queue = max(filled, 0.0), False
    if dt >= FAR / 2:
        return True
    for u in range(len(s.rate)):
        if s.active[u] > 0:
            step = s.rate[u] * dt
            s.course[u] += step
            s.link[OUTSTANDING] -= step * (s.active[u] - s.held[u])
    s.link[LEVEL] = min(max(s.link[LEVEL] + growth * dt, 0.0), w.buffer)
    s.link[NOW] += dt
    s.link[STEPS] += 1
    return by_queue


def run(w: Work, s: State) -> None:
    """Execute all tasks; the results stand in `s`.

    Parameters
    ----------
    w : Work
    s : State
        Fresh.
    """
    queue = [(FAR, STORED, 0)]
    for p in range(len(s.next)):
        for t in range(w.first[p], min(w.first[p] + w.lag, w.first[p + 1])):
            heappush(queue, (0.0, LOOK, t))
    while True:
        at, kind, t = queue[0]
        if advance(w, s, at):
            if at >= FAR:
                return
            heappop(queue)
            changed = False
            if kind == STORE:
                changed = store(w, s, queue, t)
            elif kind == STORED:
                stored(w, s, queue, t)
            elif kind == LOOK:
                look(w, s, queue, t)
            elif kind == CHUNK:
                compute_on(w, s, queue, t)
            else:
                poll(w, s, queue, t)
        else:
            changed = False
            for u in range(len(s.rate)):
                if s.active[u] > 0 and s.soonest[u] <= s.course[u] + _TIE * 1e-3 * s.rate[u]:
                    changed = reached(w, s, queue, u) or changed
        full = 1.0 if s.link[LEVEL] >= w.buffer * (1 - 1e-9) else 0.0
        if changed or full != s.link[FULL]:
            s.link[FULL] = full
            share(w, s)


#: What the compiled form compiles, callees first.
COMPILED = (
    *("share", "catch_up", "aim", "start_tasks", "compute_on", "go_on", "happen", "end_task", "everything"),
    *("fetched", "look", "polled", "poll", "store", "stored", "reached", "advance", "run"),
)
