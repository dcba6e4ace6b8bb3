"""The node model inside model.json: fitted per ordered pair, stored beside the three-parameter law, preferred for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.node.entry import NodeBasis, NodeEntry, calibrate_node, model_of
from xstage_bench.model.node.intervals import in_range, interval
from xstage_bench.model.node.issue import BORROWED
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.model.predict import PredictedSchedule

#: Schedules in the fit of one pair. With many pairs fewer: forty well-spread ones suffice (docs/node-model.md), and 56 fits must not
#: take an hour.
LIMIT, MANY_PAIRS, LIMIT_OF_MANY = 320, 4, 80
_BASIS = tuple(f.name for f in fields(NodeBasis))


def with_nodes(model: Model, samples: pd.DataFrame, producers: pd.DataFrame, smids: dict[int, Sequence[int]], *, seed: int = 0) -> Model:
    """Return the model with the node model of every remote pair and flavour that the samples can fit; others get a note that says why not.

    Parameters
    ----------
    model : Model
    samples, producers : DataFrame
        As in docs/file-format.md. Held-out probes are not looked at.
    smids : dict of int to sequence of int
        All smids of each GPU.
    seed : int
    """
    remote = [p for p in model.pairs if not p.is_local and p.layout == "contiguous"]
    limit = LIMIT if len({p.pair for p in remote}) <= MANY_PAIRS else LIMIT_OF_MANY
    pairs, notes = list(model.pairs), list(model.notes)
    maps: dict[int, Placement] = {}  # the same for every flavour: inferred once
    for pair in remote:
        source, destination = (int(x) for x in pair.pair.split(">"))
        try:
            entry = calibrate_node(
                samples, producers, source, destination, np.asarray(smids[source]), flavour=pair.flavour, placement=maps.get(source),
                limit=limit, seed=seed,
            )  # fmt: skip
        except DataError as error:
            notes.append(f"{pair.pair}{'' if pair.flavour == 'st.v4' else f' {pair.flavour}'}: no node model: {error.message}")
            continue
        if not {*entry.notes} - {BORROWED}:
            maps[source] = entry.placement
        basis = NodeBasis(**{name: getattr(entry, name) for name in _BASIS})
        pairs[pairs.index(pair)] = replace(pair, node=entry.node, node_basis=basis)
    return replace(model, pairs=pairs, notes=notes)


def entry_of(pair: PairModel) -> NodeEntry | None:
    """Return a pair's node model as the node package has it, or None."""
    if pair.node_basis is None:
        return None
    basis = {name: getattr(pair.node_basis, name) for name in _BASIS}
    return NodeEntry(pair=pair.pair, flavour=pair.flavour, node=pair.node, **basis)


def predict_by_node(pair: PairModel, schedules: Sequence[Schedule], sm_clock_mhz: float | None = None) -> list[PredictedSchedule] | None:
    """Predict schedules with a pair's node model; None when it has none, or none with intervals.

    Raises
    ------
    DataError
        A stored parameter is missing or out of its range.
    UsageError
        A schedule asks for SMs that the measured map lacks.
    """
    from xstage_bench.model.predict import STALLED, PredictedSchedule, judged_range, total_ns

    entry = entry_of(pair)
    if entry is None or entry.spread is None:
        return None
    model = model_of(entry)
    found = predict_node(model, schedules, sm_clock_mhz=sm_clock_mhz)
    isolated = np.array([s.start == "isolated" for s in schedules])
    low, high = interval(found, entry.spread, isolated)
    out = []
    for i, s in enumerate(schedules):
        at = slice(int(found.first[i]), int(found.first[i + 1]))
        size = np.array([b.bytes for b in s.bursts], dtype=np.float64)
        seen: NDArray[np.bool_] = in_range(
            entry.spread, model, np.full(size.size, float(s.producer_count)), np.full(size.size, float(s.warps)), size
        )
        inside, notes = judged_range(s, seen)
        notes = notes if model.issue.table is not None else (*notes, BORROWED)
        issue, t0 = found.issue_cycles[at], found.t0_cycles[at]
        out.append(
            PredictedSchedule(
                pair=pair.pair,
                model="node",
                sm_clock_mhz=found.sm_clock_mhz,
                t0_cycles=t0,
                issue_cycles=issue,
                issue_max_cycles=found.issue_max_cycles[at],
                issue_low_cycles=low[at],
                issue_high_cycles=high[at],
                stall_cycles=np.maximum(issue - t0, 0.0),
                backlog_bytes=found.backlog_bytes[at],
                start_ns=found.start_ns[at],
                end_ns=found.start_ns[at] + issue * 1e3 / found.sm_clock_mhz,
                visible_ns=found.visible_ns[at],
                regime=tuple("stalled" if x else "free" for x in issue > STALLED * t0),
                in_calibrated_range=inside,
                total_ns=total_ns(s, found.start_ns[at], found.start_ns[at] + issue * 1e3 / found.sm_clock_mhz),
                notes=notes,
            )
        )
    return out
