"""What a fit aims at: which schedules, how much of each, with what weight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.node.compiled import can_compile
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import Schedule

LIMIT = 320  # schedules in a fit: more change no parameter by more than its interval, and take longer
SHARES = {"isolated": 0.5, "periodic": 0.25, "timed": 0.25}
RUN, SCORE = 12, 9  # bursts of a schedule that a fit predicts and compares: what follows repeats, and the last ones need their successors


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The measured side of a fit; arrays have one entry per compared burst.

    Parameters
    ----------
    schedules : tuple of Schedule
        Cut to their first `RUN` bursts.
    at : ndarray of int
        Where each compared burst is in the prediction.
    log_issue, weight : ndarray
    owner : ndarray of int
        Its schedule.
    process_shift : ndarray, shape (processes, compared bursts)
        Weighted deviation of each process from the mean of all.
    sm_clock_mhz : float
    """

    schedules: tuple[Schedule, ...]
    at: IntArray
    log_issue: FloatArray
    weight: FloatArray
    owner: IntArray
    process_shift: FloatArray
    sm_clock_mhz: float


def choose(data: MeasuredSchedules, limit: int, seed: int) -> MeasuredSchedules:
    """Return at most `limit` schedules: a random part of each probe by `SHARES`; what one probe lacks the others fill."""
    if len(data.keys) <= limit:
        return data
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.keys))
    probe = np.array(data.probes)
    taken: list[int] = []
    for name, share in SHARES.items():
        taken += order[probe[order] == name][: int(share * limit)].tolist()
    rest = order[~np.isin(order, taken)]
    return data.take(np.sort(np.array(taken + rest[: limit - len(taken)].tolist(), dtype=np.int64)))


def targets(data: MeasuredSchedules) -> Targets:
    """Prepare schedules for a fit; bursts that were not measured or store nothing are left out."""
    schedules = tuple(replace(s, bursts=s.bursts[:RUN]) if s.start != "isolated" and len(s.bursts) > RUN else s for s in data.schedules)
    lengths = np.array([len(s.bursts) for s in schedules])
    first = np.cumsum(lengths) - lengths
    owner, burst = data.owner, data.burst
    size = np.array([b.bytes for s in data.schedules for b in s.bursts])
    limit = np.where(data.isolated, lengths, np.where(np.diff(data.first) > RUN, SCORE, lengths))
    keep = (burst < limit[owner]) & (size > 0) & np.isfinite(data.issue_cycles) & (data.issue_cycles > 0)
    scored = np.bincount(owner[keep], minlength=len(schedules))
    weight = 1 / np.sqrt(np.maximum(scored, 1))[owner[keep]]
    logs = np.log(data.by_process[:, keep])
    usable = np.isfinite(logs)
    mean = np.where(usable, logs, 0.0).sum(axis=0) / np.maximum(usable.sum(axis=0), 1)
    return Targets(
        schedules=schedules,
        at=(first[owner] + burst)[keep],
        log_issue=np.log(data.issue_cycles[keep]),
        weight=weight,
        owner=owner[keep],
        process_shift=np.where(usable, logs - mean, 0.0) * weight,
        sm_clock_mhz=data.sm_clock_mhz,
    )


def residuals(model: NodeModel, goal: Targets) -> FloatArray:
    """Return weighted log(predicted / measured)."""
    found = predict_node(model, goal.schedules, sm_clock_mhz=goal.sm_clock_mhz, compiled=can_compile())
    predicted = found.issue_cycles[goal.at]
    return np.asarray((np.log(predicted) - goal.log_issue) * goal.weight)
