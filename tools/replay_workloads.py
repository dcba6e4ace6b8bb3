"""Replay the workloads' schedules, and what `advise` makes of each: ``python tools/replay_workloads.py FOLDER [ADVISED.json]``.

Originals come from `xstage_bench.workloads.replay_set`; the advised ones, if given, from a task schedule file, each under its original's
name with ``advised`` behind it. Both are executed in the same rounds. EP8/SP8 are emulated on two GPUs (docs/replay.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

from xstage_bench.device.backend import resolve_backend
from xstage_bench.task_file import load_tasks
from xstage_bench.task_replay import record_replay
from xstage_bench.workloads.replay_set import replay_schedules


def main(folder: str, advised: str | None = None, processes: str = "3", repetitions: str = "5") -> None:
    """Measure with tensor-core work and print one line per schedule."""
    schedules = replay_schedules() + (load_tasks(advised) if advised and advised != "-" else [])
    document = record_replay(
        resolve_backend("cuda", "gpu"), schedules, Path(folder), sys.argv, compute="mma", repetitions=int(repetitions),
        processes=int(processes), seed=0, say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    for row in document["rows"]:
        values = [row[name].value or float("nan") for name in ("total_us", "no_store_us", "slowdown", "sm_clock_mhz")]
        print(
            f"{row['schedule']:60s} " + " ".join(f"{v:9.3f}" for v in values),
            {k: v for k, v in row["left_out"].items() if k != "warmup"} or "",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
