"""What each parameter of the node model and each piece of its structure is worth: leave it out, fit again, look at the held-out error.

``python tests/claims/node_ablation.py RUN MODEL [PAIR]`` prints the table of docs/node-model.md; a minute or two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from node_scores import NodeScore, score_node

from xstage_bench.errors import DataError
from xstage_bench.model.node.calibrate import fit_measured, guess
from xstage_bench.model.node.data import MeasuredSchedules, measured
from xstage_bench.model.node.entry import CALIBRATION_PROBES, LIMIT, model_of
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement, uniform
from xstage_bench.model.node.targets import choose
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.run_fit import find_model
from xstage_bench.record.reader import load_run

#: Value that takes a parameter out of the model.
WITHOUT: dict[str, float] = {
    "sm_bytes_per_cycle": 250.0,
    "unit_capacity_bytes": 0.0,
    "credit_cycles": 0.0,
    "link_buffer_bytes": 0.0,
    "service_spread": 0.0,
}
HEADS = ("left out", "median", "p90", "p95", "time line median", "p95", "stall or not")


def main(run: str, model: str, pair: str = "0>1") -> None:
    """Print a line for each reduced model."""
    source, destination = (int(gpu) for gpu in pair.split(">"))
    samples = load_run(Path(run)).samples()
    data, heldout = (measured(samples, source, destination, probes) for probes in (CALIBRATION_PROBES, ("holdout",)))
    fitted = next(p for p in find_model(Path(model)).pairs if (p.pair, p.flavour, p.layout) == (pair, "st.v4", "contiguous"))
    entry = entry_of(fitted)
    if entry is None:
        raise DataError(f"the model has no node model of pair {pair}", "xstage fit")
    full = model_of(entry)
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    for name, score in ablations(choose(data, LIMIT, 0), heldout, full):
        errors = (score.median_error, score.p90_error, score.p95_error, score.total_median_error, score.total_p95_error)
        cells = [f"{100 * error:.1f} %" for error in (*errors, score.balanced_accuracy or 0.0)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def ablations(data: MeasuredSchedules, heldout: MeasuredSchedules, full: NodeModel) -> Iterator[tuple[str, NodeScore]]:
    """Yield what was left out of the fitted full model, and the held-out score of what remains, fitted again."""
    yield "nothing", score_node(full, None, heldout)
    for name, value in WITHOUT.items():
        values = full.values()
        values[list(PARAMETERS).index(name)] = value
        yield name, score_node(fit_measured(data, full.placement, full.with_values(values), fixed=(name,)).model, None, heldout)
    equal, one = uniform(full.placement.smids), Placement((full.placement.smids,))
    yield "the map (equal units, dealt by smid)", score_node(fit_measured(data, equal, replace(full, placement=equal)).model, None, heldout)
    start = replace(guess(data, one), service_spread=full.service_spread)
    yield "the tree (one unit)", score_node(fit_measured(data, one, start).model, None, heldout)


if __name__ == "__main__":
    main(*sys.argv[1:])
