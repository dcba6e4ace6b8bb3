"""Calibrate the simulator's H200 preset on recorded data and print its error table.

    python tests/claims/calibrate_simulator.py                          # error table of the preset as it stands
    python tests/claims/calibrate_simulator.py --fit port link groups   # refit, in this order, and print the values to put into presets.py

Reads the thinned copy in results/reference/h200-clean/ (``--data`` names another file of the same columns, such as the full recording).
Every stage is deterministic: seeded, and bounded by a number of evaluations, not by time. Stages:

port    Costs of the issue port, on isolated bursts of at most 8 SMs, where nothing behind the port is shared (Nelder-Mead).
groups  Which pair of SMs hangs on which arbiter: simulated annealing over the labels of 66 pairs, on the mean, 10th, 50th and 90th
        percentile and maximum over producers of isolated bursts, which SMs were recorded as fast, and the mean of some timed bursts.
        It starts from the preset's own tree; ``--restart`` starts from random labels.
link    Link rate, capacities, buffer, latencies (Nelder-Mead), on the mean over producers of isolated and timed bursts.
local   Rates, capacity and credit of stores to the GPU's own memory (Nelder-Mead), on isolated local bursts.
drift   How far warps of one SM drift apart in timed schedules (Nelder-Mead), on timed bursts of several warps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from xstage_bench.device.sim.core import Conditions, run
from xstage_bench.device.sim.presets import PRESETS, Groups, Preset
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.bursts import Burst, Schedule

KEYS = ["mode", "target", "sms", "warps", "stores", "gap_cycles", "period_ns"]
#: Recorded beside the data, all 132 SMs storing 256 warp-stores from each of 4 warps: cycles of smids 32-43 and 78-87, and of the others.
FAST_PAIRS, FAST_CYCLES, OTHER_CYCLES = [*range(16, 22), *range(39, 44)], (220e3, 290e3), (335e3, 365e3)
STATISTICS = ["issue_mean", "issue_p10", "issue_p50", "issue_p90", "issue_max"]
Array = NDArray[np.float64]


def schedule_of(mode: str, target: str, sms: int, warps: int, stores: int, gap: int, period: int, bursts: int) -> Schedule:
    """Return the schedule that one configuration of the recording stands for."""
    size, destination = int(stores) * int(warps) * 512, 0 if target == "local" else 1
    if mode == "isolated":
        return Schedule((Burst(size),), int(sms), int(warps), 0, destination)
    if mode == "periodic":
        return Schedule(tuple(Burst(size, gap_cycles=int(gap)) for _ in range(bursts)), int(sms), int(warps), 0, destination, "free")
    return Schedule(tuple(Burst(size, start_ns=int(period) * i) for i in range(bursts)), int(sms), int(warps), 0, destination, "timed")


def predict(preset: Preset, rows: pd.DataFrame) -> Array:
    """Return the statistics over producers that the noiseless model gives for recorded rows.

    Returns
    -------
    ndarray, shape (rows, 5)
        The columns of `STATISTICS`.
    """
    out = np.full((len(rows), 5), np.nan)
    position = pd.Series(np.arange(len(rows)), index=rows.index)
    for target, part in rows.groupby("target"):
        grouped = part.groupby(KEYS, sort=False)
        schedules = [schedule_of(*cast("tuple[str, str, int, int, int, int, int]", key), int(g["burst"].max()) + 1) for key, g in grouped]
        courses = []
        for i in range(0, len(schedules), 512):
            courses += run(preset, schedules[i : i + 512], Conditions())
        assert target in ("remote", "local")
        for (_, g), course in zip(grouped, courses, strict=True):
            issue = course.issue()[g["burst"].to_numpy()]
            out[position[g.index], 0] = issue.mean(axis=1)
            out[position[g.index], 1:] = np.percentile(issue, [10, 50, 90, 100], axis=1).T
    return out


def deviation(preset: Preset, rows: pd.DataFrame) -> Array:
    """Return log(predicted / recorded) of the mean over producers."""
    return np.asarray(np.log(predict(preset, rows)[:, 0] / rows["issue_mean"].to_numpy()))


def _robust(error: Array) -> float:
    size = np.minimum(np.abs(error), 0.7)
    return float(size.mean() + 0.5 * np.sqrt((size**2).mean()))


def transients(data: pd.DataFrame, counts: Sequence[int], stores: Sequence[int], ranks: Sequence[int], warps: int = 1) -> pd.DataFrame:
    """Return timed rows by their periods' ranks."""
    timed = data[(data["mode"] == "timed") & (data["warps"] == warps) & data["sms"].isin(counts) & data["stores"].isin(stores)]
    rank = timed.groupby(["sms", "stores"])["period_ns"].rank(method="dense").astype(int) - 1
    return timed[rank.isin(ranks)]


def stages(data: pd.DataFrame) -> dict[str, tuple[list[str], list[pd.DataFrame]]]:
    """Return what each stage fits, of the port or of the preset, and the rows that it is fitted to."""
    isolated = data[data["mode"] == "isolated"]
    remote = isolated[isolated["target"] == "remote"]
    local = isolated[(isolated["target"] == "local") & isolated["sms"].isin([1, 64, 96, 132])]
    port = isolated[isolated["sms"].isin([1, 8]) & (isolated["stores"] <= 128)]
    link = [remote[(remote["sms"] >= 12) & remote["warps"].isin([1, 4, 16])]]
    link += [transients(data, [16, 32, 64, 132], [16, 32, 64], [0, 3, 5, 7, 8])]
    drift = transients(data, [8, 16, 32, 64, 132], [8, 16, 32, 64], [0, 3, 5, 7, 8], warps=4)
    return {
        "port": (["port_cycles", "warp_stagger", "buffer_stores", "buffer_cycles", "latency", "latency_per_warp", "credit"], [port]),
        "link": (["link_gb_per_s", "capacity_alone_bytes", "capacity_both_bytes", "link_buffer_bytes", "sm_bytes_per_cycle"], link),
        "local": (["local_sm_bytes_per_cycle", "local_group_bytes_per_cycle", "local_capacity_bytes", "local_credit"], [local]),
        "drift": (["warp_drift", "warp_drift_most"], [drift]),
    }


def descend(preset: Preset, names: list[str], rows: list[pd.DataFrame], evaluations: int) -> Preset:
    """Fit the named numbers together, by factors."""
    of_port = [name for name in names if hasattr(preset.port, name)]
    start = np.array([getattr(preset.port if name in of_port else preset, name) for name in names], dtype=float)

    def with_factors(x: Array) -> Preset:
        values = dict(zip(names, start * np.exp(np.asarray(x)), strict=True))
        port = replace(preset.port, **{name: values.pop(name) for name in of_port})
        return replace(preset, port=port, **cast("dict[str, Any]", values))

    def cost(x: Array) -> float:
        return sum(_robust(deviation(with_factors(x), some)) for some in rows)

    steps = np.vstack([np.zeros(len(start)), 0.06 * np.eye(len(start))])
    options = {"maxfev": evaluations, "initial_simplex": steps, "xatol": 1e-4, "fatol": 1e-5}
    found = minimize(cost, np.zeros(len(start)), method="Nelder-Mead", options=options)
    best = zip(names, start * np.exp(found.x), strict=True)
    print(f"  cost {found.fun:.5f} after {found.nfev} evaluations:", ", ".join(f"{n} {v:.6g}" for n, v in best))
    return with_factors(found.x)


def labels_of(groups: Groups, pairs: int) -> NDArray[np.int64]:
    """Return 3 * group + subgroup of each pair."""
    label = np.zeros(pairs, dtype=np.int64)
    for i, group in enumerate(groups):
        for j, members in enumerate(group):
            label[list(members)] = 3 * i + j
    return label


def groups_of(label: NDArray[np.int64]) -> Groups:
    """Undo `labels_of`; empty nodes vanish."""
    out = []
    for i in range(int(label.max()) // 3 + 1):
        group = tuple(m for j in range(3) if (m := tuple(int(p) for p in np.flatnonzero(label == 3 * i + j))))
        if group:
            out.append(group)
    return tuple(out)


def outside_bands(preset: Preset) -> Array:
    """Return how far each pair of SMs is outside the band of cycles recorded for it, as a logarithm; shape (pairs,)."""
    end = run(preset, [Schedule((Burst(256 * 4 * 512),), preset.sm_count, 4)], Conditions())[0].end[0, ::2]
    low, high = (np.full(end.size, edge) for edge in OTHER_CYCLES)
    low[FAST_PAIRS], high[FAST_PAIRS] = FAST_CYCLES
    return np.asarray(np.maximum(np.maximum(np.log(low / end), np.log(end / high)), 0.0))


def fit_groups(preset: Preset, data: pd.DataFrame, evaluations: int, seed: int, *, restart: bool) -> Preset:
    """Anneal the tree of arbiters: two levels of at most 8 groups of at most 3 subgroups over the pairs of SMs."""
    rng = np.random.default_rng(seed)
    isolated = data[(data["mode"] == "isolated") & (data["target"] == "remote") & (data["warps"] == 4) & (data["sms"] >= 12)
                    & data["stores"].isin([14, 18, 24, 40, 96, 256, 512])]  # fmt: skip
    timed = transients(data, [16, 32, 64, 132], [16, 64], [1, 6])
    recorded, weight = isolated[STATISTICS].to_numpy(), np.array([5.0, 1.0, 1.5, 1.5, 1.5])

    def cost(p: Preset) -> float:
        size = np.minimum(np.abs(np.log(predict(p, isolated) / recorded)), 0.7)
        shape = float((size * weight).sum() / weight.sum() / len(size)) + 0.5 * float(np.sqrt((size[:, 0] ** 2).mean()))
        shape += 0.5 * float(outside_bands(p).mean())
        return shape if restart else shape + _robust(deviation(p, timed))

    pairs = preset.sm_count // 2
    label = rng.integers(0, 24, pairs) if restart else labels_of(preset.groups, pairs)
    current = best = cost(replace(preset, groups=groups_of(label)))
    best_label = label
    for i in range(evaluations):
        trial = label.copy()
        if rng.random() < 0.6:
            trial[rng.integers(pairs)] = rng.integers(24)
        else:
            a, b = rng.integers(pairs, size=2)
            trial[[a, b]] = trial[[b, a]]
        value = cost(replace(preset, groups=groups_of(trial)))
        heat = (0.006 if restart else 0.0015) * (1 - i / evaluations) ** 2 + 2e-5
        if value < current or rng.random() < np.exp((current - value) / heat):
            current, label = value, trial
            if value < best:
                best, best_label = value, trial
    print(f"  cost {best:.5f} after {evaluations} evaluations")
    return replace(preset, groups=groups_of(best_label))


def error_table(preset: Preset, data: pd.DataFrame) -> pd.DataFrame:
    """Return the relative error of the mean over producers by mode and target: median, 90th and 95th percentile, in per cent."""
    rows = []
    for (mode, target), part in data.groupby(["mode", "target"], sort=False):
        for warps, some in [("all", part), *part.groupby("warps")]:
            error = 100 * np.abs(np.expm1(deviation(preset, some)))
            median, p90, p95 = np.percentile(error, [50, 90, 95])
            rows.append((mode, target, warps, len(some), median, p90, p95))
    return pd.DataFrame(rows, columns=["mode", "target", "warps", "rows", "median_%", "p90_%", "p95_%"])


def main() -> None:
    """Parse the command line, fit what is asked, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="recorded configurations (csv, csv.gz)")
    parser.add_argument("--preset", default="h200-nv18-x2", choices=sorted(PRESETS))
    parser.add_argument("--fit", nargs="*", default=[], choices=["port", "groups", "link", "local", "drift"])
    parser.add_argument("--evaluations", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restart", action="store_true", help="anneal the tree from random labels")
    args = parser.parse_args()
    data = pd.read_csv(args.data or asset_dir("results") / "reference" / "h200-clean" / "clean-thinned.csv.gz")
    data = data[~data.duplicated([*KEYS, "burst"])]
    preset = PRESETS[args.preset]
    for stage in args.fit:
        print(f"fitting {stage}")
        if stage == "groups":
            preset = fit_groups(preset, data, args.evaluations, args.seed, restart=args.restart)
        else:
            preset = descend(preset, *stages(data)[stage], args.evaluations)
    if args.fit:
        print(str(preset).replace("np.float64", ""))
    print(error_table(preset, data).to_string(index=False, float_format="%.1f"))


if __name__ == "__main__":
    main()
