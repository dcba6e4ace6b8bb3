"""Replay the skeletons of the MoE suite's cases on two GPUs and put their gains beside the kernel's (docs/moe.md); EP8 emulated.

``python tools/moe_skeletons.py measure FOLDER [TOKENS [COMBINES [COMPUTE]]]``: all shapes, types and routings; 2048 bf16,f32 mma.
``python tools/moe_skeletons.py show REPLAY.json``: gain and slowdown by stores of each.
``python tools/moe_skeletons.py attach MOE.json REPLAY.json...``: fill in each row's skeleton_gain; the first replay that has it counts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from skeleton_tables import execute

from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.kernels.moe.skeleton import LEADS, skeleton_schedules, with_skeletons
from xstage_bench.kernels.moe.suite import suite_cases
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.measure.replay_document import DOCUMENT, read_replay


def measure(
    folder: str, tokens: str = "2048", combines: str = "bf16,f32", compute: str = "mma", processes: str = "1", repetitions: str = "5"
) -> None:
    """Execute and write the document; the schedules are made anew from their names."""
    schedules = list(skeleton_schedules(suite_cases(tokens=[int(n) for n in tokens.split(",")]), combines.split(",")))
    print(f"{len(schedules)} schedules, {max(s.task_count for s in schedules)} tasks at most", file=sys.stderr, flush=True)
    execute(schedules, compute, folder, processes, repetitions)
    show(str(Path(folder) / DOCUMENT))


def show(path: str) -> None:
    """Print one line per case."""
    rows: dict[str, dict[str, Any]] = {}
    for row in read_replay(Path(path))["rows"]:
        head, _, end = row["schedule"].rpartition("-")
        rows.setdefault(head, {})[end] = row
    print("| case | waves, us | over no stores | " + " | ".join(f"lead {lead:g}, us | over no stores | gain" for lead in LEADS) + " |")
    print("|---" * (3 + 3 * len(LEADS)) + "|")
    gains = []
    for head, found in rows.items():
        wave = found["wave"]
        cells = [f"{wave['total_us']['value']:.1f}", f"{wave['slowdown']['value']:.3f}"]
        ratios = []
        for lead in LEADS:
            one = found[f"lead{lead:g}"]
            ratios.append(wave["total_us"]["value"] / one["total_us"]["value"])
            cells += [f"{one['total_us']['value']:.1f}", f"{one['slowdown']['value']:.3f}", f"{ratios[-1]:.3f}"]
        gains.append(max(ratios))
        print(f"| {head} | " + " | ".join(cells) + " |")
    print(f"\n{len(gains)} cases, better lead: geomean {geometric_mean(gains):.3f}, {min(gains):.3f} to {max(gains):.3f}")


def attach(path: str, *replays: str) -> None:
    """Fill in the suite's document, and print how much of its skeleton's gain each row reaches."""
    document = with_skeletons(read_json(Path(path), dict[str, Any]), [read_replay(Path(one)) for one in replays])
    write_json(Path(path), document)
    for row in summarise(document)["rows"]:
        key = "|".join(str(row[k]) for k in ("shape", "dtype", "routing", "tokens_per_rank", "combine"))
        skeleton = row["skeleton_gain"]
        print(f"{key:45s} kernel {row['gain']:.3f}" + (f", skeleton {skeleton:.3f}" if skeleton else f": {row['skeleton_reason']}"))


if __name__ == "__main__":
    {"measure": measure, "show": show, "attach": attach}[sys.argv[1]](*sys.argv[2:])
