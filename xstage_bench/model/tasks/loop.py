"""The event loop: each SM executes its own list of tasks, and what the SMs have outstanding shares the link as in the node model (`drain`).

The same source runs twice: as it is, on lists, and compiled by numba, on arrays (`compiled`). It uses only what both know.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any

from xstage_bench.model.tasks.drain import advance, aim, catch_up, everything, share
from xstage_bench.model.tasks.state import CHUNK, FAR, FULL, LEVEL, LOOK, NOW, OUTSTANDING, POLL, RELAXED, STORE, STORED, State, Work

_TIE = 0.25  # cycles: a queue that empties within this is idle
_WIDE = 34.0  # logaddexp(0, x) is x above this, and 0 below its negative, to double precision


def start_tasks(w: Work, s: State, queue: Any, p: int) -> None:
    """Start the SM's next tasks as far as it is known when their roles are ready: their starts may lie ahead."""
    while s.next[p] < w.first[p + 1]:
        t = s.next[p]
        at = s.ready[t]
        if math.isnan(at) or (t > w.first[p] and math.isnan(s.computed[t - 1])) or math.isnan(s.supplied[p]):
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
    """Compute as far as operands have been asked for, and ask for those behind: of this task, or of the beginning of the next one."""
    now, p = s.link[NOW], w.owner[t]
    s.asked[p] = now
    if s.rest[t] <= w.ahead:
        s.computed[t] = now + s.rest[t]
        s.supplied[p] = math.nan
        heappush(queue, (s.computed[t], STORE, t))
    s.hungry[p] = t
    if s.issuing[2 * p + 1 - t % 2] < 0:  # the other role's: its own task stores nothing yet
        supply(w, s, queue, p)


def supply(w: Work, s: State, queue: Any, p: int) -> None:
    """The SM has taken all stores that lay before its operands, which come when most of those have drained."""
    t = s.hungry[p]
    s.hungry[p] = -1
    catch_up(w, s, p)
    # Where nothing is stored they come in time, or the compute time that was given has that in it already.
    supplied = s.link[NOW] + min(w.reach, w.ahead)
    rate = s.rate[w.unit[p]]
    if s.out[p] > w.passed and rate > 0.0:
        supplied += (s.out[p] - w.passed) / rate
    if math.isnan(s.computed[t]):
        s.rest[t] -= w.ahead
        heappush(queue, (max(s.asked[p] + w.ahead, supplied), CHUNK, t))
        return
    s.supplied[p] = supplied - (w.ahead - s.rest[t])
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
    s.issuing[2 * p + t % 2] = t
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
    if s.issuing[2 * p + t % 2] == t:
        s.issuing[2 * p + t % 2] = -1
        if s.hungry[p] >= 0 and s.hungry[p] % 2 != t % 2:
            supply(w, s, queue, p)
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


#: What the compiled form compiles after what it takes from `drain`, callees first.
COMPILED = (
    *("start_tasks", "supply", "compute_on", "go_on", "happen", "end_task", "fetched", "look", "polled", "poll"),
    *("store", "stored", "reached", "run"),
)
