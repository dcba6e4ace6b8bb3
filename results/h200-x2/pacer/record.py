"""Measure the device-side pacer on two GPUs: its answers against stalls, and what its choice between storing and computing saves.

    python results/h200-x2/pacer/page.py record MODEL OUT.npz

Answers: random timed and free schedules; every producer's answer and issue time of every burst. Choice: works and bursts in fixed orders
and in the order that the pacer chooses, and the works alone. All goes to one npz, of which page.py makes summary.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pacing import STEP, Pacing

from xstage_bench.device.cuda.compile import compiled
from xstage_bench.io.identity import plain
from xstage_bench.machine.environment import snapshot
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.stage import Stage, stage_at

WARPS, BURSTS, SCHEDULES, REPETITIONS = 4, 24, 40, 3
LOADS = (0.4, 0.6, 0.8, 0.95, 1.1, 1.4)  # drain time over work time
STEPS = 64
ORDERS = (("none", "fixed", 1), *((f"fixed {n}", "fixed", n) for n in (1, 4, 8, 16)), *((f"paced {n}", "paced", n) for n in (4, 8, 16)))
CHOICE_REPETITIONS = 5
KINDS = (("even 32 KB", 32768, 0.0), ("even 16 KB", 16384, 0.0), ("uneven 32 KB", 32768, 0.6), ("uneven 16 KB", 16384, 0.8))


def steps(work: Any, size: Any, stage: Stage, start_ns: Any = 0) -> np.ndarray:
    """Return steps with these works and bytes per producer, rounded to whole warp-stores."""
    out = np.zeros(len(np.broadcast_arrays(work, size, start_ns)[0]), dtype=STEP)
    out["work"], out["start_ns"] = np.rint(work), np.rint(start_ns)
    out["stores"] = np.maximum(np.rint(np.asarray(size) / stage.step_bytes), 1)
    return out


def answers(pacing: Pacing, model: Any, rng: np.random.Generator, found: dict[str, np.ndarray]) -> None:
    """Random bursts of 2 to 64 KB at 0.3 to 1.5 times the drain rate."""
    for producers in (132, 64):
        stage = stage_at(model, producers, WARPS)
        for rule in ("timed", "fixed"):
            asked, said, took = [], [], []
            for _ in range(SCHEDULES):
                size = np.exp(rng.uniform(np.log(2048), np.log(65536), BURSTS))
                drain = size * producers / stage.bytes_per_cycle
                between = drain.mean() / rng.uniform(0.3, 1.5) * rng.exponential(1.0, BURSTS)
                at_ns = np.concatenate([[0], np.cumsum(between[:-1])]) * 1e3 / stage.sm_clock_mhz
                chosen = steps(between, size, stage, at_ns)
                for _ in range(REPETITIONS):
                    ran = pacing.run(stage, chosen, rule)  # type: ignore[arg-type]
                    asked.append(chosen)
                    said.append(ran.answer)
                    took.append(np.stack([ran.start_cycles, ran.end_cycles]).astype(np.uint32))
            for name, parts in (("steps", asked), ("answer", said), ("cycles", took)):
                found[f"answers {producers} {rule} {name}"] = np.stack(parts)
            print(producers, rule, f"{np.concatenate(said).mean():.2f} of the answers: it would stall", flush=True)


def choice(pacing: Pacing, model: Any, rng: np.random.Generator, found: dict[str, np.ndarray]) -> None:
    """Works and bursts of like total size, in every order, repetitions interleaved."""
    stage = stage_at(model, 132, WARPS)
    probe = steps(np.full(STEPS, 200), np.full(STEPS, 2048), stage)
    probe["stores"] = 0
    probed = [pacing.run(stage, probe, "fixed", 1, "mma") for _ in range(9)]
    per_round = min(p.total_cycles for p in probed) / STEPS / 200
    clocks = {"spin": stage.sm_clock_mhz, "mma": float(np.median([p.sm_clock_mhz for p in probed[4:]]))}
    found["cycles per round of mma"] = np.array(per_round)
    print(f"a round of mma.sync takes {per_round:.1f} cycles at {clocks['mma']:.0f} MHz", flush=True)
    for kind, tile, spread in KINDS:
        for load in LOADS:
            size = tile * np.exp(rng.normal(0, spread, STEPS) - spread**2 / 2)
            effort = np.exp(rng.normal(0, spread, STEPS) - spread**2 / 2) / load
            for how in ("spin", "mma"):
                mine_stage = stage.at_clock(clocks[how])
                work = tile * 132 / mine_stage.bytes_per_cycle * effort
                chosen = steps(work / (per_round if how == "mma" else 1), size, stage)
                total = np.zeros((len(ORDERS), CHOICE_REPETITIONS), dtype=np.int64)
                issue = np.zeros((len(ORDERS), CHOICE_REPETITIONS))
                clock = np.zeros((len(ORDERS), CHOICE_REPETITIONS))
                for repetition in range(CHOICE_REPETITIONS):
                    for i in rng.permutation(len(ORDERS)):
                        name, rule, depth = ORDERS[i]
                        mine = chosen.copy()
                        if name == "none":
                            mine["stores"] = 0
                        ran = pacing.run(mine_stage, mine, rule, depth, how)  # type: ignore[arg-type]
                        total[i, repetition], clock[i, repetition] = ran.total_cycles, ran.sm_clock_mhz
                        issue[i, repetition] = ran.issue_cycles.sum(axis=1).mean()
                for what, values in (("total", total), ("issue", issue), ("clock", clock)):
                    found[f"choice {kind} {load} {how} {what}"] = values
                typical = np.median(total, axis=1)
                print(kind, load, how, *(f"{name} {t / typical[0]:.3f}" for (name, *_), t in zip(ORDERS, typical, strict=True)), flush=True)


def main(model_path: str, out: str) -> None:
    """Measure, and write after each part."""
    model, pacing, rng = find_model(Path(model_path)), Pacing(), np.random.default_rng(20261129)
    about = np.array(json.dumps({"environment": snapshot()}))
    found: dict[str, np.ndarray] = {"orders": np.array([name for name, *_ in ORDERS]), "about": about}
    warm = steps(np.full(STEPS, 30000), np.full(STEPS, 2048), stage_at(model, 132, WARPS))
    pacing.verify(stage_at(model, 132, WARPS), 32)
    for _ in range(20):  # clocks rise from idle
        pacing.run(stage_at(model, 132, WARPS), warm, "fixed")
    found["kernels"] = np.array(json.dumps(plain(compiled())))
    for part in (choice, answers):
        part(pacing, model, rng, found)
        np.savez_compressed(out, **found)
