"""What the SMs have outstanding: it drains as a fluid, at rates that are constant between events, so the state at every event is exact.

All active SMs of a unit drain alike; the unit's *course* is how much each of its active SMs has drained since the start. What happens next
to an SM is then a course to be reached, and an event costs a pass over the units, not over the SMs.

Like `loop`, it runs as it is, on lists, and compiled by numba, on arrays.
"""

from __future__ import annotations

import math

from xstage_bench.model.tasks.state import FAR, FULL, INFLOW, LEVEL, NOW, OUTSTANDING, STEPS, SYS, State, Work


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


def everything(w: Work, s: State) -> float:
    """When all that all SMs have outstanding has left the link, for a release at system scope; else now."""
    now: float = s.link[NOW]
    if w.publish == SYS:
        now += (s.link[OUTSTANDING] + s.link[LEVEL]) / w.link
    return now


#: What the compiled form compiles, callees first.
COMPILED = ("share", "catch_up", "aim", "advance", "everything")
