"""What the claims are computed with: each function takes a recording's path and returns a number, or several that are shown together."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import advice_regret
import numpy as np
from node_scores import NodeScore, score_node
from tables import load

from xstage_bench.io.json_file import read_json
from xstage_bench.kernels.attention.document import read_folder
from xstage_bench.kernels.attention.summary import summarise as summarise_attention
from xstage_bench.kernels.moe.summary import summarise
from xstage_bench.measure.compare_memories import compare
from xstage_bench.measure.copies import best_stores, load_copies
from xstage_bench.measure.footprint import issue_times, rates
from xstage_bench.measure.replay_document import errors, read_replay, summary_rows
from xstage_bench.model.document import Model, ModelScore, Validation
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.headline import headline_rate
from xstage_bench.model.node.data import measured
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.run_fit import find_model, fit_run, validate_run
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.flavour import FLAVOURS

visibility, ulysses, sleep = (load(f"h200-x2/{topic}") for topic in ("visibility", "ulysses", "sleep"))
Numbers = tuple[float, ...]
REMOTE = ("0>1", "1>0")

run_of = cache(load_run)
model_in = cache(find_model)


@cache
def document(path: Path) -> dict[str, Any]:
    """Any JSON document."""
    return read_json(path, dict[str, Any])


@cache
def validation(folder: Path) -> Validation:
    """Judge a run's model by its held-out schedules again."""
    return validate_run(run_of(folder), model_in(folder))


def _value(e: Estimate) -> float:
    if e.value is None:
        raise ValueError(f"not identified: {e.reason}")
    return e.value


def _pair(model: Model, pair: str) -> Any:
    return next(p for p in model.pairs if (p.pair, p.flavour, p.layout) == (pair, "st.v4", "contiguous"))


# A profile


def day(folder: Path) -> str:
    """Day of the run."""
    return run_of(folder).manifest.created[:10]


def name(folder: Path) -> str:
    """Name of the folder, for a link."""
    return folder.name


def size(folder: Path) -> Numbers:
    """Schedules, and seconds that they took."""
    manifest = run_of(folder).manifest
    assert manifest.wall_s is not None
    return manifest.counts["schedules"], manifest.wall_s


def line_rate(folder: Path) -> float:
    """GB/s on the wire."""
    rate = run_of(folder).manifest.node.line_rate_gb_per_s
    assert rate is not None
    return rate


def rate(folder: Path, pair: str = "0>1", *, of_line: bool = False) -> float:
    """R of all SMs by makespan, GB/s or of the line rate."""
    found = headline_rate(_pair(model_in(folder), pair))
    assert found is not None
    return _value(found[0]) / (line_rate(folder) if of_line else 1)


def rates_of_all(folder: Path) -> Numbers:
    """Least and greatest R of all SMs over directions and warp counts."""
    cells = [_value(c.drain_gb_per_s) for c in _cells(folder, 132)]
    return min(cells), max(cells)


def _cells(folder: Path, *producers: int, least_warps: int = 1) -> list[Any]:
    cells = [c for pair in REMOTE for c in _pair(model_in(folder), pair).burst_gap]
    return [c for c in cells if c.producers in producers and c.warps >= least_warps]


def capacity(folder: Path, pair: str = "0>1", producers: int = 132, warps: int = 4) -> Numbers:
    """Q in all, MB, and per SM, kB."""
    cell = next(c for c in _pair(model_in(folder), pair).burst_gap if (c.producers, c.warps) == (producers, warps))
    return _value(cell.capacity_bytes) / 1e6, _value(cell.capacity_bytes_per_producer) / 1e3


def capacities(folder: Path, producers: list[int]) -> Numbers:
    """Least and greatest Q per SM over directions and two warps or more, bytes."""
    found = [_value(c.capacity_bytes_per_producer) for c in _cells(folder, *producers, least_warps=2)]
    return min(found), max(found)


@cache
def _score(folder: Path, pair: str) -> NodeScore:
    entry = entry_of(_pair(model_in(folder), pair))
    assert entry is not None
    source, destination = map(int, pair.split(">"))
    return score_node(model_of(entry), entry.spread, measured(run_of(folder).samples(), source, destination, ["holdout"]))


def node_row(folder: Path, pair: str) -> Numbers:
    """The node model on held-out schedules: per burst median, p90 and p95, time line median and p95, regime, coverage, interval score."""
    s = _score(folder, pair)
    assert s.balanced_accuracy is not None and s.interval_coverage_90 is not None and s.interval_score is not None  # noqa: PT018
    errors_ = (s.median_error, s.p90_error, s.p95_error, s.total_median_error, s.total_p95_error)
    return (*errors_, s.balanced_accuracy, s.interval_coverage_90, s.interval_score)


def node_errors(folder: Path, number: str = "median_error") -> float:
    """One number of the node model on held-out schedules, the worse direction."""
    return float(max(getattr(_score(folder, pair), number) for pair in REMOTE))


def judged(folder: Path, number: str, pair: str) -> float:
    """One number of the node model as `xstage validate` gives it: an error of the issue time, or of the score itself."""
    score = next(s for s in validation(folder).models if (s.model, s.pair) == ("node", pair))
    return float(getattr(score.issue_time if hasattr(score.issue_time, number) else score, number))


def rival(folder: Path, model: str) -> Numbers:
    """A rival on the same schedules, 0>1: per burst median and p95, time line median and p95."""
    s = next(s for s in validation(folder).models if (s.model, s.pair) == (model, "0>1"))
    found = (s.issue_time.median_error, s.issue_time.p95_error, s.total_time.median_error, s.total_time.p95_error)
    assert None not in found
    return found  # type: ignore[return-value]


def parameter(folder: Path, name: str) -> Numbers:
    """A parameter of the node model with its interval, both directions."""
    both = [_pair(model_in(folder), pair).node[name] for pair in REMOTE]
    return tuple(float(x) for e in both for x in (e.value, e.low, e.high))


def periodic(folder: Path, producers: int) -> float:
    """Median error of the periodic law, the worse direction."""
    found = [c.median_error for c in validation(folder).periodic_law if c.producers == producers and c.pair in REMOTE]
    assert found
    return max(float(x) for x in found if x is not None)


def isolated(folder: Path) -> Numbers:
    """Share of the isolated sweeps whose median error is at most 5 %, and the largest such error."""
    found = np.array([c.median_error for c in validation(folder).isolated_law if c.pair in REMOTE])
    return float((found <= 0.05).mean()), float(found.max())


def timed(folder: Path) -> float:
    """Balanced accuracy of stall or no stall on timed schedules, the worse direction."""
    return min(float(c.balanced_accuracy or 0) for c in validation(folder).timed_stall if c.producers is None and c.pair in REMOTE)


# Flavours


def _flavour_scores(folder: Path) -> dict[str, list[ModelScore]]:
    found = [s for s in validation_file(folder).models if s.model == "node"]
    return {f: [s for s in found if s.flavour == f] for f in dict.fromkeys(s.flavour for s in found) if FLAVOURS[f].alias_of is None}


@cache
def validation_file(folder: Path) -> Validation:
    """The recorded judgement: refitting 25 flavours takes minutes."""
    return read_json(folder / "validation.json.gz", Validation)


def flavour_medians(folder: Path) -> Numbers:
    """Least and greatest median error of the node model, per cent, and over how many flavours."""
    found = [float(s.issue_time.median_error or 0) for scores in _flavour_scores(folder).values() for s in scores]
    return 100 * min(found), 100 * max(found), len(_flavour_scores(folder))


def flavours_within(folder: Path, p95: float = 0.20) -> float:
    """Flavours whose p95 is within a bar in both directions."""
    return sum(all((s.issue_time.p95_error or np.inf) <= p95 for s in scores) for scores in _flavour_scores(folder).values())


def copies(folder: Path, what: str, pair: str = "0>1") -> float:
    """GB/s of the copy engine, of a copy kernel, or of the best flavour."""
    rows = load_copies(folder)
    found = best_stores(rows, pair) if what == "best" else next(r for r in rows if (r.pair, r.what) == (pair, what))
    assert found is not None
    assert found.gb_per_s is not None
    return found.gb_per_s


# Fences, places, processes, footprint, placement, sleep


@cache
def _released(folder: Path) -> Model:
    return fit_run(run_of(folder))


def release(folder: Path, completion: str, number: str, pair: str = "0>1") -> float:
    """A parameter of the law of a completion, most SMs."""
    laws = [law for law in _pair(_released(folder), pair).release if law.completion == completion]
    return _value(getattr(max(laws, key=lambda law: law.producers), number))


def woken(folder: Path, silence_us: int = 100_000) -> Numbers:
    """Least and greatest of the typical drains after a long silence, us: one store by one SM to the longest that fits into the capacity."""
    last = sleep.last_bursts(folder)
    late = last[(last["gap_us"] == silence_us) & (last["source"] != last["destination"])]
    typical = late[late["issue_max_cycles"] < 1e4].groupby(["producers", "stores"])["drain_us"].median()
    return float(typical.min()), float(typical.max())


def pushed(folder: Path, row: str) -> Numbers:
    """GB/s of each schedule of a scene."""
    return tuple(s["gb_per_s"]["value"] for r in document(folder / "patterns.json")["rows"] if r["name"] == row for s in r["schedules"])


def host_rate(folder: Path) -> float:
    """R towards host memory, all SMs."""
    pair = next(p for p in document(folder / "model.json")["pairs"] if p["pair"] == "0>-1")
    return float(next(c for c in pair["burst_gap"] if (c["producers"], c["warps"]) == (132, 4))["drain_gb_per_s"]["value"])


def other_memory(folder: Path) -> float:
    """Largest deviation of T0, R and Q in memory of another process."""
    return float(compare([document(p) for p in sorted(folder.glob("*.json.gz"))])["largest_deviation"])


def footprint(folder: Path, what: str) -> float:
    """Largest deviation of R (from 4 MiB) or T0 from their mean over footprints, runs of 512 bytes, both directions, as a share."""
    away = []
    for direction in ("01", "10"):
        rows = [r for r in document(folder / f"footprint{direction}.json.gz")["rows"] if r["producers"] == 132]
        rows = [r for r in rows if r["destination"] == int(direction[1]) and r["run_slots"] == 1]
        if what == "rate":
            found = [r["gb_per_s"] for r in rates(rows, 1980.0) if r["footprint_bytes"] >= 4 << 20]
        else:
            found = [r["cycles"] for r in issue_times(rows, 8)]
        away += [abs(one / np.mean(found) - 1) for one in found]
    return float(max(away))


def choices(folder: Path, source: int, producers: int = 32, size: int = 32768) -> Numbers:
    """Cycles of the best and the worst choice of SMs, and their ratio."""
    rows = run_of(folder).samples()
    rows = rows[(rows["probe"] == "choice") & (rows["status"] == "ok") & (rows["kind"] == "measure") & (rows["source"] == source)]
    part = rows[(rows["producers"] == producers) & (rows["bytes"] == size)]
    issue = part.groupby("producer_set")["issue_mean_cycles"].median()
    return float(issue.min()), float(issue.max()), float(issue.max() / issue.min())


# Visibility


def seen(folder: Path, part: str, column: str, unit: float = 1.0, **where: Any) -> float:
    """Mean over processes of one number of one row of the survey."""
    groups = visibility.grouped([r for r in document(folder / "visibility.json.gz")["rows"] if r["part"] == part])
    (rows,) = (g for g in groups.values() if all(g[0][k] == v for k, v in {"pair": "0>1", **where}.items()))
    found = visibility.pooled([r[column] for r in rows])
    assert found is not None
    return found[0] / unit


# Fused kernels, replays, advice


@cache
def _moe(folder: Path) -> dict[str, Any]:
    return summarise(document(folder / "moe.json.gz"))


def moe(folder: Path, number: str) -> Numbers:
    """A number of the whole suite: bf16 and FP8, then both with float32 rows."""
    found = {(g["combine"], g["dtype"]): g for g in _moe(folder)["overall"]}
    return tuple(found[key][number] for key in (("bf16", "bf16"), ("bf16", "fp8"), ("f32", "bf16"), ("f32", "fp8")))


def moe_kept_waves(folder: Path) -> Numbers:
    """Rows whose chosen order keeps waves, of all; and the geomeans over the public kernel's waves where these count as no gain."""
    rows = _moe(folder)["rows"]
    kept = [row["order"]["name"] == "wave" if isinstance(row["order"], dict) else str(row["order"]).startswith("wave") for row in rows]
    gains: dict[tuple[str, str], list[float]] = {}
    for row, waves in zip(rows, kept, strict=True):
        gains.setdefault((row["combine"], row["dtype"]), []).append(1.0 if waves else row["gain_over_usual_wave"])
    order = (("bf16", "bf16"), ("bf16", "fp8"), ("f32", "bf16"), ("f32", "fp8"))
    return (sum(kept), len(kept), *(geometric_mean(gains[key]) for key in order))


def moe_variant(folder: Path, variant: str, dtype: str) -> Numbers:
    """Geomean and least of a variant's time over that of the chosen order."""
    rows = [r for r in document(folder / "moe.json.gz")["rows"] if variant in r["variants"] and r["dtype"] == dtype]
    found = [r["variants"][variant]["arrived_us"]["value"] / r["variants"]["chosen"]["arrived_us"]["value"] for r in rows]
    return geometric_mean(found), min(found)


@cache
def _attention(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(json.dumps(summarise_attention(*read_folder(folder))))["rows"])


def fused_cost(folder: Path, least: int, most: int, sp: int | None = None, *, dearest: bool = True) -> float:
    """What fusing costs over attention alone between two lengths: the dearest case, or the middle one."""
    rows = [r for r in _attention(folder) if least <= r["seq"] <= most and sp in (None, r["sp"])]
    found = [r["fused_over_alone"]["value"] - 1 for r in rows]
    return float(max(found) if dearest else np.median(found))


def fused_long(folder: Path) -> float:
    """What fusing costs in all rounds of the longest rows."""
    line = ulysses.together(_attention(folder), *read_folder(folder))[0]
    return float(line.split(": ")[1].split(" ")[0]) - 1


def fused_predicted(folder: Path) -> Numbers:
    """Cases below 2 ms whose residual is predicted within 30 % or 3 us, of all of them."""
    short = [r for r in _attention(folder) if r["alone_us"] < 2000]
    return sum(ulysses.within_bar(r) for r in short), len(short)


def fused_best(folder: Path) -> float:
    """How much dearer the chosen order is than the best found, at most."""
    return max(r["fused_over_best"]["value"] for r in _attention(folder)) - 1


def replayed(folder: Path, *, advised: bool) -> Numbers:
    """Errors of predictions of replayed schedules: how many, total median, p95 and largest, the part due to stores."""
    rows = [r for r in summary_rows(read_replay(folder / "replay.json.gz")) if r["schedule"].endswith(" advised") == advised]
    judged = errors(rows)
    names = ("n", "total_median_error", "total_p95_error", "total_largest_error", "stores_median_error")
    return tuple(float(judged[name] or 0) for name in names)


def advised(folder: Path) -> Numbers:
    """Advised schedules: how many, geomean and greatest gain, and by how much the claimed gain is off in the median and at most."""
    found = {row["schedule"]: row for row in read_replay(folder / "replay.json.gz")["rows"]}
    pairs = [(row, found[name + " advised"]) for name, row in found.items() if name + " advised" in found]
    gain = np.array([a["total_us"]["value"] / b["total_us"]["value"] for a, b in pairs])
    off = np.abs(gain - np.array([a["predicted_us"] / b["predicted_us"] for a, b in pairs]))
    return len(pairs), geometric_mean(gain), float(gain.max()), float(np.median(off)), float(off.max())


def regret(folder: Path) -> Numbers:
    """The order that was predicted to be fastest against the fastest replayed: cells, regret in the median and at most."""
    lost = []
    for orders in advice_regret.replayed(folder / "replay.json.gz").values():
        chosen = min(orders.values(), key=lambda row: row["predicted_us"])
        lost.append(chosen["total_us"]["value"] / min(row["total_us"]["value"] for row in orders.values()) - 1)
    return len(lost), float(np.median(lost)), max(lost)


# Pacer and store queue


def pacer(folder: Path, start: str) -> float:
    """Balanced accuracy on recorded producers, with settle."""
    return float(
        next(r for r in document(folder / "summary.json")["recorded"] if (r["start"], r["settle"]) == (start, True))["balanced_accuracy"]
    )


def paced(folder: Path, depth: int = 8) -> float:
    """Time by the pacer's order over the fixed one of the same depth, geomean where the link keeps up."""
    return geometric_mean([r[f"paced {depth}"] / r[f"fixed {depth}"] for r in document(folder / "summary.json")["choice"] if r["load"] < 1])


def queued(folder: Path, sms: int, stores: int = 16) -> Numbers:
    """Cycles until the last store is issued, and until the SM has taken all of them."""
    rows = [
        r
        for r in document(folder / "store_queue.json")["rows"]
        if (r["sms"], r["stores_per_warp"], r.get("by", "st.v4")) == (sms, stores, "st.v4")
    ]
    row = next(r for r in rows if r["after_the_stores"] == "nothing")
    return row["stored_cycles"], row["fenced_cycles"]
