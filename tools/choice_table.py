"""Print the tables of docs/placement.md and draw its figure: what the choice of storing SMs is worth, predicted and measured.

python tools/choice_table.py results/h200-x2/2026-11-29-placement results/h200-x2/2026-11-29-profile docs/images

The prediction is the node model fitted to the second run, on another node; nothing is fitted to the choices themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from xstage_bench.measure.probe import Sweep, load_probes
from xstage_bench.model.node.entry import calibrate_node, model_of
from xstage_bench.model.node.predict import predict_node
from xstage_bench.record.reader import Run, load_run
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Node
from xstage_bench.show.figures import new_figure, style
from xstage_bench.show.style import matplotlib_settings

PROBE = "choice"
UNIT_BYTES = 4 * 512  # of one warp-store of each of the four warps


def names(node: Node, pair: tuple[int, int]) -> dict[tuple[int, ...], str]:
    """Name each choice by its smids: the probe, asked for the same pair and seed, gives them again."""
    inside = load_probes()[PROBE].schedules.__globals__
    seed = int.from_bytes(PROBE.encode()[:8].ljust(8, b"\0"), "little")
    sweep = Sweep(node, *pair, False, np.random.default_rng([0, *pair, seed]))
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
    table = groups.agg(mean=("issue_mean_cycles", "median"), slowest=("issue_max_cycles", "median"), n=("order", "size")).reset_index()
    known = names(run.manifest.node, pair)
    return table.assign(name=[known.get(s, "?") for s in table["smids"]])


def main(choice: str, profile: str, images: str) -> None:
    """Print one table per pair, the sustained rates of parts of units, and draw the figure."""
    run, fitted_on = load_run(choice), load_run(profile)
    clock_mhz = run.manifest.node.gpus[0].sm_clock_mhz
    tables = {}
    for pair in ((0, 1), (1, 0)):
        table = measured(run, pair)
        smids = np.array(fitted_on.manifest.node.gpus[pair[0]].smids)
        model = model_of(calibrate_node(fitted_on.samples(), fitted_on.producers(), *pair, smids))
        schedules = [Schedule((Burst(n * UNIT_BYTES),), s, 4, *pair) for n, s in zip(table["stores"], table["smids"], strict=True)]
        predicted = predict_node(model, schedules)
        tables[pair] = table.assign(predicted=predicted.issue_cycles, predicted_slowest=predicted.issue_max_cycles)
        show(tables[pair], pair, clock_mhz)
    draw(tables[0, 1], Path(images))


def show(table: pd.DataFrame, pair: tuple[int, int], clock_mhz: float) -> None:
    """Print the tables of one pair."""
    errors = (table["predicted"] / table["mean"] - 1).abs(), (table["predicted_slowest"] / table["slowest"] - 1).abs()
    print(
        f"\n### {pair[0]}>{pair[1]}: {table['smids'].nunique()} choices, {len(table)} schedules, at least {table['n'].min()} repetitions\n"
    )
    quantiles = [f"{100 * e.quantile(q):.1f} %" for e in errors for q in (0.5, 0.95)]
    print(f"Error of the prediction: mean issue {quantiles[0]} median, {quantiles[1]} p95; slowest SM {quantiles[2]}, {quantiles[3]}.\n")
    print("| K | KiB per SM | choice | mean issue, cycles | predicted | slowest SM | predicted |")
    print("|---|---|---|---|---|---|---|")
    for count in (8, 16, 32):
        for stores in (16, 32, 256):
            rows = table[(table["producers"] == count) & (table["stores"] == stores)]
            random = rows[rows["name"].str.startswith("random")]
            chosen = [rows[rows["name"] == n].iloc[0] for n in ("spread", "lowest", "every", "half0", "packed")]
            chosen += [random.loc[random["mean"].idxmin()], random.loc[random["mean"].idxmax()]]
            labels = ["spread", "lowest", "every", "one half", "packed", "fastest of 16 random", "slowest of 16 random"]
            for name, r in zip(labels, chosen, strict=True):
                numbers = " | ".join(f"{r[c]:.0f}" for c in ("mean", "predicted", "slowest", "predicted_slowest"))
                print(f"| {count} | {stores * UNIT_BYTES // 1024} | {name} | {numbers} |")
    print("\n| SMs | choice | GB/s of the slowest SM times K, between 128 and 512 KiB |\n|---|---|---|")
    for (count, _), rows in table.groupby(["producers", "smids"]):
        slowest = rows.set_index("stores")["slowest"]
        if count > 36 or rows["name"].iloc[0].startswith(("random", "other")):
            continue
        rate = count * (256 - 64) * UNIT_BYTES / (slowest[256] - slowest[64]) * clock_mhz * 1e-3
        print(f"| {count} | {rows['name'].iloc[0]} | {rate:.0f} |")


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Mean issue time of each choice over that of the fastest, against the size of the burst."""
    styles = {"spread": ("tab:blue", "o"), "lowest": ("tab:green", "s"), "every": ("0.35", "D"), "packed": ("tab:red", "v")}
    with matplotlib_settings(style()):
        figure = new_figure(7.2, 3.0)
        axes = figure.subplots(1, 3, sharey=True)
        for ax, count in zip(axes, (8, 16, 32), strict=True):
            part = table[(table["producers"] == count) & (table.groupby("smids")["stores"].transform("nunique") == 7)]
            wide = part.pivot_table(index="stores", columns="name", values="mean")
            ratio = wide.div(wide.min(axis=1), axis=0)
            kib = ratio.index.to_numpy() * UNIT_BYTES / 1024
            random = ratio[[c for c in ratio.columns if c.startswith("random")]]
            ax.fill_between(kib, random.min(axis=1), random.max(axis=1), color="0.85", label="16 random choices")
            for name, (colour, marker) in styles.items():
                ax.plot(kib, ratio[name], color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=name)
            predicted = part.pivot_table(index="stores", columns="name", values="predicted")
            worst = predicted["packed"] / predicted.min(axis=1)
            ax.plot(kib, worst, color="tab:red", linewidth=1.0, linestyle="--", label="packed, predicted")
            ax.set_xscale("log", base=2)
            ax.set_xticks(kib, [f"{k:.0f}" for k in kib])
            ax.set(xlabel="burst per SM (KiB)", title=f"{count} SMs")
        axes[0].set_ylabel("mean issue / fastest choice's")
        axes[0].legend(loc="upper left", fontsize=6.5)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "choice.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
