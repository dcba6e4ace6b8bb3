"""Replay the workloads' schedules, as they are and as advised: EP8/SP8 emulated on two GPUs (docs/replay.md).

``python tools/replay_workloads.py advise MODEL RECIPES.json [SM_CLOCK_MHZ]``: what `advise_tasks` makes of each, beforehand.
``python tools/replay_workloads.py measure FOLDER [RECIPES.json]``: originals and advised ones, in the same rounds, on two GPUs.
``python tools/replay_workloads.py show REPLAY.json``: gains claimed against gains measured.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from xstage_bench.device.backend import resolve_backend
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.measure.replay_document import read_replay
from xstage_bench.measure.replay_run import record_replay
from xstage_bench.model.advise.choose import advise_tasks
from xstage_bench.model.advise.reorder import Reordering, apply
from xstage_bench.model.run_fit import find_model
from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.workloads.replay_set import replay_schedules

#: Behind the name of an original.
ADVISED = " advised"
#: What the GPUs run at under this load; advice beforehand needs a guess.
USUAL_MHZ = 1755.0


def advise(model: str, recipes: str, sm_clock_mhz: float | str = USUAL_MHZ) -> None:
    """Ask for advice on every schedule and keep the recipes, which rebuild the advised schedules."""
    loaded, found = find_model(Path(model)), []
    for s in replay_schedules():
        advice = advise_tasks(loaded, s, sm_clock_mhz=float(sm_clock_mhz))
        found.append({"schedule": s.name, "recipe": asdict(advice.recipe), "claimed_gain": advice.gain, "reason": advice.reason})
        print(f"{s.name:60s} {advice.gain:.3f} {advice.recipe.words()}", flush=True)
    write_json(Path(recipes), {"schema_version": 1, "sm_clock_mhz": float(sm_clock_mhz), "advice": found})


def with_advised(recipes: Path | None) -> list[TaskSchedule]:
    """Return the originals, and behind them those that a file of recipes changes."""
    originals = replay_schedules()
    if recipes is None:
        return originals
    chosen = {one["schedule"]: Reordering(**one["recipe"]) for one in read_json(recipes, dict[str, Any])["advice"]}
    changed = [(s, apply(chosen[s.name], s)) for s in originals if chosen.get(s.name, Reordering()) != Reordering()]
    return originals + [replace(new, name=s.name + ADVISED) for s, new in changed if new is not None]


def measure(folder: str, recipes: str | None = None, processes: str = "3", repetitions: str = "5") -> None:
    """Execute with tensor-core work and write the folder."""
    record_replay(
        resolve_backend("cuda", "gpu"), with_advised(Path(recipes) if recipes else None), Path(folder), sys.argv, compute="mma",
        repetitions=int(repetitions), processes=int(processes), seed=0, say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    show(str(Path(folder) / "replay.json"))


def show(path: str) -> None:
    """Print one line per schedule, and with advised ones how their gains compare."""
    rows = {row["schedule"]: row for row in read_replay(Path(path))["rows"]}
    errors, slower = [], 0
    print("| schedule | total, us | without stores | slowdown | advised, us | gain measured | claimed |\n|" + "---|" * 7)
    for name, row in rows.items():
        if name.endswith(ADVISED):
            continue
        total, bare, ratio = (row[k]["value"] for k in ("total_us", "no_store_us", "slowdown"))
        cells, after = [f"{total:.1f}", f"{bare:.1f}", f"{ratio:.3f}"], rows.get(name + ADVISED)
        if after is not None:
            gain = total / after["total_us"]["value"]
            slower += gain < 0.99
            cells += [f"{after['total_us']['value']:.1f}", f"{gain:.3f}"]
            if row.get("predicted_us") and after.get("predicted_us"):
                claimed = row["predicted_us"] / after["predicted_us"]
                errors.append(abs(claimed - gain))
                cells.append(f"{claimed:.3f}")
        print(f"| {name} | " + " | ".join(cells + [""] * (6 - len(cells))) + " |")
    print(
        f"\nslower than the original by over 1 %: {slower}"
        + (f"; gain off by {100 * np.median(errors):.1f} points, median" if errors else "")
    )


if __name__ == "__main__":
    {"advise": advise, "measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
