"""Advise every schedule that the replay judges, and write what to replay beside the originals.

python tools/replay_set.py results/h200-x2/2026-11-29-profile/model.json OUT [SM_CLOCK_MHZ]

The originals are `xstage_bench.workloads.replay_set.replay_schedules()`. OUT gets advised.json, a task schedule file with the advised form
of every schedule that an advice is predicted to help, named as its original with ``-advised`` behind it; and advice.json, what was
predicted of both. Nothing in it was measured.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from xstage_bench.advice import tasks_document
from xstage_bench.model.advise.choose import advise_tasks
from xstage_bench.model.document import load_model
from xstage_bench.record.json_file import write_json
from xstage_bench.task_file import save_tasks
from xstage_bench.workloads.replay_set import ADVISED, replay_schedules

#: A schedule counts as slowed by its stores from here.
SLOWED = 1.15


def main(model: str, out: str, sm_clock_mhz: str | None = None) -> None:
    """Advise and write both files."""
    folder, loaded = Path(out), load_model(Path(model))
    clock = None if sm_clock_mhz is None else float(sm_clock_mhz)
    folder.mkdir(parents=True, exist_ok=True)
    found = [advise_tasks(loaded, s, sm_clock_mhz=clock) for s in replay_schedules()]
    save_tasks(folder / "advised.json", [replace(a.schedule, name=a.present.schedule.name + ADVISED) for a in found if a.helps])
    write_json(folder / "advice.json", {"schema_version": 1, "model": model, "schedules": [tasks_document(a) for a in found]})
    slowed = sum(a.present.total_ns >= SLOWED * a.present.without_stores_ns for a in found)
    span_ms = sum(a.present.total_ns + a.advised.total_ns for a in found) * 1e-6
    print(f"{len(found)} schedules, {slowed} predicted to be slowed {SLOWED:g} times or more, {sum(a.helps for a in found)} advised")
    print(f"one execution of each and of its advised form takes {span_ms:.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
