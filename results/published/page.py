"""What the paper's three numbers say of its own 84 MoE configurations: PREDICTED from PUBLISHED numbers, nothing is measured here.

``page.py [write] [FOLDER]`` shows x-stage-moe.json.gz; ``page.py predict FILE`` makes one, in some minutes.
``page.py control MODEL REPLAY [yes]``: T0, R and Q of a measured node, beside its replayed skeletons; yes: loads wait behind stores.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/claims"))

from published_node import X_STAGE, Published, published_model
from tables import main, table

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json, read_json
from xstage_bench.kernels.moe.skeleton import skeleton_name
from xstage_bench.kernels.moe.suite import ROUTINGS, TOKENS, MoeCase, suite_cases
from xstage_bench.kernels.moe.summary import PAPER
from xstage_bench.measure.replay_document import read_replay
from xstage_bench.model.document import Model
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.tasks.costs import reference_costs
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.workloads.moe import moe_tasks
from xstage_bench.workloads.rates import named_machine

#: Linear-1 tiles per SM by which Linear-1 is ahead.
LEADS = (1.0, 2.0, 4.0, 8.0)
#: The one public GPU with 148 SMs, B200: dense peak of its datasheet. That the paper's is one is an assumption.
PEAK_FLOPS = {"bf16": 2.25e15, "fp8": 4.5e15}
#: Of bf16 and FP8: shares of that peak that a tile reaches.
OURS = {"bf16": 0.8, "fp8": 0.7}
#: Shares of the peak; how unequally units are served (0.17: our H200's); whether loads wait behind stores (our replay's do).
VARIANTS: dict[str, tuple[dict[str, float], float, bool]] = {
    "slow: 0.6 and 0.5 of the peak": ({"bf16": 0.6, "fp8": 0.5}, 0.0, False),
    "as our H200's: 0.8 and 0.7": (OURS, 0.0, False),
    "the same, SMs served unequally": (OURS, 0.17, False),
    "the same, loads wait behind stores": (OURS, 0.0, True),
    "the peak itself": ({"bf16": 1.0, "fp8": 1.0}, 0.0, False),
}
PUBLISHED = {"geomean": 1.18, "largest": 1.62, "smallest": 0.94, "n": 84, "source": X_STAGE.source}


def predict(path: str) -> None:
    """Predict every variant and write the document."""
    with ProcessPoolExecutor(2) as pool:
        variants = list(pool.map(_variant, VARIANTS))
    numbers = {name: getattr(X_STAGE, name) for name in ("producers", "bytes", "t0_ns", "drain_gb_per_s", "capacity_bytes")}
    document = {
        "schema_version": 1,
        "kind": "predicted",
        "from": "published",
        "published": {**numbers, "gain": PUBLISHED},
        "assumed": [
            *published_model(X_STAGE, reference_costs()).notes[1:],
            "a B200 by its number of SMs; dense peak 2250 TFLOP/s (bf16) and 4500 (fp8), and the shares of it that tiles reach",
            "EP8 with 7 of 8 bytes remote, 128 x 128 tiles, waves as DeepGEMM picks them; which variants of the seven models, and the skew",
        ],
        "variants": variants,
    }  # fmt: skip
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(Path(path), gzip.compress(encode_json(document), 9, mtime=0))


def _variant(name: str) -> dict[str, Any]:
    share, spread, waits = VARIANTS[name]
    model = published_model(X_STAGE, reference_costs(), spread, loads_wait=waits)
    flops = {dtype: share[dtype] * PEAK_FLOPS[dtype] / X_STAGE.producers for dtype in share}
    rows = [row_of(model, case, X_STAGE.producers, flops[case.dtype]) for case in suite_cases(PAPER)]
    print(f"{name}: {overall(rows)}", file=sys.stderr, flush=True)
    tflops = {dtype: value / 1e12 for dtype, value in flops.items()}
    return {"name": name, "tflops_per_sm": tflops, "service_spread": spread, "loads_wait": waits, "rows": rows}


def row_of(model: Model, case: MoeCase, producers: int, flops_per_sm: float, leads: Iterable[float] = LEADS) -> dict[str, Any]:
    """Predict Expert-Wave order and each lead of one case; us, with stores and without."""
    options: dict[str, Any] = {"tokens_per_rank": case.tokens, "ep": case.ep, "dtype": case.dtype, "routing": case.routing}
    options |= {"producers": producers, "flops_per_sm": flops_per_sm, "sm_clock_mhz": model.sm_clock_mhz}
    orders: dict[str, dict[str, Any]] = {"wave": {"order": "wave"}}
    orders |= {f"lead{lead:g}": {"order": "interleaved", "lead": lead} for lead in leads}
    us, alone_us, volume = {}, {}, 0
    for name, order in orders.items():
        tasks = moe_tasks(case.shape, **options, **order)
        found = predict_tasks(model, tasks, costs=model.tasks[0], compiled=True)
        us[name], alone_us[name], volume = round(found.total_ns / 1e3, 3), round(found.without_stores_ns / 1e3, 3), tasks.volume_bytes
    rate = model.pairs[0].node["link_gb_per_s"].value
    assert rate is not None
    drain_us = round(volume / rate / 1e3, 3)
    head = {"shape": case.shape, "dtype": case.dtype, "routing": case.routing, "tokens_per_rank": case.tokens}
    return {**head, "us": us, "without_stores_us": alone_us, "drain_us": drain_us}


def gain(row: dict[str, Any], order: str | None = None, key: str = "us") -> float:
    """Expert-Wave over an order, or over the lead with the shortest time."""
    us = row[key]
    return float(us["wave"] / (min(v for k, v in us.items() if k != "wave") if order is None else us[order]))


def overall(rows: Sequence[dict[str, Any]], order: str | None = None, key: str = "us") -> dict[str, float]:
    """Geomean, largest and smallest gain."""
    gains = [gain(row, order, key) for row in rows]
    return {"geomean": geometric_mean(gains), "largest": max(gains), "smallest": min(gains)}


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has the gain of the best lead of every configuration."""
    variants = read_json(folder / "x-stage-moe.json.gz", dict[str, Any])["variants"]
    return {"gains": table(GAINS, gains(variants)), "all": "\n\n".join(cells_of(variant) for variant in variants)}


GAINS = ("tensor cores", "rows", "best lead: geomean", "largest", "smallest", "lead 1 / 2 for all: geomean, smallest", "no stores")


def gains(variants: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the gains of each variant, of all rows and by type."""
    for variant in variants:
        for which, mine in (("all 84", ("bf16", "fp8")), ("bf16", ("bf16",)), ("FP8", ("fp8",))):
            rows = [row for row in variant["rows"] if row["dtype"] in mine]
            best, bare = overall(rows), overall(rows, key="without_stores_us")
            fixed = [overall(rows, f"lead{n}") for n in (1, 2)]
            leads = " / ".join(f"{f['geomean']:.2f}, {f['smallest']:.2f}" for f in fixed)
            found = (f"{best[k]:.2f}" for k in ("geomean", "largest", "smallest"))
            yield variant["name"] if which == "all 84" else "", which, *found, leads, f"{bare['geomean']:.2f}"


def cells_of(variant: dict[str, Any]) -> str:
    """Return the gain of the best lead of one variant's configurations."""
    cells = {(r["shape"], r["dtype"], r["routing"], r["tokens_per_rank"]): r for r in variant["rows"]}
    columns = [(routing, n) for routing in ROUTINGS for n in TOKENS]
    lines = [(shape, dtype, *(f"{gain(cells[shape, dtype, *c]):.2f}" for c in columns)) for shape in PAPER for dtype in ("bf16", "fp8")]
    return f"{variant['name']}\n\n" + table(("shape", "type", *(f"{routing} {n}" for routing, n in columns)), lines)


def control(model: str, replay: str, loads_wait: str = "no") -> None:
    """Compare the gains that three numbers predict with those replayed: balanced routing, leads of 1, 2 and 4."""
    costs = reference_costs("spin")
    loaded = find_model(Path(model))
    known = numbers_of(loaded)
    ours = published_model(known, costs, loads_wait=loads_wait == "yes")
    us = {row["schedule"]: row["total_us"]["value"] for row in read_replay(Path(replay))["rows"]}
    off = []
    for case in suite_cases([*PAPER, "keye-vl-2"], routings=["balanced"]):
        head = skeleton_name(case.shape, case.dtype, case.tokens, case.routing, "bf16", case.ep)
        if f"{head}-wave" in us:
            row = row_of(ours, case, known.producers, named_machine().flops_per_sm(case.dtype), leads=(1.0, 2.0, 4.0))
            replayed = {"us": {name: us[f"{head}-{name}"] for name in row["us"]}}
            off.append((gain(row), gain(replayed)))
            print(f"{head:30s} predicted {off[-1][0]:.3f}, replayed {off[-1][1]:.3f}", flush=True)
    predicted, measured = np.array(off).T
    print(
        f"{len(off)} cells: geomean predicted {geometric_mean(predicted):.3f}, replayed {geometric_mean(measured):.3f}; "
        f"largest {predicted.max():.3f}, {measured.max():.3f}; off by {100 * np.median(abs(predicted - measured)):.1f} points (median), "
        f"{100 * np.quantile(abs(predicted - measured), 0.9):.1f} (p90)"
    )


def numbers_of(model: Model, producers: int = 132, warps: int = 4) -> Published:
    """Return the three numbers of a measured node, as the paper gives its own."""
    pair = model.find("0>1")
    law = None if pair is None else pair.find(producers, warps)
    assert law is not None, "measure the probe isolated with all SMs"
    t0, drain, capacity = (e.value for e in (law.t0_cycles, law.drain_gb_per_s, law.capacity_bytes))
    assert t0 is not None
    assert drain is not None
    assert capacity is not None
    return Published(
        gpu=model.gpu, producers=producers, bytes=law.bytes, t0_ns=t0 / model.sm_clock_mhz * 1e3, drain_gb_per_s=drain,
        capacity_bytes=capacity, sm_clock_mhz=named_machine().sm_clock_mhz, source="measured here: T0, R and Q only",
    )  # fmt: skip


if __name__ == "__main__":
    main(__file__, tables, predict=predict, control=control)
