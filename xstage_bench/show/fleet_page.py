"""The fleet as one HTML page, verdict first, and as one JSON file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import write_json
from xstage_bench.judge.fleet.outliers import DEVIATIONS, SMALLEST
from xstage_bench.judge.fleet.screen import Deviation, Fleet, NodeRow
from xstage_bench.show.html import Table, data_url, render
from xstage_bench.show.report import REPORT_NAME
from xstage_bench.show.report_tables import MISSING, number, percent
from xstage_bench.show.style import matplotlib_settings, new_figure, style
from xstage_bench.show.verdict import SLOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_NAME, JSON_NAME = "fleet.html", "fleet.json"
#: Rows of the page's tables; all of them are in the JSON.
MOST_OUTLIERS, MOST_NODES = 100, 60
_NAMES = {"drain_gb_per_s": "R", "capacity_bytes": "Q", "issue_ns": "issue"}
_SENTENCES = 5


def write_fleet(fleet: Fleet, out: Path) -> dict[str, Path]:
    """Write fleet.html and fleet.json into `out`, which is made when missing; each is whole or not there."""
    out.mkdir(parents=True, exist_ok=True)
    files = {"page": out / PAGE_NAME, "json": out / JSON_NAME}
    write_json(files["json"], fleet)
    write_bytes(files["page"], render_fleet(fleet, out).encode(errors="backslashreplace"))
    return files


def render_fleet(fleet: Fleet, out: Path | None = None) -> str:
    """Return the page; the same fleet gives the same bytes. Nodes whose report can be reached from the folder `out` are links to it."""
    return render(
        "fleet.html.j2", fleet=fleet, name=Path(fleet.folder).name or fleet.folder, sentences=sentences(fleet),
        strip=_strip(fleet, out), next=_next(fleet),
        outliers=_outliers(fleet.outliers),
        unreadable=Table("Runs that could not be read", ["run", "why"], [[k, v] for k, v in fleet.unreadable.items()]),
        failed=_failed(fleet.nodes), populations=_populations(fleet), figures=_figures(fleet), nodes=_nodes(fleet.nodes),
        deviations=number(DEVIATIONS), smallest=percent(SMALLEST, 0),
    )  # fmt: skip


def sentences(fleet: Fleet) -> list[str]:
    """Say the worst findings in words, most deviating first."""
    worse = [d for d in fleet.outliers if d.worse]
    found = [_sentence(d) for d in worse[:_SENTENCES]]
    if len(worse) > _SENTENCES:
        found.append(f"{len(worse) - _SENTENCES} more: see the table.")
    return found


def _strip(fleet: Fleet, out: Path | None) -> list[dict[str, Any]]:
    """Return the nodes, largest loss first, each with a cell per GPU: the median of its links out, beside the median of its population."""
    rates: dict[tuple[str, int], list[float]] = {}
    for link in fleet.links:
        if link.drain_gb_per_s is not None:
            rates.setdefault((link.node, int(link.pair.partition(">")[0])), []).append(link.drain_gb_per_s)
    usual = [next((s.median for s in p.spreads if s.metric == "drain_gb_per_s"), None) for p in fleet.populations]
    rows: list[dict[str, Any]] = []
    for node in fleet.nodes:
        cells: list[dict[str, Any]] = []
        losses, middle = [0.0], usual[node.population]
        for gpu in sorted(g for name, g in rates if name == node.node):
            change = None if not middle else median(rates[node.node, gpu]) / middle - 1
            kind = "none" if change is None else "far" if change < -2 * SLOW else "slow" if change < -SLOW else "usual"
            words = MISSING if change is None else f"{100 * change:+.1f} %"
            cells.append({"gpu": gpu, "kind": kind, "text": words})
            losses.append(-(change or 0.0))
        report = None if out is None else Path(fleet.folder) / node.node / REPORT_NAME
        there = None
        if report is not None and report.is_file():
            there = quote(Path(os.path.relpath(report, out)).as_posix())
        worst = inf if node.failed_pairs else max(losses)
        rows.append({"node": node.node, "link": there, "cells": cells, "loss": worst, "failed": len(node.failed_pairs)})
    return sorted(rows, key=lambda row: (-row["loss"], row["node"]))[:MOST_NODES]


def _next(fleet: Fleet) -> str:
    """Return what to type next: about the node that is named first, else about the next one to join."""
    worst = next((n.node for n in fleet.nodes if n.failed_pairs), None) or next((d.node for d in fleet.outliers if d.worse), None)
    return f"xstage check {worst}" if worst else "xstage profile, on the next node"


def _sentence(d: Deviation) -> str:
    beside = {
        "node": "the population", "egress": "its node's other GPUs", "ingress": "its node's other GPUs", "link": "the links beside it",
    }  # fmt: skip
    return f"{d.node}, {d.where}: {_NAMES[d.metric]} {100 * d.change:+.1f} % against {beside[d.level]} ({abs(d.score):.0f} deviations)."


def _outliers(found: Sequence[Deviation]) -> Table:
    rows = [
        [d.node, d.where, _NAMES[d.metric], f"{100 * d.change:+.1f} %", number(abs(d.score), 3), "worse" if d.worse else "better"]
        for d in found[:MOST_OUTLIERS]
    ]
    note = f"The first {MOST_OUTLIERS} of {len(found)}." if len(found) > MOST_OUTLIERS else ""
    return Table("What stands out", ["node", "where", "number", "change", "deviations", "for the"], rows, note)


def _failed(nodes: Sequence[NodeRow]) -> Table:
    rows = [[n.node, pair.replace(">", " → "), why] for n in nodes for pair, why in n.failed_pairs.items()]
    note = f"The first {MOST_OUTLIERS} of {len(rows)}." if len(rows) > MOST_OUTLIERS else ""
    return Table("Pairs that failed", ["node", "pair", "why"], rows[:MOST_OUTLIERS], note)


def _populations(fleet: Fleet) -> Table:
    rows = []
    for p in fleet.populations:
        for s in p.spreads:
            scale, unit = {"drain_gb_per_s": (1.0, "GB/s"), "capacity_bytes": (1e6, "MB"), "issue_ns": (1.0, "ns")}[s.metric]
            middle = MISSING if s.median is None else f"{number(s.median / scale)} {unit}"
            spread = ", ".join(f"{level} {percent(sigma, 2)}" for level, sigma in s.sigma.items()) or s.reason or MISSING
            state = "simulated" if p.simulated else "measured"
            rows.append([p.name, state, str(p.nodes), str(s.links), _NAMES[s.metric], middle, spread])
    columns = ["population", "state", "nodes", "links", "number", "median", "robust spread of each level"]
    return Table("What was compared with what", columns, rows, "Only nodes of one backend, one kind of GPU and one line rate are compared.")


def _nodes(nodes: Sequence[NodeRow]) -> Table:
    rows = [
        [
            n.node, MISSING if n.rank is None else str(n.rank), number(n.drain_gb_per_s),
            MISSING if n.drain_change is None else f"{100 * n.drain_change:+.2f} %",
            MISSING if n.capacity_bytes is None else number(n.capacity_bytes / 1e6), number(n.issue_ns), str(n.links), str(n.outliers),
            str(len(n.failed_pairs)), number(n.link_errors), percent(n.dropped_share), "yes" if n.complete else "no",
        ]
        for n in nodes[:MOST_NODES]
    ]  # fmt: skip
    columns = [
        "node", "rank", "R (GB/s)", "against the population", "Q (MB)", "issue (ns)", "links", "outliers", "failed pairs", "link errors",
        "rows dropped", "complete",
    ]  # fmt: skip
    note = f"The slowest {MOST_NODES} of {len(nodes)}." if len(nodes) > MOST_NODES else ""
    return Table("Nodes by drain rate", columns, rows, note)


def _figures(fleet: Fleet) -> list[dict[str, Any]]:
    figures = []
    for number_, p in enumerate(fleet.populations):
        members = {n.node for n in fleet.nodes if n.population == number_}
        rates = [r.drain_gb_per_s for r in fleet.links if r.node in members and r.drain_gb_per_s is not None]
        if not rates:
            continue
        state = "SIMULATED" if p.simulated else "measured"
        figures.append(
            {
                "source": _histogram(rates, f"{p.name} ({state}), {len(rates)} links of {p.nodes} nodes"),
                "alt": f"Histogram of the drain rate of {len(rates)} links: {min(rates):.0f} to {max(rates):.0f} GB/s.",
                "caption": f"{p.name} ({state}): each link once. One peak is a healthy population; what lies apart is in the table above.",
            }
        )
    return figures


def _histogram(rates: Sequence[float], heading: str) -> str:
    with matplotlib_settings({**style(), "svg.hashsalt": "xstage-fleet"}):
        figure: Figure = new_figure(6.4, 2.6)
        axes = figure.subplots()
        axes.hist(rates, bins=80, color="0.65", edgecolor="0.25", linewidth=0.4)
        axes.set_yscale("log")
        axes.set(xlabel="drain rate R of a link (GB/s)", ylabel="links")
        figure.text(0.012, 0.985, heading, va="top", fontsize=8)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return data_url(out.getvalue(), "png")
