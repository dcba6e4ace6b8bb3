"""What each parameter and each piece of structure is worth: leave it out, fit again, look at the held-out error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xstage_bench.model.node.calibrate import fit_measured, guess
from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.evaluate import Score, score_node
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement, uniform

#: Value that takes a parameter out of the model.
WITHOUT: dict[str, float] = {
    "sm_bytes_per_cycle": 250.0,
    "unit_capacity_bytes": 0.0,
    "credit_cycles": 0.0,
    "link_buffer_bytes": 0.0,
    "service_spread": 0.0,
}


def ablations(
    data: Measured, heldout: Measured, placement: Placement, full: NodeModel, *, refit: bool = True
) -> Iterator[tuple[str, Score]]:
    """Yield name and held-out score of the full model and of each reduced one.

    Parameters
    ----------
    data, heldout : Measured
        What is fitted, and what is judged.
    placement : Placement
    full : NodeModel
        The fitted full model.
    refit : bool
        Fit the remaining parameters again; else only the one is taken out.
    """
    yield "all", score_node(full, None, heldout)
    for name, value in WITHOUT.items():
        values = full.values()
        values[list(PARAMETERS).index(name)] = value
        first = full.with_values(values)
        model = fit_measured(data, placement, first, fixed=(name,)).model if refit else first
        yield f"without {name}", score_node(model, None, heldout)
    for label, other in (
        ("one unit (no tree)", Placement((placement.smids,))),
        ("units unknown (equal, by order)", uniform(placement.smids)),
    ):
        start = (
            replace(full, placement=other) if label.startswith("units") else replace(guess(data, other), service_spread=full.service_spread)
        )
        model = fit_measured(data, other, start).model if refit else replace(full, placement=other)
        yield label, score_node(model, None, heldout)
