"""Tables and figure of what the choice of storing SMs is worth: a run of the probe ``choice`` (``page.py [write] [FOLDER]``).

The prediction is the node model of the profile beside it, of another machine; nothing is fitted to the choices themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import beside, main, number, origin, per_cent, table

from xstage_bench.io.json_file import read_json
from xstage_bench.measure.probe import Sweep, load_probes
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.run_fit import find_model
from xstage_bench.record.reader import Run, load_run
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Node
from xstage_bench.show.figures import new_figure, style
from xstage_bench.show.style import matplotlib_settings

PROBE, PAIRS = "choice", ((0, 1), (1, 0))
UNIT_BYTES = 4 * 512  # of one warp-store of each of the four warps
NAMED = ("spread", "lowest", "every", "half0", "packed")


def names(node: Node, pair: tuple[int, int], seed: int) -> dict[tuple[int, ...], str]:
    """Name each choice by its smids: the probe, asked for the same pair and seed, gives them again."""
    inside = load_probes()[PROBE].schedules.__globals__
    of_probe = int.from_bytes(PROBE.encode()[:8].ljust(8, b"\0"), "little")
    sweep = Sweep(node, *pair, False, np.random.default_rng([seed, *pair, of_probe]))
    out: dict[tuple[int, ...], str] = {}
    for count in inside["PRODUCERS"]:
        for name, smids in inside["choices"](sweep, count).items():
            out.setdefault(smids, name)
    for name, smids in inside["inside_units"](sweep).items():
        out.setdefault(smids, name)
    return out


def measured(run: Run, pair: tuple[int, int]) -> pd.DataFrame:
    """One row per choice and size: medians over repetitions."""
    rows = run.samples()
    rows = rows[(rows["probe"] == PROBE) & (rows["source"] == pair[0]) & (rows["status"] == "ok") & (rows["kind"] == "measure")]
    rows = rows.assign(smids=[tuple(map(int, s[5:].split(","))) for s in rows["producer_set"]], stores=rows["bytes"] // UNIT_BYTES)
    groups = rows.groupby(["producers", "smids", "stores"])
    found = groups.agg(mean=("issue_mean_cycles", "median"), slowest=("issue_max_cycles", "median"), n=("order", "size")).reset_index()
    known = names(run.manifest.node, pair, run.manifest.seed)
    return found.assign(name=[known.get(s, "?") for s in found["smids"]])


def predicted(folder: Path, pair: tuple[int, int], found: pd.DataFrame) -> pd.DataFrame:
    """Put what the node model of the profile predicts beside it."""
    of_pair = find_model(beside(folder, "profile")).find("{}>{}".format(*pair))
    entry = None if of_pair is None else entry_of(of_pair)
    assert entry is not None
    schedules = [Schedule((Burst(n * UNIT_BYTES),), s, 4, *pair) for n, s in zip(found["stores"], found["smids"], strict=True)]
    told = predict_node(model_of(entry), schedules)
    return found.assign(predicted=told.issue_cycles, predicted_slowest=told.issue_max_cycles)


def both(folder: Path) -> dict[tuple[int, int], pd.DataFrame]:
    """Return what was measured and predicted of each direction."""
    run = load_run(folder)
    return {pair: predicted(folder, pair, measured(run, pair)) for pair in PAIRS}


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    found = both(folder)
    return {
        "when": origin(read_json(folder / "manifest.json", dict[str, Any])),
        "choices": table(("SMs", "KiB per SM", *NAMED, "16 random", "worst over best", "predicted"), choices(found[0, 1], found[1, 0])),
        "errors": errors(found),
        "units": units(found[0, 1], load_run(folder).manifest.node.gpus[0].sm_clock_mhz),
    }


def choices(there: pd.DataFrame, back: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Mean issue time of each choice, 1>0 in brackets."""
    for count in sorted(c for c in there["producers"].unique() if c in (8, 16, 32)):
        for stores in (16, 32, 256):
            cells = []
            rows = [part[(part["producers"] == count) & (part["stores"] == stores)] for part in (there, back)]
            for name in NAMED:
                cells.append("{} ({})".format(*(number(part.loc[part["name"] == name, "mean"].iloc[0]) for part in rows)))
            random = [part.loc[part["name"].str.startswith("random"), "mean"] for part in rows]
            cells.append("{}-{} ({}-{})".format(*(number(f) for r in random for f in (r.min(), r.max()))))
            for column in ("mean", "predicted"):
                cells.append("{:.2f} ({:.2f})".format(*(part[column].max() / part[column].min() for part in rows)))
            yield count, stores * UNIT_BYTES // 1024, *cells


def errors(found: dict[tuple[int, int], pd.DataFrame]) -> str:
    """How far predictions are off over all choices and sizes."""
    lines = []
    for pair, part in found.items():
        off = [(part[f"predicted{end}"] / part[name] - 1).abs() for name, end in (("mean", ""), ("slowest", "_slowest"))]
        cells = [per_cent(e.quantile(q)) for e in off for q in (0.5, 0.95)]
        lines.append(("{}>{}".format(*pair), part["smids"].nunique(), len(part), part["n"].min(), *cells))
    head = ("pair", "choices", "schedules", "repetitions", "mean issue: median error", "p95", "slowest SM: median error", "p95")
    return table(head, lines)


def units(part: pd.DataFrame, clock_mhz: float) -> str:
    """Return what few SMs drain by the slowest, between 128 and 512 KiB: parts of units, and named choices."""
    lines = []
    for (count, _), rows in part.groupby(["producers", "smids"]):
        name, slowest = rows["name"].iloc[0], rows.set_index("stores")["slowest"]
        if count <= 16 and not name.startswith(("random", "other")):
            rate = count * (256 - 64) * UNIT_BYTES / (slowest[256] - slowest[64]) * clock_mhz * 1e-3
            lines.append((count, name, number(rate)))
    return table(("SMs", "choice", "GB/s of the slowest SM times SMs"), lines)


def draw(folder: Path, out: Path) -> None:
    """Mean issue time of each choice over that of the fastest, against the size of the burst."""
    found = both(folder)[0, 1]
    styles = {"spread": ("tab:blue", "o"), "lowest": ("tab:green", "s"), "every": ("0.35", "D"), "packed": ("tab:red", "v")}
    with matplotlib_settings(style()):
        figure = new_figure(7.2, 3.0)
        axes = figure.subplots(1, 3, sharey=True)
        for ax, count in zip(axes, (8, 16, 32), strict=True):
            part = found[(found["producers"] == count) & (found.groupby("smids")["stores"].transform("nunique") == 7)]
            wide = part.pivot_table(index="stores", columns="name", values="mean")
            ratio = wide.div(wide.min(axis=1), axis=0)
            kib = ratio.index.to_numpy() * UNIT_BYTES / 1024
            random = ratio[[c for c in ratio.columns if c.startswith("random")]]
            ax.fill_between(kib, random.min(axis=1), random.max(axis=1), color="0.85", label="16 random choices")
            for name, (colour, marker) in styles.items():
                ax.plot(kib, ratio[name], color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=name)
            told = part.pivot_table(index="stores", columns="name", values="predicted")
            worst = told["packed"] / told.min(axis=1)
            ax.plot(kib, worst, color="tab:red", linewidth=1.0, linestyle="--", label="packed, predicted")
            ax.set_xscale("log", base=2)
            ax.set_xticks(kib, [f"{k:.0f}" for k in kib])
            ax.set(xlabel="burst per SM (KiB)", title=f"{count} SMs")
        axes[0].set_ylabel("mean issue / fastest choice's")
        axes[0].legend(loc="upper left", fontsize=6.5)
        figure.savefig(out / "choice.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main(__file__, tables, draw)
