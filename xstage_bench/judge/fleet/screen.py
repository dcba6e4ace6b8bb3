"""From a folder of runs to what an operator acts upon: nodes ranked, outliers named, runs that could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xstage_bench.judge.fleet.few import NodeRatio, ratios
from xstage_bench.judge.fleet.outliers import FEWEST, FloatArray, IntArray, Judged, Outlier, judge
from xstage_bench.judge.fleet.reading import METRICS, NodeLinks, Unreadable, read_fleet

SCHEMA_VERSION = 1
#: +1 where more is better.
SIGNS = {"drain_gb_per_s": +1, "capacity_bytes": +1, "issue_ns": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationSpread:
    """One metric over one population: the median of all links, and the robust relative spread of each level."""

    metric: str
    median: float | None
    links: int
    sigma: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One outlier: where it sits, by how much it differs from what stands beside it, and whether that is for the worse."""

    node: str
    level: str
    where: str
    metric: str
    change: float
    score: float
    worse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """The numbers of one ordered pair; null where its sweep gives none."""

    node: str
    pair: str
    drain_gb_per_s: float | None
    capacity_bytes: float | None
    issue_ns: float | None
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node: what it is, its medians over links, its rank by drain rate (1 is the fastest), and what is wrong with it."""

    node: str
    population: int
    gpus: int
    links: int
    complete: bool
    rank: int | None
    drain_gb_per_s: float | None
    drain_change: float | None
    capacity_bytes: float | None
    issue_ns: float | None
    outliers: int
    failed_pairs: dict[str, str]
    link_errors: int | None
    dropped_share: float | None
    impossible_rows: int = 0
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Nodes that may be compared with each other: one backend, one kind of GPU, one line rate.

    `not_judged` says what of them was not held against a population, a sentence each; `ratios` what few nodes are held against instead.
    """

    name: str
    simulated: bool
    nodes: int
    links: int
    spreads: list[PopulationSpread]
    not_judged: list[str] = field(default_factory=list)
    ratios: list[NodeRatio] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """``fleet.json``."""

    schema_version: int
    folder: str
    simulated: bool
    runs: int
    verdict: str
    populations: list[Population]
    outliers: list[Deviation]
    nodes: list[NodeRow]
    unreadable: dict[str, str]
    links: list[LinkRow]


def screen(folder: Path) -> Fleet:
    """Read every run below a folder and judge each link, GPU and node against the population of its kind.

    Raises
    ------
    UsageError
        There is no run folder.
    """
    return screen_nodes(str(folder), read_fleet(folder))


def screen_nodes(folder: str, read: Iterable[NodeLinks | Unreadable]) -> Fleet:
    """As `screen`, from what was read."""
    unreadable: dict[str, str] = {}
    kinds: dict[tuple[str, bool], list[NodeLinks]] = {}
    for one in read:
        if isinstance(one, Unreadable):
            unreadable[one.name] = one.reason
        else:
            kinds.setdefault(_kind(one), []).append(one)
    populations: list[Population] = []
    deviations: list[Deviation] = []
    nodes: list[NodeRow] = []
    links: list[LinkRow] = []
    for number, ((name, simulated), members) in enumerate(sorted(kinds.items())):
        judged = {metric: _judge(members, metric) for metric in METRICS}
        mine = [d for metric, found in judged.items() if found is not None for d in _named(members, metric, found)]
        spreads = [_spread(members, metric, judged[metric]) for metric in METRICS]
        total = sum(m.source.size for m in members)
        few = ratios(members) if len(members) < FEWEST else []
        populations.append(
            Population(
                name=name,
                simulated=simulated,
                nodes=len(members),
                links=total,
                spreads=spreads,
                not_judged=_not_judged(members, spreads, few),
                ratios=few,
            )
        )
        deviations += mine
        nodes += _nodes(members, number, judged["drain_gb_per_s"], mine)
        links += [row for m in members for row in _links(m)]
    deviations.sort(key=lambda d: (not d.worse, -abs(d.score)))
    open_ = [f"{p.name}: {why}" for p in populations for why in p.not_judged]
    return Fleet(
        schema_version=SCHEMA_VERSION, folder=folder, simulated=any(p.simulated for p in populations), runs=len(nodes) + len(unreadable),
        verdict=_verdict(deviations, len(unreadable), nodes, open_), populations=populations, outliers=deviations,
        nodes=sorted(nodes, key=lambda n: (n.population, n.drain_change is None, n.drain_change or 0.0)), unreadable=unreadable,
        links=links,
    )  # fmt: skip


def _kind(one: NodeLinks) -> tuple[str, bool]:
    m = one.manifest
    gpus = " + ".join(dict.fromkeys(f"{g.name}, {g.sm_count} SMs" for g in m.node.gpus))
    line = "unknown line rate" if m.node.line_rate_gb_per_s is None else f"{m.node.line_rate_gb_per_s:.0f} GB/s"
    return f"{m.backend}: {len(m.node.gpus)} x {gpus}, {line}", m.simulated


def _judge(members: Sequence[NodeLinks], metric: str) -> Judged | None:
    node: IntArray = np.concatenate([np.full(m.source.size, i, dtype=np.int64) for i, m in enumerate(members)])
    source: IntArray = np.concatenate([m.source for m in members])
    destination: IntArray = np.concatenate([m.destination for m in members])
    values: FloatArray = np.concatenate([m.values[metric] for m in members])
    return judge(node, source, destination, values)


def _spread(members: Sequence[NodeLinks], metric: str, judged: Judged | None) -> PopulationSpread:
    count = int(sum(np.isfinite(m.values[metric]).sum() for m in members))
    if judged is None:
        return PopulationSpread(metric=metric, median=None, links=count, reason=f"{count} links are no population: {FEWEST} are needed")
    return PopulationSpread(metric=metric, median=judged.median, links=count, sigma=judged.sigma)


def _named(members: Sequence[NodeLinks], metric: str, judged: Judged) -> list[Deviation]:
    return [
        Deviation(
            node=members[o.node].name, level=o.level, where=_where(o), metric=metric, change=o.change, score=o.score,
            worse=(o.change > 0) != (SIGNS[metric] > 0),
        )
        for o in judged.outliers
    ]  # fmt: skip


def _where(o: Outlier) -> str:
    if o.level == "node":
        return "whole node"
    if o.level == "link":
        return f"link {o.source}>{o.destination}"
    return f"egress of GPU {o.source}" if o.level == "egress" else f"ingress of GPU {o.destination}"


def _nodes(members: Sequence[NodeLinks], population: int, drain: Judged | None, found: Sequence[Deviation]) -> list[NodeRow]:
    changes = [None if drain is None or i >= drain.node.size else _finite(float(drain.node[i])) for i in range(len(members))]
    rank: dict[float, int] = {}
    for place, change in enumerate(sorted((c for c in changes if c is not None), reverse=True), 1):
        rank.setdefault(change, place)  # equal nodes share the better rank
    counts: dict[str, int] = {}
    for d in found:
        counts[d.node] = counts.get(d.node, 0) + d.worse
    return [
        NodeRow(
            node=m.name, population=population, gpus=len(m.manifest.node.gpus), links=int(m.source.size), complete=m.manifest.complete,
            rank=None if change is None else rank[change], drain_change=change, outliers=counts.get(m.name, 0),
            failed_pairs=m.manifest.failed_pairs, impossible_rows=m.impossible, changed=list(m.changed),
            link_errors=_link_errors(m), dropped_share=_dropped(m),
            **{metric: _median(m.values[metric]) for metric in METRICS},
        )
        for m, change in zip(members, changes, strict=True)
    ]  # fmt: skip


def _links(m: NodeLinks) -> list[LinkRow]:
    columns = {metric: m.values[metric].tolist() for metric in METRICS}
    return [
        LinkRow(node=m.name, pair=f"{s}>{d}", rows=int(n), **{metric: _finite(columns[metric][i]) for metric in METRICS})
        for i, (s, d, n) in enumerate(zip(m.source.tolist(), m.destination.tolist(), m.rows.tolist(), strict=True))
    ]


def _link_errors(m: NodeLinks) -> int | None:
    """Replay, recovery and CRC errors of all links during the run; null where none was counted."""
    counts = [risen.get(k) for risen in (m.manifest.link_error_deltas or {}).values() for k in ("replay", "recovery", "crc")]
    known = [int(c) for c in counts if c is not None]
    return sum(known) if known else None


def _dropped(m: NodeLinks) -> float | None:
    counts = {k.removeprefix("status_"): v for k, v in m.manifest.counts.items() if k.startswith("status_")}
    total = sum(v for k, v in counts.items() if k != "warmup")
    return None if not total else 1 - counts.get("ok", 0) / total


def _median(values: FloatArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _not_judged(members: Sequence[NodeLinks], spreads: Sequence[PopulationSpread], few: Sequence[NodeRatio]) -> list[str]:
    """What was not held against a population: too few nodes, a number that too few links have, a node that has none."""
    found = []
    if len(members) < FEWEST:
        count = f"{len(members)} node{'s' if len(members) != 1 else ''}"
        found.append("; ".join([f"{count} are no population: {FEWEST} are needed", *(r.sentence() for r in few)]))
    found += [f"{s.metric}: {s.reason}" for s in spreads if s.reason is not None and len(members) >= FEWEST]
    silent = [m.name for m in members if not np.isfinite(m.values["drain_gb_per_s"]).any()]
    return found + ([f"no drain rate of {', '.join(silent)}"] if silent else [])


def _verdict(deviations: Sequence[Deviation], unreadable: int, rows: Sequence[NodeRow], not_judged: Sequence[str]) -> str:
    worse = [d for d in deviations if d.worse]
    nodes = len({d.node for d in worse})
    parts = (
        [f"{len(worse)} outlier{'s' if len(worse) != 1 else ''} for the worse on {nodes} node{'s' if nodes != 1 else ''}"] if worse else []
    )
    failing, changed = (sum(bool(getattr(n, name)) for n in rows) for name in ("failed_pairs", "changed"))
    impossible = sum(n.impossible_rows for n in rows)
    parts += [f"{failing} node{'s' if failing != 1 else ''} with pairs that failed"] if failing else []
    parts += [f"{unreadable} run{'s' if unreadable != 1 else ''} could not be read"] if unreadable else []
    parts += [f"{impossible} rows that cannot be were left out"] if impossible else []
    parts += [f"{changed} run{'s' if changed != 1 else ''} with files changed since they were written"] if changed else []
    parts += [f"not judged: {'; '.join(not_judged)}"] if not_judged else []
    return "; ".join(parts) or "nothing stands out"
