"""Write the schedules that judge predictor and advice on hardware: originals, advised forms, and what is predicted of both.

python tools/replay_set.py results/h200-x2/2026-11-29-profile/model.json OUT

OUT gets original.json and advised.json, task schedule files with the same names in the same order (an advised schedule that is the
original itself is in both), and advice.json. Nothing in it was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

from xstage_bench.advice import tasks_document
from xstage_bench.model.advise.choose import advise_tasks
from xstage_bench.model.document import load_model
from xstage_bench.record.json_file import write_json
from xstage_bench.task_file import save_tasks
from xstage_bench.workloads.replay_set import replay_schedules

#: A schedule counts as slowed by its stores from here.
SLOWED = 1.15


def main(model: str, out: str) -> None:
    """Advise every schedule and write the three files."""
    folder, loaded = Path(out), load_model(Path(model))
    folder.mkdir(parents=True, exist_ok=True)
    found = [advise_tasks(loaded, s) for s in replay_schedules()]
    save_tasks(folder / "original.json", [a.present.schedule for a in found])
    save_tasks(folder / "advised.json", [a.schedule for a in found])
    write_json(folder / "advice.json", {"schema_version": 1, "model": model, "schedules": [tasks_document(a) for a in found]})
    slowed = sum(a.present.total_ns >= SLOWED * a.present.without_stores_ns for a in found)
    span_ms = sum(a.present.total_ns + a.advised.total_ns for a in found) * 1e-6
    print(f"{len(found)} schedules, {slowed} predicted to be slowed {SLOWED:g} times or more, {sum(a.helps for a in found)} advised")
    print(f"one execution of each and of its advised form takes {span_ms:.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
