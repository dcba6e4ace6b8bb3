"""How much does the same measurement differ: within a process, between processes, between runs, between GPUs? The table of docs/compare.md.

    python tools/variance_table.py

Two kinds of number: the sentinel (all SMs, 4 warps, 128 KB each), which every recorded run repeats, and T0, R and Q as `xstage compare`
takes them, fitted to the ten runs of results/h200-x2/2026-11-29-same-node and to the profile of other GPUs.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from xstage_bench.compare import PARAMETERS, Side, compare
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model
from xstage_bench.pipeline import find_model, usable_samples
from xstage_bench.record.reader import Run, load_run

RESULTS = Path(__file__).resolve().parent.parent / "results" / "h200-x2"
SAME = RESULTS / "2026-11-29-same-node"
OTHERS = ("fences", "flavours", "link-sleep", "placement", "profile")
#: A quick run of two and a half hours later, past midnight, on other GPUs.
NEXT_DAY = RESULTS / "next-day" / "2026-11-30-quick"


def sentinel(run: Run) -> pd.DataFrame:
    """Return the valid sentinel rows of a run."""
    rows = run.samples()
    return rows[(rows["kind"] == "sentinel") & (rows["status"] == "ok")]


def _of(parameter: Any, model: Model, pair: str) -> float:
    found = model.find(pair)
    entry = None if found is None else parameter.at(found)
    return np.nan if entry is None else parameter.of(entry).value or np.nan


def spread(values: np.ndarray) -> float:
    """Relative standard deviation."""
    return float(np.std(values, ddof=1) / np.mean(values))


def sentinel_levels(runs: list[Run]) -> dict[str, str]:
    """Return the relative standard deviations of the sentinel's issue time by level, over runs of the same GPUs."""
    rows = pd.concat([sentinel(run).assign(run=i) for i, run in enumerate(runs)])
    processes = rows.groupby(["run", "source", "process"])["issue_mean_cycles"]
    within = (processes.std() / processes.mean()).median()
    medians = processes.median()
    between = medians.groupby(["run", "source"]).agg(lambda v: v.std() / v.mean()).median()
    whole = medians.groupby(["run", "source"]).mean().groupby("source").agg(lambda v: v.std() / v.mean()).mean()
    return {
        f"within a process ({len(rows)} executions)": f"{within:.3%}",
        f"between processes of a run ({len(medians)})": f"{between:.3%}",
        f"between runs, same GPUs ({len(runs)} runs)": f"{whole:.3%}",
    }


def fitted(run: Run) -> Model:
    """Fit one of the ten runs."""
    return calibrate(usable_samples(run), backend="cuda", gpu="NVIDIA H200", sm_clock_mhz=1980.0)


def main() -> int:
    """Print the table."""
    runs = [load_run(p) for p in sorted(SAME.glob("run*"))]
    print("sentinel, relative standard deviations")
    for level, value in sentinel_levels(runs).items():
        print(f"  {level}: {value}")
    others = [load_run(RESULTS / f"2026-11-29-{name}") for name in OTHERS]
    medians = [sentinel(r).groupby("source")["issue_mean_cycles"].median().mean() for r in [*others, runs[0]]]
    gpus = {g.uuid for r in [*others, runs[0]] for g in r.manifest.node.gpus}
    print(f"  between nodes ({len(medians)} nodes, {len(gpus)} GPUs, one day): {spread(np.array(medians)):.3%}", np.round(medians, 0))
    models = [fitted(run) for run in runs]
    profile, later = find_model(RESULTS / "2026-11-29-profile"), load_run(NEXT_DAY)
    tomorrow = fitted(later)
    print(f"  2.5 hours later, other GPUs: {sentinel(later).groupby('source')['issue_mean_cycles'].median().mean():.0f}")
    print("fitted parameters, pair 0>1 / 1>0")
    for p in PARAMETERS:
        line = []
        for pair in ("0>1", "1>0"):
            entries = [p.at(found) for m in models if (found := m.find(pair)) is not None]
            values = np.array([p.of(e).value for e in entries if e is not None], dtype=float)
            errors = np.array([p.of(e).standard_error for e in entries if e is not None], dtype=float) / values
            other = _of(p, profile, pair)
            next_day = _of(p, tomorrow, pair) / values.mean() - 1
            line.append(
                f"standard error within a run {np.sqrt(np.mean(errors**2)):.3%}, between {len(values)} runs {spread(values):.3%}, "
                f"other GPUs and full sweep {other / values.mean() - 1:+.2%}, 2.5 hours later {next_day:+.3%}"
            )
        print(f"  {p.name}: {' / '.join(line)}")
    verdicts = [compare(Side("a", a, None), Side("b", b, None)).verdict for a, b in itertools.combinations(models, 2)]
    print(f"A/A of {len(models)} runs: {len(verdicts)} comparisons, {dict(pd.Series(verdicts).value_counts())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
