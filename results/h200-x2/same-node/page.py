"""Table of how much the same measurement differs: quick runs of ``isolated`` on one node (``page.py [write] [FOLDER]``).

FOLDER holds ``run0``, ``run1``, ... of the same GPUs, and may hold ``later``, a run on other ones.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, origin, per_cent, table

from xstage_bench.io.json_file import read_json
from xstage_bench.judge.compare import PARAMETERS, Side, compare
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model
from xstage_bench.model.headline import headline_entry
from xstage_bench.model.run_fit import usable_samples
from xstage_bench.record.reader import Run, load_run

PAIRS = ("0>1", "1>0")


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    runs = [load_run(path) for path in sorted(folder.glob("run*"))]
    models = [fitted(run) for run in runs]
    later = fitted(load_run(folder / "later"))
    lines = [(level, value, *[None] * len(PARAMETERS)) for level, value in sentinel_levels(runs).items()]
    lines.append(("standard error of a run", None, *(_both(p, models, within) for p in PARAMETERS)))
    lines.append((f"between {len(runs)} runs on the same GPUs", None, *(_both(p, models, between) for p in PARAMETERS)))
    lines.append(("later, another node", None, *(_both(p, [later, *models], away) for p in PARAMETERS)))
    verdicts = Counter(compare(Side("a", a, None), Side("b", b, None)).verdict for a, b in itertools.combinations(models, 2))
    said = ", ".join(f"{count} say {verdict}" for verdict, count in verdicts.items())
    return {
        "when": origin(read_json(runs[0].folder / "manifest.json", dict[str, Any])),
        "spread": table(("spread", "sentinel's issue time", *(p.name for p in PARAMETERS)), lines),
        "compared": f"Of {verdicts.total()} comparisons of two of these runs by `xstage compare`, {said}.",
    }


def fitted(run: Run) -> Model:
    """Fit one run."""
    return calibrate(usable_samples(run), backend="cuda", gpu="NVIDIA H200", sm_clock_mhz=1980.0)


def sentinel_levels(runs: list[Run]) -> dict[str, str]:
    """Return the relative standard deviations of the sentinel's issue time by level, over runs of the same GPUs."""
    every = [run.samples() for run in runs]
    rows = pd.concat([r[(r["kind"] == "sentinel") & (r["status"] == "ok")].assign(run=i) for i, r in enumerate(every)])
    processes = rows.groupby(["run", "source", "process"])["issue_mean_cycles"]
    medians = processes.median()
    between_processes = medians.groupby(["run", "source"]).agg(lambda v: v.std() / v.mean()).median()
    between_runs = medians.groupby(["run", "source"]).mean().groupby("source").agg(lambda v: v.std() / v.mean()).mean()
    return {
        f"within a process ({len(rows)} executions)": per_cent((processes.std() / processes.mean()).median(), 2),
        "between processes of a run": per_cent(between_processes, 2),
        f"between {len(runs)} runs": per_cent(between_runs, 2),
    }


def within(values: np.ndarray, errors: np.ndarray) -> str:
    """Typical standard error, relative."""
    return per_cent(float(np.sqrt(np.mean((errors / values) ** 2))), 3)


def between(values: np.ndarray, errors: np.ndarray) -> str:
    """Relative standard deviation."""
    return per_cent(float(np.std(values, ddof=1) / np.mean(values)), 3)


def away(values: np.ndarray, errors: np.ndarray) -> str:
    """By how much the first is off the mean of the others."""
    return f"{100 * (values[0] / values[1:].mean() - 1):+.2f} %"


def _both(parameter: Any, models: list[Model], what: Any) -> str:
    cells = []
    for pair in PAIRS:
        found = [parameter.of(e) for m in models if (p := m.find(pair)) is not None and (e := headline_entry(p)) is not None]
        cells.append(what(np.array([f.value for f in found], dtype=float), np.array([f.standard_error for f in found], dtype=float)))
    return ", ".join(cells)


if __name__ == "__main__":
    main(__file__, tables)
