"""Replay on two GPUs, and predict what was replayed: the workloads as they are and as advised, and the skeletons; EP8 emulated.

``page.py advise MODEL RECIPES.json [SM_CLOCK_MHZ]``: what `advise_tasks` makes of each workload, beforehand.
``page.py record workloads FOLDER [RECIPES.json]``: originals and advised ones, in the same rounds.
``page.py record wave|block FOLDER [mma|spin]``: the skeletons.
``page.py predict MODEL FOLDER...``: predictions again, as the model improves; the schedules executed lie beside as schedules.json.gz,
those of the skeletons are made anew. ``page.py costs FOLDER``: the constants of the recorded node, which predictions fall back to.
"""

from __future__ import annotations

import gzip
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from replay_set import replay_schedules
from tables import load

from xstage_bench.device.backend import resolve_backend
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json, read_json, write_json
from xstage_bench.measure.replay_document import DOCUMENT, read_replay, summary_rows, with_predictions, write_summary
from xstage_bench.measure.replay_run import predictor, record_replay
from xstage_bench.measure.tasks import measure_tasks
from xstage_bench.model.advise.choose import advise_tasks
from xstage_bench.model.advise.reorder import Recipe, apply
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.tasks.costs import TaskCosts, costs_of_replay, reference_path
from xstage_bench.schedule.task_files import load_tasks
from xstage_bench.schedule.tasks import TaskSchedule

LEVEL = 0.9
skeletons = load(Path(__file__).with_name("skeletons.py"))
#: Behind the name of an original.
ADVISED = " advised"
#: What the GPUs run at under this load; advice beforehand needs a guess.
USUAL_MHZ = 1755.0


def advise(model: str, recipes: str, sm_clock_mhz: float | str = USUAL_MHZ) -> None:
    """Ask for advice on every workload and keep the recipes, which rebuild the advised schedules."""
    found = []
    with ProcessPoolExecutor() as workers:
        ask = partial(advise_tasks, find_model(Path(model)), sm_clock_mhz=float(sm_clock_mhz))
        for s, advice in zip(replay_schedules(), workers.map(ask, replay_schedules()), strict=True):
            found.append({"schedule": s.name, "recipe": asdict(advice.recipe), "claimed_gain": advice.gain, "reason": advice.reason})
            print(f"{s.name:60s} {advice.gain:.3f} {advice.recipe.words()}", flush=True)
    write_json(Path(recipes), {"schema_version": 1, "sm_clock_mhz": float(sm_clock_mhz), "advice": found})


def with_advised(recipes: Path | None) -> list[TaskSchedule]:
    """Return the originals, and behind them those that a file of recipes changes."""
    originals = replay_schedules()
    if recipes is None:
        return originals
    chosen = {one["schedule"]: Recipe(**one["recipe"]) for one in read_json(recipes, dict[str, Any])["advice"]}
    changed = [(s, apply(chosen[s.name], s)) for s in originals if chosen.get(s.name, Recipe()) != Recipe()]
    return originals + [replace(new, name=s.name + ADVISED) for s, new in changed if new is not None]


def record(which: str, folder: str, more: str | None = None, processes: str = "3", repetitions: str = "5") -> None:
    """Execute the workloads or one of the skeletons' tables and write the folder."""
    out, gpus = Path(folder), resolve_backend("cuda", "gpu")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if which == "workloads":
        schedules = with_advised(Path(more) if more else None)
        counts: dict[str, int] = {"repetitions": int(repetitions), "processes": int(processes)}
        record_replay(gpus, schedules, out, sys.argv, compute="mma", seed=0, say=say, **counts)
        return
    schedules = list(skeletons.wave_schedules() if which == "wave" else skeletons.block_schedules())
    how = "spin" if more == "spin" else "mma"
    document = measure_tasks(gpus, schedules, compute=how, repetitions=int(repetitions), processes=int(processes), say=say)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / DOCUMENT, document)


def predict(model: str, *folders: str) -> None:
    """Predict the rows of every folder, and say how good that was."""
    loaded = find_model(Path(model))
    for folder in map(Path, folders):
        path = folder / "replay.json.gz"
        document = read_replay(path)
        document = with_predictions(document, _schedules(folder), predictor(loaded, document))
        write_bytes(path, gzip.compress(encode_json(document), 9, mtime=0))
        print(f"{folder.name}:", {k: round(v, 4) if isinstance(v, float) else v for k, v in document["prediction"].items()})
    write_summary(Path(folders[0]).parent)


def _schedules(folder: Path) -> list[TaskSchedule]:
    executed = folder / "schedules.json.gz"
    if not executed.exists():
        return list(skeletons.wave_schedules() if "wave" in folder.name else skeletons.block_schedules())
    with TemporaryDirectory() as place:
        path = Path(place) / "schedules.json"
        path.write_bytes(gzip.decompress(executed.read_bytes()))
        return load_tasks(path)


def costs(folder: str) -> None:
    """Write what predictions fall back to from every replay under `folder`, whose rows must have predictions.

    The instrument's constants of each way to compute come from the replay that measured most of them; how far predicted totals are off from
    the skeleton's tables alone, so that the workloads can judge the interval (docs/predict.md).
    """
    documents = {path.parent.name: read_replay(path) for path in sorted(Path(folder).glob("*/replay.json*"))}
    found = []
    for compute in ("mma", "spin"):
        mine = {name: d for name, d in documents.items() if d["compute"] == compute}
        known = costs_of_replay(max(mine.values(), key=lambda d: len(d["instrument"])))
        found.append(replace(known, total_error=_total_error([d for name, d in mine.items() if name.startswith("skeleton")])))
        for name, d in mine.items():
            print(compute, name, f"{_covered(found[-1], d):.3f} of the totals lie in the 90 % interval")
    write_json(reference_path(), found)


def _errors(document: dict[str, Any]) -> list[float]:
    return [row["measured_us"] / row["predicted_us"] - 1 for row in summary_rows(document) if row["predicted_us"] is not None]


def _total_error(documents: list[dict[str, Any]]) -> Estimate:
    off = np.array([x for d in documents for x in _errors(d)])
    low, high = np.quantile(off, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(
        value=float(np.median(off)),
        standard_error=None,
        low=float(low),
        high=float(high),
        level=LEVEL,
        statistic=f"measured over predicted total, less one, of {off.size} replayed schedules",
    )


def _covered(costs: TaskCosts, document: dict[str, Any]) -> float:
    low, high = costs.total_error.low or 0.0, costs.total_error.high or 0.0
    return float(np.mean([low <= x <= high for x in _errors(document)]))
