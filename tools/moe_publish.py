"""What a release costs that announces a Linear-1 tile: each way to publish, beside the one without a release, a race (docs/moe.md).

``python tools/moe_publish.py measure OUT.json [SHAPE]``: on one GPU, one rank of EP8 and its rows kept; where there are two, on these too,
emulating EP8; two minutes. ``show OUT.json``: the table. All ways are executed in a fresh random order in each repetition, and each is
checked against float32 before; ratios are taken within repetitions.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from moe_gemm import rank_of

from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.kernels.moe.build import FEWEST_STAGES, MOST_STAGES, PUBLISHES, Build
from xstage_bench.kernels.moe.group import Gpus, Group
from xstage_bench.kernels.moe.layer import DTYPES, Layer
from xstage_bench.kernels.moe.measure import check, plain_build
from xstage_bench.kernels.moe.order import Order
from xstage_bench.kernels.spread import spread
from xstage_bench.machine.environment import snapshot
from xstage_bench.workloads.moe import MAX_EP
from xstage_bench.workloads.shapes import moe_shape

TOKENS, REPETITIONS, WARM_UP = (512, 2048, 8192), 15, 2
ORDER, RACE = Order("interleaved", lead=2.0), "bulk.unsafe"
Row = dict[str, Any]


def measure(out: str, shape: str = "qwen3.5") -> None:
    """Time every size and type on one GPU, then on two, and keep what is there after each."""
    from cupy.cuda import runtime

    every = [Build(fp8=fp8, publish=how, stages=n) for fp8 in (False, True) for how in PUBLISHES for n in (FEWEST_STAGES, MOST_STAGES)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(Build.cubin, every))  # into the cache: one after another takes longer than the measurement
    rng = np.random.default_rng()
    document: Row = {"schema_version": 1, "kind": "measured", "shape": shape, "environment": snapshot(), "rows": []}
    for devices in ((0,), (0, 1))[: runtime.getDeviceCount()]:
        gpus = Gpus(devices)
        for dtype in DTYPES:
            for tokens in TOKENS:
                layer = rank_of(shape, dtype, tokens) if len(devices) == 1 else Layer(moe_shape(shape), tokens, MAX_EP, dtype)
                row = {"gpus": len(devices), "dtype": dtype, "tokens_per_rank": tokens, **_measured(Group(layer, gpus), rng)}
                document["rows"].append(row)
                write_json(Path(out), document)
    write_json(Path(out), document | {"environment_after": snapshot()})
    show(out)


def _measured(group: Group, rng: np.random.Generator) -> Row:
    plain = plain_build(group.layer, group.ranks[0].rows, "bf16", group.gpus.sms)
    builds = {how: replace(plain, publish=how) for how in PUBLISHES}
    prepared = {how: group.prepare(ORDER, build) for how, build in builds.items()}
    errors = {how: check(group, one) for how, one in prepared.items()}
    us: dict[str, list[float]] = {how: [] for how in builds}
    for repetition in range(REPETITIONS + WARM_UP):
        for how in rng.permutation(list(builds)):
            arrived = max(times.arrived_ns for times in group.run(prepared[how])) / 1e3
            if repetition >= WARM_UP:
                us[how].append(arrived)
    race = np.array(us[RACE])
    return {
        "stages": plain.stages,
        "arrived_us": {how: spread(np.array(one)) for how, one in us.items()},
        "over_the_race": {how: spread(np.array(one) / race) for how, one in us.items() if how != RACE},
        "relative_error": errors,
    }


def show(path: str) -> None:
    """Print the table."""
    rows = read_json(Path(path), dict[str, Any])["rows"]
    ways = [how for how in PUBLISHES if how != RACE]
    print("| GPUs | type | tokens | no release, us | " + " | ".join(f"{how}: over it" for how in ways) + " |\n|" + "---|" * (4 + len(ways)))
    for row in rows:
        cells = [f"{v['value']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for v in (row["over_the_race"][how] for how in ways)]
        head = f"| {row['gpus']} | {row['dtype']} | {row['tokens_per_rank']} | {row['arrived_us'][RACE]['value']:.1f} | "
        print(head + " | ".join(cells) + " |")


if __name__ == "__main__":
    {"measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
