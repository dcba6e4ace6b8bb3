"""What the replay itself costs: small schedules that show one cost each, and the Estimates that come out of their traces.

A prediction needs these numbers, since a fused kernel pays them too: what it takes to hand the tensor cores from one role to the other, to
begin a task, to signal, and until a signal is seen elsewhere. They are measured in the same run as the schedules judged by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from xstage_bench.model.estimate import Estimate
from xstage_bench.task_schedule import NONE, Form, Publish, TaskSchedule, TaskTrace

_CYCLES = 6000
_SIZES = (16, 64)  # warp-stores per warp of the two lengths that give a store's cost


def probes(source: int, destination: int, producers: int, warps: int = 4) -> dict[str, TaskSchedule]:
    """Return the schedules by name.

    Parameters
    ----------
    source, destination : int
    producers : int
        SMs of the source.
    warps : int
        Of each role.
    """

    def tasks(k: int, per: int, form: Form, **columns: NDArray[np.int64]) -> TaskSchedule:
        size = k * per
        none, zero = np.full(size, NONE), np.zeros(size, dtype=np.int64)
        whole: dict[str, Any] = {"bytes": zero, "remote_bytes": zero, "waits_for": none, "signals": none} | columns
        whole = {"compute_cycles": np.full(size, _CYCLES)} | whole
        return TaskSchedule(k, np.repeat(np.arange(k), per), **whole, warps=warps, form=form, source=source, destination=destination)

    found = {f"turn.{form}": tasks(producers, 64, form) for form in get_args(Form)}
    each = tasks(producers, 24, "ping_pong", signals=np.arange(24 * producers) % 24)
    found |= {f"signal.{publish}": replace(each, publish=publish) for publish in get_args(Publish)}
    hops = 128  # two producers in turn: number i waits for i - 1
    order = np.concatenate((np.arange(0, hops, 2), np.arange(1, hops, 2)))
    chain = tasks(2, hops // 2, "single", waits_for=order - 1, signals=order)
    found |= {f"event.{publish}": replace(chain, publish=publish) for publish in get_args(Publish)}
    size = np.resize(_SIZES, 32) * warps * 512
    found["store"] = tasks(1, 32, "ping_pong", bytes=size, remote_bytes=size, compute_cycles=np.full(32, 4 * _CYCLES))
    return found


def constants(traces: dict[str, Sequence[TaskTrace]]) -> dict[str, Estimate]:
    """Reduce the traces of `probes`, several repetitions of each, to one Estimate per cost.

    Returns
    -------
    dict
        ``turn_cycles.FORM``: from the end of a task's compute to the start of the producer's next one, when that has nothing to wait for.
        ``compute_excess_cycles.FORM``: compute measured minus asked.
        ``signal_cycles.PUBLISH``: from the end of compute to the end of the signal with nothing outstanding.
        ``event_cycles.PUBLISH``: from the end of the last signal to the start of a task of another SM that waits for it.
        ``store_cycles_per_warp_store``, ``store_entry_cycles``: of one warp, nothing in the way: n stores take entry + n * cost.
    """
    found: dict[str, list[float]] = {}
    for name, repetitions in traces.items():
        kind, _, what = name.partition(".")
        for trace in repetitions:
            if trace.status == "ok":
                for key, value in _READ[kind](trace).items():
                    found.setdefault(f"{key}.{what}" if what else key, []).append(value)
    return {key: _estimate(values) for key, values in found.items()}


def _turn(trace: TaskTrace) -> dict[str, float]:
    s = trace.schedule
    same = s.producer[1:] == s.producer[:-1]
    excess = _compute(trace) - s.compute_cycles
    return {
        "turn_cycles": float(np.mean(_cycles(trace, trace.start_ns[1:] - trace.compute_end_ns[:-1])[same])),
        "compute_excess_cycles": float(np.mean(excess)),
    }


def _signal(trace: TaskTrace) -> dict[str, float]:
    return {"signal_cycles": float(np.mean(_cycles(trace, trace.signal_end_ns - trace.compute_end_ns)))}


def _event(trace: TaskTrace) -> dict[str, float]:
    s = trace.schedule
    signalled = np.zeros(s.event_count)
    signalled[s.signals] = trace.signal_end_ns
    waits = s.waits_for >= 0
    return {"event_cycles": float(np.mean(_cycles(trace, trace.start_ns[waits] - signalled[s.waits_for[waits]])))}


def _store(trace: TaskTrace) -> dict[str, float]:
    s = trace.schedule
    took = _cycles(trace, trace.store_end_ns - trace.compute_end_ns)
    stores = s.bytes // (s.warps * s.warp_store_bytes)
    few, many = (float(np.median(took[stores == n][1:])) for n in _SIZES)
    per = (many - few) / (_SIZES[1] - _SIZES[0])
    return {"store_cycles_per_warp_store": per, "store_entry_cycles": few - _SIZES[0] * per}


_READ = {"turn": _turn, "signal": _signal, "event": _event, "store": _store}


def _cycles(trace: TaskTrace, ns: NDArray[np.float64]) -> NDArray[np.float64]:
    return ns * trace.sm_clock_mhz / 1e3


def _compute(trace: TaskTrace) -> NDArray[np.float64]:
    return _cycles(trace, trace.compute_end_ns - trace.start_ns)


def _estimate(values: list[float], level: float = 0.95) -> Estimate:
    """Mean over repetitions, with a t interval."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 3:
        return Estimate.missing(f"{n} repetitions, at least 3 are needed", "mean over repetitions of the mean over tasks")
    error = float(np.std(values, ddof=1)) / n**0.5
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * error
    statistic = "mean over repetitions of the mean over tasks"
    return Estimate(value=mean, standard_error=error, low=mean - half, high=mean + half, level=level, statistic=statistic)
