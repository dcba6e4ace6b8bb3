"""What each constant that stays in the node model is worth: ``python tests/claims/constants.py RUN [PAIR]``, a refit without each of them.

Prints, for the run's held-out schedules, the error per burst and of the time line with the constants as they are, and with each one put out
of effect. They are not fitted: what one of them is worth is how much worse the model gets without it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np

from xstage_bench.model.node import predict
from xstage_bench.model.node.data import measured
from xstage_bench.model.node.entry import calibrate_node, model_of
from xstage_bench.record.reader import load_run

#: Name in `predict`, what it does, and the value that puts it out of effect.
CONSTANTS = (
    ("BLUR", "share of the service spread by which a draining unit's room is blurred", 1e-6),
    ("EVENS_OUT_BYTES", "burst size from which unequal service evens out", 1e12),
)


def errors(run: Path, pair: str) -> list[float]:
    """Return median, p90 and p95 per burst, and median and p95 of the time line, as fractions; fitted anew."""
    found = load_run(run)
    samples, producers = found.samples(), found.producers()
    source, destination = (int(x) for x in pair.split(">"))
    smids = np.asarray(next(g.smids for g in found.manifest.node.gpus if g.index == source))
    model = model_of(calibrate_node(samples, producers, source, destination, smids))
    held = measured(samples, source, destination, ("holdout",))
    predicted = predict.predict_node(model, held.schedules, sm_clock_mhz=held.sm_clock_mhz)
    size = np.array([b.bytes for s in held.schedules for b in s.bursts])
    keep = (size > 0) & np.isfinite(held.issue_cycles)
    burst = np.abs(predicted.issue_cycles / held.issue_cycles - 1)[keep]
    line = np.abs(predicted.total_ns(held.isolated) / held.total_ns - 1)
    line = line[np.isfinite(line)]
    return [float(np.quantile(burst, q)) for q in (0.5, 0.9, 0.95)] + [float(np.quantile(line, q)) for q in (0.5, 0.95)]


def main(run: Path, pair: str) -> None:
    """Print a row for the model as it is, and one without each constant."""
    print(f"{run}, {pair}\n\n| without | median | p90 | p95 | time line median | p95 |\n|---|---|---|---|---|---|")
    for name, meaning, without in (("nothing", "", None), *CONSTANTS):
        if without is None:
            found = errors(run, pair)
        else:
            with patch.object(predict, name, without):
                found = errors(run, pair)
        print("| " + " | ".join([f"{name}: {meaning}" if meaning else name, *(f"{100 * e:.1f} %" for e in found)]) + " |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "0>1")
