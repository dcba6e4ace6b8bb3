"""A fleet of 1 000 nodes with 56 pairs each is screened in under 60 s and 2 GB, and exactly the planted faults are found; no GPU is needed.

    python tests/claims/fleet_speed.py [--nodes 1000]

The nodes' rows are made from the closed form of isolated bursts with noise between repetitions, processes, links and nodes (simulated,
and labelled so): 9 burst sizes, 3 processes of 3 repetitions, 4 536 rows per node. Planted: a slow node, a GPU whose egress is
slow, one whose ingress is, a slow link, one of small capacity, a node of slow issue, a damaged part. `xstage fleet` is its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xstage_bench.model.burst_gap import isolated_issue_ns
from xstage_bench.record.columns import SAMPLES
from xstage_bench.record.manifest import Manifest, save_manifest
from xstage_bench.record.parts import SAMPLES_FOLDER, part_name, to_table, write_table
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node

ROOT = Path(__file__).resolve().parents[2]
GPUS, SMS, MHZ = 8, 132, 1980.0
SIZES = tuple(2048 * n for n in (1, 4, 16, 32, 64, 96, 128, 192, 256))
PROCESSES, REPETITIONS = 3, 3
RATE, CAPACITY, ISSUE = 370.0, 2.44e6, 112.0
LIMIT_S, LIMIT_GB = 60.0, 2.0


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: factor on one metric at one place. `where` as in ``fleet.json``."""

    node: int
    where: str
    metric: str
    factor: float


def faults(nodes: int) -> list[Planted]:
    """Return faults of every kind, on nodes spread over the fleet."""
    at = np.linspace(1, nodes - 2, 7).astype(int)
    return [
        Planted(int(at[0]), "whole node", "drain_gb_per_s", 0.90),
        Planted(int(at[1]), "egress of GPU 3", "drain_gb_per_s", 0.88),
        Planted(int(at[2]), "ingress of GPU 5", "drain_gb_per_s", 0.85),
        Planted(int(at[3]), "link 2>6", "drain_gb_per_s", 0.80),
        Planted(int(at[4]), "link 7>0", "capacity_bytes", 0.70),
        Planted(int(at[5]), "whole node", "issue_ns", 1.30),
    ]


def factors(planted: list[Planted], node: int, metric: str, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Return the planted factor on one metric of each pair of a node."""
    out = np.ones(len(pairs))
    for fault in planted:
        if (fault.node, fault.metric) == (node, metric):
            word, _, name = fault.where.partition(" ")
            hit = [
                word == "whole" or (word == "link" and name == f"{a}>{b}") or (word in ("egress", "ingress")
                and int(name[-1]) == (a if word == "egress" else b))
                for a, b in pairs
            ]  # fmt: skip
            out *= np.where(hit, fault.factor, 1.0)
    return out


def make_node(folder: Path, number: int, planted: list[Planted], gpus: int = GPUS) -> None:
    """Write one node's run folder: all ordered pairs, isolated bursts of all SMs with 4 warps."""
    rng = np.random.default_rng([7, number])
    pairs = [(a, b) for a in range(gpus) for b in range(gpus) if a != b]
    shape = (len(pairs), len(SIZES), PROCESSES, REPETITIONS)
    own = {m: factors(planted, number, m, pairs) for m in ("drain_gb_per_s", "capacity_bytes", "issue_ns")}
    spread = 1 + 0.002 * rng.standard_normal() + 0.002 * rng.standard_normal(len(pairs))
    rate = (RATE * own["drain_gb_per_s"] * spread)[:, None, None, None] * (1 + 0.0015 * rng.standard_normal((1, 1, PROCESSES, 1)))
    capacity = (CAPACITY * own["capacity_bytes"])[:, None, None, None] * (1 + 0.003 * rng.standard_normal((1, 1, PROCESSES, 1)))
    size = np.array(SIZES, dtype=float)[None, :, None, None]
    free = (ISSUE + size / 512 * 8.0) * 1e3 / MHZ * own["issue_ns"][:, None, None, None]
    issue = isolated_issue_ns(np.broadcast_to(free, shape), SMS * size, rate, capacity) * (1 + 0.003 * rng.standard_normal(shape))
    makespan = np.maximum(free, SMS * size / rate) * (1 + 0.003 * rng.standard_normal(shape))
    pair, at, process, repetition = (x.ravel() for x in np.indices(shape))
    rows = pair.size
    ends = np.array(pairs)[pair]
    keys = np.array([[Schedule((Burst(s),), SMS, 4, a, b).key() for s in SIZES] for a, b in pairs], dtype=object)
    columns: dict[str, Any] = {
        "schedule": keys[pair, at], "probe": np.full(rows, "isolated", object), "kind": np.full(rows, "measure", object),
        "source": ends[:, 0], "destination": ends[:, 1], "flavour": np.full(rows, "st.v4", object),
        "layout": np.full(rows, "contiguous", object), "completion": np.full(rows, "fence.sys", object),
        "start": np.full(rows, "isolated", object), "producers": np.full(rows, SMS), "producer_set": np.full(rows, "even", object),
        "warps": np.full(rows, 4), "burst": np.zeros(rows), "bursts": np.ones(rows), "bytes": np.array(SIZES)[at], "process": process,
        "repetition": process * REPETITIONS + repetition, "order": np.arange(rows), "issue_mean_cycles": issue.ravel() * MHZ / 1e3,
        "makespan_ns": makespan.ravel(), "sm_clock_mhz": np.full(rows, MHZ), "status": np.full(rows, "ok", object),
    }  # fmt: skip
    for column in SAMPLES:
        columns.setdefault(
            column.name, np.full(rows, np.nan if column.type != "string" else None, float if column.type != "string" else object)
        )
    (folder / SAMPLES_FOLDER).mkdir(parents=True)
    write_table(folder / SAMPLES_FOLDER / part_name(0), to_table(columns, SAMPLES))
    node = Node(
        tuple(Gpu(i, "NVIDIA H200 (simulated)", tuple(range(SMS)), MHZ, f"GPU-{number:04d}-{i}") for i in range(gpus)),
        tuple(pairs), 32.0, 478.1,
    )  # fmt: skip
    save_manifest(folder, Manifest(backend="sim:h200-nvswitch-x8", simulated=True, node=node, complete=True, counts={"status_ok": rows}))


def make_fleet(folder: Path, nodes: int) -> tuple[list[Planted], str]:
    """Write a fleet; return its planted faults and the name of the run whose part is cut short."""
    planted = faults(nodes)
    for number in range(nodes):
        make_node(folder / f"node{number:04d}", number, planted)
    broken = folder / f"node{nodes - 1:04d}" / SAMPLES_FOLDER / part_name(0)
    broken.write_bytes(broken.read_bytes()[:1000])
    return planted, broken.parent.parent.name


def missed(document: dict[str, Any], planted: list[Planted], broken: str) -> list[str]:
    """Return what `xstage fleet` says that was not planted, and what was planted and it does not say."""
    said = {(d["node"], d["where"], d["metric"]) for d in document["outliers"]}
    true = {(f"node{p.node:04d}", p.where, p.metric) for p in planted}
    wrong = [f"not found: {x}" for x in sorted(true - said)] + [f"not planted: {x}" for x in sorted(said - true)]
    return wrong + ([] if list(document["unreadable"]) == [broken] else [f"unreadable: {document['unreadable']}"])


def main() -> int:
    """Make the fleet, screen it, print time and memory; exit 1 when a limit or a fault is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "fleet"
        begin = time.perf_counter()
        planted, broken = make_fleet(folder, options.nodes)
        total = sum(p.stat().st_size for p in folder.rglob("*.parquet")) / 1e6
        print(f"made {options.nodes} nodes in {time.perf_counter() - begin:.0f} s, {total:.0f} MB of Parquet", flush=True)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "xstage_bench", "fleet", str(folder)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(done.stdout)
        wrong = missed(json.loads((folder / "fleet.json").read_text()), planted, broken)
        print(f"screened in {seconds:.1f} s, {peak:.2f} GB at most, exit {done.returncode}; {len(planted)} faults planted")
        print("\n".join(wrong) or "found exactly what was planted")
    return 0 if not wrong and seconds < LIMIT_S and peak < LIMIT_GB and done.returncode == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
