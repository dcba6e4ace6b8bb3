"""What the replay itself costs: small schedules that show one cost each, and the Estimates that come out of their traces.

A prediction needs these numbers, since a fused kernel pays them too: what it takes to hand the tensor cores from one role to the other, to
begin a task, to signal, and until a signal is seen elsewhere. They are measured in the same run as the schedules judged by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.estimate import Estimate, over_processes
from xstage_bench.schedule.tasks import NONE, Form, Publish, TaskSchedule, TaskTrace

_CYCLES = 6000
_STORES = (1, 2, 4, 8, 16, 64)  # warp-stores per warp of a lone SM's tasks
_LONG = 64  # of tasks that saturate the link


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
    step = np.arange(24 * producers) % 24  # everybody waits for everybody: the boundary of a wave
    wide = tasks(producers, 24, "ping_pong", waits_for=step - 1, signals=step)
    found |= {f"event_of_all.{publish}": replace(wide, publish=publish) for publish in get_args(Publish)}
    size = np.resize(_STORES, 6 * len(_STORES)) * warps * 512
    found["store"] = tasks(1, size.size, "ping_pong", bytes=size, remote_bytes=size, compute_cycles=np.full(size.size, 4 * _CYCLES))
    long = np.full(8 * producers, _LONG * warps * 512)
    one = tasks(producers, 8, "single", bytes=long, remote_bytes=long, compute_cycles=0 * long)
    return found | {"drain.one_way": one, "drain.both_ways": replace(one, both_ways=True)}


def constants(found: Mapping[str, Sequence[tuple[int, TaskTrace]]]) -> dict[str, Estimate]:
    """Reduce the traces of `probes` to one Estimate per cost.

    Parameters
    ----------
    found : mapping of str to sequence of (int, TaskTrace)
        By the probe's name: each repetition with the fresh process that it was measured in.

    Returns
    -------
    dict
        ``turn_cycles.FORM``: from the end of a task's compute to the start of the producer's next one, when that has nothing to wait for.
        ``compute_excess_cycles.FORM``: compute measured minus asked.
        ``signal_cycles.PUBLISH``: from the end of compute to the end of the signal with nothing outstanding.
        ``event_cycles.PUBLISH``: from the end of the last signal to the start of a task of another SM that waits for it.
        ``event_of_all_cycles.PUBLISH``: the same where all SMs signal and all wait.
        ``store_cycles.N``: issue of N warp-stores per warp by one SM alone.
        ``drain_gb_per_s.one_way``, ``drain_gb_per_s.both_ways``: all bytes over the time until a fence of every producer has returned.
    """
    values: dict[str, list[tuple[int, float]]] = {}
    for name, repetitions in found.items():
        kind, _, what = name.partition(".")
        for process, trace in repetitions:
            if trace.status == "ok":
                for key, value in _READ[kind](trace).items():
                    values.setdefault(f"{key}.{what}" if what else key, []).append((process, value))
    statistic = "mean over tasks, or median where sizes differ"
    return {k: over_processes(np.array([x for _, x in v]), np.array([p for p, _ in v]), statistic) for k, v in values.items()}


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


def _event(trace: TaskTrace, name: str = "event_cycles") -> dict[str, float]:
    s = trace.schedule
    signalled = np.full(s.event_count, -np.inf)
    np.maximum.at(signalled, s.signals, trace.signal_end_ns)
    waits = s.waits_for >= 0
    return {name: float(np.mean(_cycles(trace, trace.start_ns[waits] - signalled[s.waits_for[waits]])))}


def _event_of_all(trace: TaskTrace) -> dict[str, float]:
    return _event(trace, "event_of_all_cycles")


def _store(trace: TaskTrace) -> dict[str, float]:
    s = trace.schedule
    took = _cycles(trace, trace.store_end_ns - trace.compute_end_ns)
    stores = s.bytes // (s.warps * s.warp_store_bytes)
    return {f"store_cycles.{n}": float(np.median(took[stores == n][1:])) for n in _STORES}


def _drain(trace: TaskTrace) -> dict[str, float]:
    return {"drain_gb_per_s": trace.schedule.volume_bytes / trace.visible_ns}


_READ = {"turn": _turn, "signal": _signal, "event": _event, "event_of_all": _event_of_all, "store": _store, "drain": _drain}


def _cycles(trace: TaskTrace, ns: NDArray[np.float64]) -> NDArray[np.float64]:
    return ns * trace.sm_clock_mhz / 1e3


def _compute(trace: TaskTrace) -> NDArray[np.float64]:
    return _cycles(trace, trace.compute_end_ns - trace.start_ns)
