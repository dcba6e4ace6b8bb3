"""Tables of the device-side pacer: its answers on a recorded run and inside a kernel, and what its order saves.

``page.py [write] [FOLDER]`` shows summary.json. ``page.py record MODEL OUT.npz`` measures on two GPUs (record.py), and ``page.py summary
RUN OUT.npz FOLDER`` makes summary.json of that and of the held-out schedules of a profile with all of its producers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pacing import STEP
from tables import load, main, number, origin, per_cent, table

from xstage_bench.io.identity import Kernel, merged, plain
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.model.document import Model
from xstage_bench.model.laws import balanced_accuracy
from xstage_bench.model.pacer import answers
from xstage_bench.model.predict import predict_all
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.stage import Stage, stage_at
from xstage_bench.model.validate import STALLED_ABOVE
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.schedule.bursts import Burst, Schedule

Bools = NDArray[np.bool_]
#: Sizes of which every recording has bursts that met no backlog, and how many of the fastest of a size count as such.
FREE_STORES, FASTEST = 8, 0.02


def score(measured: Bools, said: Bools) -> dict[str, Any]:
    """Return how often the answers are right; a burst of one producer counts once."""
    return {
        "bursts": int(measured.size),
        "stalled": float(measured.mean()),
        "right_of_stalled": float(said[measured].mean()),
        "right_of_free": float((~said[~measured]).mean()),
        "balanced_accuracy": balanced_accuracy(measured, said),
    }


def recorded(where: Path, model: Model) -> list[dict[str, Any]]:
    """Replay the recorded start and end of every producer of the held-out schedules into a pacer."""
    run = load_run(where)
    samples, producers = run.samples(), run.producers()
    schedules = schedules_of(samples[samples["probe"] == "holdout"])
    free = dict(zip(schedules, (p.t0_cycles for p in predict_all(model, list(schedules.values()))), strict=True))
    found: dict[tuple[str, bool], list[tuple[Bools, Bools]]] = {}
    for (key, _, _), rows in producers[producers["schedule"].isin(list(schedules))].groupby(["schedule", "source", "process"]):
        s = schedules[key]
        issue, start = (rows.pivot(index="burst", columns="producer", values=n).to_numpy(np.float64) for n in ("issue_cycles", "start_ns"))
        start = start * (model.sm_clock_mhz / 1e3)
        stage = stage_at(model, s.producer_count, s.warps, pair=f"{s.source}>{s.destination}")
        measured = (issue > STALLED_ABOVE * free[key][:, None]).ravel()
        for settle in (False, True):
            said = answers(stage, [b.bytes for b in s.bursts], start, start + issue, settle=settle, isolated=s.start == "isolated")
            for start_rule in (s.start, "all"):
                found.setdefault((start_rule, settle), []).append((measured, said.ravel()))
    rows_out = []
    for (start_rule, settle), parts in sorted(found.items()):
        measured, said = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        rows_out.append({"start": start_rule, "settle": settle, **score(measured, said)})
    return rows_out


def on_device(model: Model, found: Any) -> list[dict[str, Any]]:
    """Score the answers that the kernel recorded, and those of a pacer that is given each burst's measured start and end."""
    rows = []
    for producers in (132, 64):
        for rule in ("timed", "fixed"):
            steps, said, cycles = (found[f"answers {producers} {rule} {name}"] for name in ("steps", "answer", "cycles"))
            stage = stage_at(model, producers, 4)
            schedules = [_schedule(one, producers, stage.step_bytes) for one in steps]
            free = np.array([p.t0_cycles for p in predict_all(model, schedules)])
            issue = cycles[:, 1].astype(np.int64) - cycles[:, 0]
            own = overhead_cycles(issue, free, steps["stores"])
            measured = (issue - own > STALLED_ABOVE * free[:, None, :]).ravel()
            again = [_from_stamps(stage, s, c) for s, c in zip(schedules, cycles.astype(np.float64), strict=True)]
            for who, answer in (("kernel", said), ("from stamps", np.stack(again))):
                rows.append({"producers": producers, "start": rule, "asked": who, "own_cycles": own, **score(measured, answer.ravel())})
    return rows


def overhead_cycles(issue: NDArray[np.int64], free: NDArray[np.float64], stores: NDArray[Any]) -> float:
    """Return what this kernel's stamps take beside T0: of bursts of each size up to `FREE_STORES` the fastest, the median over sizes."""
    sizes = [n for n in np.unique(stores) if n <= FREE_STORES]
    each = np.broadcast_to(stores[:, None, :], issue.shape)
    return float(np.median([np.quantile(issue[each == n], FASTEST) - free[stores == n].mean() for n in sizes]))


def _from_stamps(stage: Stage, schedule: Schedule, cycles: NDArray[np.float64]) -> Bools:
    return answers(stage, [b.bytes for b in schedule.bursts], cycles[0].T, cycles[1].T).T


def _schedule(steps: NDArray[Any], producers: int, step_bytes: int) -> Schedule:
    assert steps.dtype == STEP
    bursts = tuple(Burst(int(s["stores"]) * step_bytes, 0, int(s["start_ns"])) for s in steps)
    return Schedule(bursts, producers, 4, start="timed")


def choices(found: Any) -> list[dict[str, Any]]:
    """Return total times over the works alone, by order; medians over repetitions."""
    rows = []
    orders = [str(name) for name in found["orders"]]
    for name in found.files:
        if not (name.startswith("choice ") and name.endswith(" total")):
            continue
        *kind, load, work = name.split()[1:-1]
        total, clock = found[name], found[name.replace(" total", " clock")]
        typical = np.median(total, axis=1)
        rows.append(
            {
                "bursts": " ".join(kind),
                "load": float(load),
                "work": work,
                "repetitions": int(total.shape[1]),
                "none_cycles": float(typical[orders.index("none")]),
                "sm_clock_mhz": float(np.median(clock)),
                **{order: float(t / typical[orders.index("none")]) for order, t in zip(orders, typical, strict=True)},
            }
        )
    return rows


RECORDED = ("start rule", "note only", "note and settle", "of stalled bursts", "of free ones")
DEVICE = ("SMs", "start", "bursts", "stalled", "asked in the kernel", "from its stamps")


def summary(run: str, npz: str, folder: str) -> None:
    """Write summary.json."""
    model, loaded, found = find_model(Path(run)), load_run(run), np.load(npz)
    about = json.loads(str(found["about"])) if "about" in found else {}
    kernels = merged(loaded.manifest.kernels, [Kernel(**k) for k in json.loads(str(found["kernels"]))] if "kernels" in found else [])
    document = {"schema_version": 1, "model": run, **about, "kernels": plain(kernels), "recorded": recorded(Path(run), model)}
    write_json(Path(folder) / "summary.json", {**document, "device": on_device(model, found), "choice": choices(found)})


def tables(folder: Path) -> dict[str, str]:
    """Return every table of summary.json."""
    document = read_json(folder / "summary.json", dict[str, Any])
    about = folder / "about.json"
    return {
        "when": origin(document, read_json(about, dict[str, Any]) if about.exists() else None),
        "recorded": table(RECORDED, shown_recorded(document["recorded"])),
        "device": table(DEVICE, shown_device(document["device"])),
        "choice": shown_choice(document["choice"]),
    }


def shown_recorded(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the balanced accuracy by start rule; shares of stalled and of free bursts are with settle."""
    by = {(r["start"], r["settle"]): r for r in rows}
    for start in sorted({r["start"] for r in rows}, key=lambda name: (name == "all", name)):
        plainly, settled = (by[start, settle] for settle in (False, True))
        right = (settled[name] for name in ("balanced_accuracy", "right_of_stalled", "right_of_free"))
        yield start, per_cent(plainly["balanced_accuracy"]), *map(per_cent, right)


def shown_device(rows: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield what was asked inside the kernel, and what the present version says to the same stamps."""
    by = {(r["producers"], r["start"], r["asked"]): r for r in rows}
    for producers, start in dict.fromkeys(key[:2] for key in by):
        kernel, again = (by[producers, start, who] for who in ("kernel", "from stamps"))
        said = (per_cent(kernel["stalled"], 0), *(per_cent(r["balanced_accuracy"]) for r in (kernel, again)))
        yield producers, "timed" if start == "timed" else "after random work", number(kernel["bursts"]), *said


def shown_choice(rows: list[dict[str, Any]]) -> str:
    """Total time over that of the works alone: fixed and paced orders of each depth, timed spinning."""
    depths = sorted(int(name.split()[1]) for name in rows[0] if name.startswith("paced "))
    lines = []
    for r in (r for r in rows if r["work"] == "spin" and r["load"] in (0.6, 0.95, 1.4)):
        cells = (f"{r[f'fixed {n}']:.3f} / {r[f'paced {n}']:.3f}" for n in depths)
        lines.append((r["bursts"].removeprefix("even "), r["load"], number(r["fixed 1"], 3), *cells))
    return table(("bursts", "load", "each after its work", *(f"fixed {n} / paced {n}" for n in depths)), lines)


def record(model: str, out: str) -> None:
    """Measure."""
    load(Path(__file__).with_name("record.py")).main(model, out)


if __name__ == "__main__":
    main(__file__, tables, record=record, summary=summary)
