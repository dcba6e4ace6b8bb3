"""A fleet: every planted fault is found once and at its level, nothing else; what cannot be read or compared is said."""

from __future__ import annotations

import dataclasses
import html
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.judge.fleet.outliers import DEVIATIONS, judge
from xstage_bench.judge.fleet.reading import NodeLinks, Unreadable, grouped_medians, read_fleet
from xstage_bench.judge.fleet.screen import screen, screen_nodes
from xstage_bench.record.manifest import Manifest, load_manifest, save_manifest
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.show.fleet_page import write_fleet

BENCH = runpy.run_path(str(Path(__file__).parents[1] / "claims" / "fleet_speed.py"))
NODES = 16


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """A small version of tests/claims/fleet_speed.py: 16 nodes of 56 pairs with six planted faults and a damaged run."""
    folder = tmp_path_factory.mktemp("fleet") / "runs"
    planted, broken = BENCH["make_fleet"](folder, NODES)
    return folder, planted, broken


def test_exactly_the_planted_faults_are_found(fleet: tuple[Path, Any, str], tmp_path: Path) -> None:
    folder, planted, broken = fleet
    files = write_fleet(screen(folder), tmp_path)
    document = json.loads(files["json"].read_text())
    assert BENCH["missed"](document, planted, broken) == []
    assert document["simulated"] is True
    assert len(document["nodes"]) == NODES - 1
    assert document["nodes"][0]["node"] == "node0001", "the slow node is at the top"
    assert document["nodes"][0]["rank"] == NODES - 1
    assert len(document["links"]) == 56 * (NODES - 1)
    for d in document["outliers"]:
        true = next(p for p in planted if f"node{p.node:04d}" == d["node"])
        assert d["change"] == pytest.approx(true.factor - 1, abs=0.02)
        assert d["worse"]


def test_the_page_is_verdict_first_and_labelled(fleet: tuple[Path, Any, str], tmp_path: Path) -> None:
    page = html.unescape(write_fleet(screen(fleet[0]), tmp_path)["page"].read_text())
    assert "SIMULATED" in page
    assert page.index("link 2>6: R -") < page.index("Populations</h2>") < page.index("How it was judged</h2>")
    assert "<script" not in page


def copy_node(fleet: tuple[Path, Any, str], number: int, to: Path, **change: Any) -> None:
    shutil.copytree(fleet[0] / f"node{number:04d}", to)
    if change:
        save_manifest(to, dataclasses.replace(load_manifest(to), **change))


def test_simulated_and_measured_nodes_are_never_one_population(fleet: tuple[Path, Any, str], tmp_path: Path) -> None:
    copy_node(fleet, 0, tmp_path / "rack1" / "a")
    copy_node(fleet, 0, tmp_path / "rack1" / "b", backend="cuda", simulated=False)
    found = screen(tmp_path)
    assert [(p.simulated, p.nodes) for p in found.populations] == [(False, 1), (True, 1)]
    assert {n.node for n in found.nodes} == {"rack1/a", "rack1/b"}


def test_runs_that_say_nothing_are_named_and_cost_no_other(fleet: tuple[Path, Any, str], tmp_path: Path) -> None:
    copy_node(fleet, 0, tmp_path / "good", failed_pairs={"0>1": "stores are lost"}, complete=False)
    copy_node(fleet, 0, tmp_path / "empty")
    (tmp_path / "empty" / "samples" / "part-0000.parquet").unlink()
    copy_node(fleet, 0, tmp_path / "cut")
    part = tmp_path / "cut" / "samples" / "part-0000.parquet"
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    copy_node(fleet, 0, tmp_path / "bad")
    (tmp_path / "bad" / "manifest.json").write_text("{")
    found = screen(tmp_path)
    assert set(found.unreadable) == {"empty", "cut", "bad"}
    assert all(found.unreadable.values())
    (node,) = found.nodes
    assert node.failed_pairs == {"0>1": "stores are lost"}
    assert not node.complete
    assert "1 node with pairs that failed" in found.verdict
    assert "1 node are no population" in found.verdict


def made(name: str, by: float, **facts: Any) -> NodeLinks:
    """A node of two GPUs at `by` of the usual drain rate."""
    node = Node(tuple(Gpu(i, "NVIDIA H200", tuple(range(132)), 1980.0) for i in range(2)), ((0, 1), (1, 0)), 32.0, 478.1)
    manifest = Manifest(backend="cuda", simulated=False, node=node)
    values = {"drain_gb_per_s": np.array([369.0, 370.0]) * by, "capacity_bytes": np.full(2, 2.4e6), "issue_ns": np.full(2, 112.0)}
    return NodeLinks(name, manifest, np.array([0, 1]), np.array([1, 0]), values | facts.pop("values", {}), np.array([9, 9]), **facts)


@pytest.mark.parametrize(
    ("members", "judged", "words"),
    [
        ([made("a", 1.0), made("b", 0.5)], False, "drain_gb_per_s of b is 50 % of that of a"),
        ([made("a", 1.0), made("b", 1.0), made("c", 0.5)], False, "3 nodes are no population: 4 are needed"),
        ([made("a", 0.5)], False, "drain_gb_per_s of a is 50 % of that of the reference node h200-nv18"),
        ([made(n, 1.0) for n in "abcd"], True, "nothing stands out"),
        ([*(made(n, 1.0) for n in "abc"), made("d", 0.5)], True, "1 outlier for the worse on 1 node"),
        ([*(made(n, 1.0) for n in "abc"), made("d", np.nan)], False, "no drain rate of d"),
        ([made(n, 1.0, values={"capacity_bytes": np.full(2, np.nan)}) for n in "abcd"], False, "capacity_bytes: 0 links are no population"),
        ([*(made(n, 1.0) for n in "abc"), made("d", 1.0, impossible=7)], True, "7 rows that cannot be were left out"),
        ([*(made(n, 1.0) for n in "abc"), made("d", 1.0, changed=("samples/part-0000.parquet",))], True, "1 run with files changed"),
    ],
)
def test_too_few_to_judge_is_not_judged(members: list[NodeLinks], judged: bool, words: str) -> None:
    found = screen_nodes("x", members)
    assert words in found.verdict
    assert (found.populations[0].not_judged == []) == judged
    assert ("not judged" in found.verdict) != judged
    if len(members) < 4:
        assert "the reference node h200-nv18" in found.verdict


def test_reading_agrees_with_the_manifest(fleet: tuple[Path, Any, str]) -> None:
    read = list(read_fleet(fleet[0]))
    assert sum(isinstance(r, Unreadable) for r in read) == 1
    for one in read:
        if isinstance(one, NodeLinks):
            assert one.rows.sum() == one.manifest.counts["status_ok"]
            assert np.isfinite(np.concatenate(list(one.values.values()))).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(-1e6, 1e6)), max_size=60))
def test_grouped_medians_are_those_of_numpy(rows: list[tuple[int, int, float]]) -> None:
    first, second, values = (np.array([r[i] for r in rows], dtype=kind) for i, kind in enumerate((np.int64, np.int64, float)))
    columns, count, (medians,) = grouped_medians([first, second], (values,))
    found = {(int(a), int(b)): float(m) for a, b, m in zip(*columns, medians, strict=True)}
    assert count.sum() == len(rows)
    assert found == pytest.approx({(a, b): float(np.median(values[(first == a) & (second == b)])) for a, b, _ in rows})


def grid(nodes: int, gpus: int) -> tuple[Any, Any, Any]:
    each = [(n, s, d) for n in range(nodes) for s in range(gpus) for d in range(gpus) if s != d]
    return tuple(np.array(column) for column in zip(*each, strict=True))


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.02, 0.1])
def test_a_noisy_population_raises_no_alarm(spread: float) -> None:
    node, source, destination = grid(40, 8)
    found = judge(node, source, destination, 370 * np.exp(spread * np.random.default_rng(3).standard_normal(node.size)))
    assert found is not None
    assert found.outliers == []


def test_a_tenth_of_bad_links_does_not_hide_itself() -> None:
    rng = np.random.default_rng(4)
    node, source, destination = grid(20, 8)
    bad = rng.random(node.size) < 0.1
    found = judge(node, source, destination, 370 * np.exp(0.004 * rng.standard_normal(node.size)) * np.where(bad, 0.8, 1.0))
    assert found is not None
    links = {(o.node, o.source, o.destination) for o in found.outliers if o.level == "link"}
    true = set(zip(node[bad].tolist(), source[bad].tolist(), destination[bad].tolist(), strict=True))
    assert len(true - links) <= 0.05 * len(true)
    assert all(abs(o.score) > DEVIATIONS for o in found.outliers)


def test_pairs_of_two_gpus_are_links_and_too_few_are_no_population() -> None:
    node, source, destination = grid(6, 2)
    values = np.full(node.size, 370.0)
    values[3] = 300.0
    found = judge(node, source, destination, values)
    assert found is not None
    assert {o.level for o in found.outliers} <= {"node", "link"}
    assert any(o.node == 1 for o in found.outliers)
    assert judge(node[:3], source[:3], destination[:3], values[:3]) is None
    assert judge(node, source, destination, np.full(node.size, np.nan)) is None
