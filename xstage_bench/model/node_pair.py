"""The node model inside model.json: fitted per ordered pair, stored beside the three-parameter law, preferred for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.cells import asked_rows, groups
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.node.entry import NodeBasis, NodeEntry, calibrate_node, model_of
from xstage_bench.model.node.intervals import in_range, interval
from xstage_bench.model.node.issue import BORROWED
from xstage_bench.model.node.packed import RULES, pack
from xstage_bench.model.node.placement import Placement
from xstage_bench.model.node.predict import predict_packed
from xstage_bench.model.prediction import PredictedSchedule, cut
from xstage_bench.schedule.bursts import Schedule

if TYPE_CHECKING:
    import pandas as pd

#: Schedules in the fit of one pair. With many pairs fewer: forty well-spread ones suffice (docs/node-model.md), and 56 fits must not
#: take an hour.
LIMIT, MANY_PAIRS, LIMIT_OF_MANY = 320, 4, 80
_BASIS = tuple(f.name for f in fields(NodeBasis))


#: What was found for a pair and flavour: its node model, or why there is none.
Found = dict[tuple[str, str], NodeEntry | str]


def node_models(
    samples: pd.DataFrame,
    producers: pd.DataFrame,
    smids: dict[int, Sequence[int]],
    pairs: Sequence[tuple[str, str]],
    *,
    limit: int,
    seed: int = 0,
) -> Found:
    """Fit the node models of pairs, one after the other.

    Parameters
    ----------
    samples, producers : DataFrame
        As in docs/files.md. Held-out probes are not looked at.
    smids : dict of int to sequence of int
        All smids of each GPU.
    pairs : sequence of (pair, flavour)
        `pairs_of` what was measured.
    limit : int
        Schedules in each fit, `limit_of` all pairs.
    seed : int
    """
    maps: dict[int, Placement] = {}  # the same for every flavour: inferred once
    out: Found = {}
    for pair, flavour in pairs:
        source, destination = (int(x) for x in pair.split(">"))
        try:
            entry = calibrate_node(
                samples, producers, source, destination, np.asarray(smids[source]), flavour=flavour, placement=maps.get(source),
                limit=limit, seed=seed,
            )  # fmt: skip
        except DataError as error:
            out[pair, flavour] = error.message
            continue
        if not {*entry.notes} - {BORROWED}:
            maps[source] = entry.placement
        out[pair, flavour] = entry
    return out


def pairs_of(samples: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs and flavours that may have a node model: to a peer or to host memory, contiguous."""
    measured = (g for g in groups(asked_rows(samples)) if g.source != g.destination and g.layout == "contiguous")
    return [(g.pair, g.flavour) for g in measured]


def limit_of(pairs: Sequence[tuple[str, str]]) -> int:
    """Return how many schedules enter each fit."""
    return LIMIT if len({pair for pair, _ in pairs}) <= MANY_PAIRS else LIMIT_OF_MANY


def with_nodes(model: Model, found: Found) -> Model:
    """Return the model with the node models that were found; a pair without one gets a note that says why."""
    pairs, notes = list(model.pairs), list(model.notes)
    for i, pair in enumerate(pairs):
        entry = found.get((pair.pair, pair.flavour)) if pair.layout == "contiguous" else None
        if isinstance(entry, str):
            notes.append(f"{pair.pair}{'' if pair.flavour == 'st.v4' else f' {pair.flavour}'}: no node model: {entry}")
        elif entry is not None:
            basis = NodeBasis(**{name: getattr(entry, name) for name in _BASIS})
            pairs[i] = replace(pair, node=entry.node, node_basis=basis)
    return replace(model, pairs=pairs, notes=notes)


def entry_of(pair: PairModel) -> NodeEntry | None:
    """Return a pair's node model as the node package has it, or None."""
    if pair.node_basis is None:
        return None
    basis = {name: getattr(pair.node_basis, name) for name in _BASIS}
    return NodeEntry(pair=pair.pair, flavour=pair.flavour, node=pair.node, **basis)


def predict_by_node(
    pair: PairModel,
    schedules: Sequence[Schedule],
    sm_clock_mhz: float | None = None,
    notes: Sequence[tuple[str, ...]] | None = None,
    compiled: bool | None = None,
) -> list[PredictedSchedule] | None:
    """Predict schedules with a pair's node model; None when it has none, or none with intervals. `notes`: more on each schedule.

    Raises
    ------
    DataError
        A stored parameter is missing or out of its range.
    UsageError
        A schedule asks for SMs that the measured map lacks.
    """
    entry = entry_of(pair)
    if entry is None or entry.spread is None:
        return None
    model = model_of(entry)
    packed = pack(schedules)
    found = predict_packed(model, packed, sm_clock_mhz=sm_clock_mhz, compiled=compiled)
    low, high = interval(found, entry.spread, packed.rule == RULES["isolated"])
    producers = np.array([float(s.producer_count) for s in schedules])
    if model.issue.table is None:
        notes = [(BORROWED, *said) for said in notes] if notes else [(BORROWED,)] * len(schedules)
    return cut(
        schedules,
        found.first,
        {
            "t0_cycles": found.t0_cycles,
            "issue_cycles": found.issue_cycles,
            "issue_max_cycles": found.issue_max_cycles,
            "issue_low_cycles": low,
            "issue_high_cycles": high,
            "stall_cycles": found.stall_cycles,
            "backlog_bytes": found.backlog_bytes,
            "start_ns": found.start_ns,
            "end_ns": found.start_ns + found.issue_cycles * 1e3 / found.sm_clock_mhz,
            "visible_ns": found.visible_ns,
        },
        in_range(entry.spread, model, producers[packed.owner], packed.warps[packed.owner], packed.bytes),
        notes,
        pair=pair.pair,
        model="node",
        sm_clock_mhz=found.sm_clock_mhz,
        holdout=pair.holdout_status,
    )
