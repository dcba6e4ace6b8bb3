"""Numbers that a verdict rests on, each against a small truth made by hand: another's statistic, bound or count must not pass."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from made_rows import BASE, CLOCK, COST, RATE, SIZES, fit, rows_of, sweep

from xstage_bench.judge.check import criticise
from xstage_bench.judge.fleet.reading import METRICS, NodeLinks
from xstage_bench.judge.fleet.screen import screen_nodes
from xstage_bench.judge.yardstick import marks
from xstage_bench.model.document import Model
from xstage_bench.model.predict import predict
from xstage_bench.model.validate import validate
from xstage_bench.record.manifest import Manifest
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Node, PairLink

#: Relative errors whose median, p90 and p95 are far apart.
ERRORS = np.concatenate([np.linspace(0.01, 0.10, 34), [0.20, 0.25, 0.30, 0.5, 0.6, 0.8]])


@pytest.fixture(scope="module")
def model() -> Model:
    return fit(sweep())


def test_held_out_errors_are_the_quantiles_that_they_are_called(model: Model) -> None:
    """One burst a schedule, so that the time line's errors are the bursts'. Measured is 1/(1 + e) of predicted, or 1/(1 - e)."""
    parts = []
    for i, error in enumerate(ERRORS):
        one = Schedule((Burst((40 + i) * 512),), 132)
        predicted = predict(model, one).issue_cycles
        parts += [rows_of(one, "holdout", predicted / (1 + (-1) ** i * error), [0.0], repetition=r) for r in range(3)]
    found = next(m for m in validate(model, pd.concat(parts, ignore_index=True)).models if m.model == "burst_gap")
    issue, total = found.issue_time, found.total_time
    quantiles = np.quantile(ERRORS, [0.5, 0.9, 0.95])
    assert [issue.median_error, issue.p90_error, issue.p95_error] == pytest.approx(quantiles, rel=1e-6)
    assert [total.median_error, total.p95_error] == pytest.approx(quantiles[[0, 2]], rel=1e-6)


def test_errors_of_the_periodic_law_are_the_quantiles_that_they_are_called(model: Model) -> None:
    parts = [sweep()]
    for i, error in enumerate(ERRORS):
        gap = 10 * i
        train = Schedule((Burst(64 * 512),) + (Burst(64 * 512, gap),) * 15, 132, start="free")
        steady = max(BASE + COST * 64, 132 * 64 * 512 / RATE * CLOCK / 1e3 - gap) / (1 - error)
        issue = np.full(16, steady)
        start = np.concatenate([[0.0], np.cumsum(issue + gap)[:-1]]) * 1e3 / CLOCK
        parts.append(rows_of(train, "periodic", issue, start))
    (law,) = validate(model, pd.concat(parts, ignore_index=True)).periodic_law
    assert law.n_points == ERRORS.size
    assert [law.median_error, law.p90_error] == pytest.approx(np.quantile(ERRORS, [0.5, 0.9]), abs=0.01)


def test_repetitions_are_those_of_the_scarcest_size() -> None:
    samples = sweep(repetitions=5)
    scarce = samples[~((samples["bytes"] == 16 * 512) & (samples["process"] == 1) & (samples["repetition"] >= 2))]
    assert fit(samples).pairs[0].burst_gap[0].repetitions == 15
    assert fit(scarce).pairs[0].burst_gap[0].repetitions == 12


def test_errors_of_the_fit_are_the_quantiles_that_they_are_called() -> None:
    """What a knee cannot follow: single sizes that are off by their own error, both ways."""
    entry = fit(sweep()).pairs[0].burst_gap[0]
    bent = sweep()
    for i, n in enumerate(SIZES[-8:]):
        bent.loc[bent["bytes"] == n * 512, "issue_mean_cycles"] *= 1 + (-1) ** i * 0.03 * (i + 1)
    worse = fit(bent).pairs[0].burst_gap[0]
    assert entry.p95_error < 0.02
    assert worse.median_error < worse.p90_error < worse.p95_error <= 0.3


@pytest.mark.parametrize(("slow", "fast"), [(4, 8), (8, 4)])
def test_sustained_r_is_the_largest_over_warp_counts(slow: int, fast: int) -> None:
    """A warp count that does not fill the link says nothing about it."""
    parts = [sweep()]
    for warps, rate in ((slow, 150.0), (fast, 190.0)):
        long = Schedule((Burst(4096 * warps * 512),), 4, warps)
        issue = 4 * 4096 * warps * 512 / rate * CLOCK / 1e3
        parts += [rows_of(long, "sustained", [issue], [0.0], process=p) for p in range(3)]
    drain = {d.producers: d for d in fit(pd.concat(parts, ignore_index=True)).pairs[0].drain}
    assert drain[4].sustained.value == pytest.approx(190, rel=1e-6)


def manifest(**facts: Any) -> Any:
    known = {"complete": True, "failed_pairs": {}, "simulated": False, "backend": "made", "link_error_deltas": None}
    known |= {"kernels": [], "options": {}}
    known |= {
        "stopping": None,
        "node": Node((SimpleNamespace(name="NVIDIA H200", index=0, uuid=None, sm_count=132),), ((0, 1),), 32.0),
        "environment_before": None,
        "environment_after": None,
    }
    return SimpleNamespace(**{**known, **facts})


@pytest.mark.parametrize("counter", ["replay", "recovery", "crc"])
def test_check_names_every_kind_of_link_error(counter: str) -> None:
    none = {"replay": 0, "recovery": 0, "crc": 0}
    risen = {"GPU-1": {**none, counter: 2, "links": {"7": {counter: 2}}}, "GPU-2": {**none, "links": {}}}
    found = found_by_check(sweep(), link_error_deltas=risen)["link errors"]
    assert not found.startswith("ok")
    assert f"GPU-1: 2 {counter}" in found
    assert "link errors" not in found_by_check(sweep(), link_error_deltas={"GPU-1": {**none, "links": {}}})


def found_by_check(rows: pd.DataFrame, **facts: Any) -> dict[str, str]:
    run: Any = SimpleNamespace(manifest=manifest(**facts), samples=lambda: rows.assign(order=0), changed=list)
    return {f.check: f"{f.status}: {f.detail}" for f in criticise(run, None)}


def test_check_says_the_same_of_rows_as_a_run_has_them() -> None:
    """A part's words are categories, of which one pair or probe has some: what it lacks is no execution of it."""
    rows = sweep(repetitions=4)
    words = rows.astype(dict.fromkeys(("schedule", "probe", "kind", "flavour", "layout", "start", "status"), "category"))
    for name in ("schedule", "probe", "status"):
        words[name] = words[name].cat.add_categories([f"other {i}" for i in range(99)])
    assert found_by_check(words) == found_by_check(rows)
    assert "ok: 12 executions" in found_by_check(words)["repetitions"]


def test_check_says_no_number_of_what_one_process_cannot_show() -> None:
    found = found_by_check(sweep().query("process == 0"))
    assert "1 process" in found["repetitions"]
    assert not [detail for detail in found.values() if "nan" in detail.lower()]


def link_of(name: str, **facts: Any) -> NodeLinks:
    gpus = [SimpleNamespace(name="made", sm_count=132)] * 2
    node = SimpleNamespace(gpus=gpus, line_rate_gb_per_s=478.0)
    known = {**vars(manifest()), "node": node, "counts": {}, **facts}
    one = np.array([0, 1])
    values = {metric: np.array([370.0, 371.0]) for metric in METRICS}
    return NodeLinks(name, cast(Manifest, SimpleNamespace(**known)), one, one[::-1], values, np.array([5, 6]))


def test_a_fleet_counts_what_was_dropped_and_what_its_links_repeated() -> None:
    """Warm-ups are never kept, so they are not dropped either."""
    counts = {"schedules": 7, "status_ok": 90, "status_throttled": 6, "status_timeout": 4, "status_warmup": 900}
    errors = {"a": {"replay": 1, "recovery": 2, "crc": 4, "links": {}}, "b": {"replay": None, "recovery": 8, "crc": None, "links": {}}}
    fleet = screen_nodes("x", [link_of("worse", counts=counts, link_error_deltas=errors), link_of("unknown")])
    rows = {n.node: n for n in fleet.nodes}
    assert (rows["worse"].dropped_share, rows["worse"].link_errors) == (pytest.approx(0.1), 15)
    assert (rows["unknown"].dropped_share, rows["unknown"].link_errors) == (None, None)
    assert dataclasses.asdict(rows["worse"])["drain_gb_per_s"] == 370.5
    assert sorted((row.node, row.pair, row.rows) for row in fleet.links) == [
        ("unknown", "0>1", 5), ("unknown", "1>0", 6), ("worse", "0>1", 5), ("worse", "1>0", 6),
    ]  # fmt: skip


def node_of(gpu: str, line: float | None, simulated: bool = False) -> Any:
    gpus = [SimpleNamespace(name=gpu + " (simulated)" * simulated)] * 2
    return manifest(node=Node(gpus, ((0, 1),), 32.0, line), simulated=simulated)  # type: ignore[arg-type]


@pytest.mark.parametrize("simulated", [False, True])
def test_what_a_rate_is_held_against(model: Model, simulated: bool) -> None:
    """All that is known of the kind of GPU, of its link alone; what this run has measured is never called measured elsewhere."""
    pair = model.pairs[0]
    own = "simulated" if simulated else "measured"
    found = {m.name: m for m in marks(pair, node_of("NVIDIA H200", 478.1, simulated))}
    assert {name: m.origin for name, m in found.items()} == {
        "raw link": own, "nominal": "datasheet", "payload limit": "computed", "achieved": own, "copy engine": "measured elsewhere",
        "reference node": "measured elsewhere",
    }  # fmt: skip
    assert found["achieved"].gb_per_s == pytest.approx(RATE, rel=0.01)
    assert found["payload limit"].gb_per_s == pytest.approx(478.1 / 1.12)
    assert found["reference node"].gb_per_s == pytest.approx(370, rel=0.02)
    rates = [m.gb_per_s for m in marks(pair, node_of("NVIDIA H200", 478.1))]
    assert rates == sorted(rates, reverse=True)
    assert "assumed: measured on H200" in next(
        m.meaning for m in marks(pair, node_of("NVIDIA H100 80GB HBM3", 478.1)) if m.name == "payload limit"
    )


@pytest.mark.parametrize(
    ("gpu", "line", "names"),
    [
        ("NVIDIA H200", None, {"achieved"}),
        ("NVIDIA H200", 478.1 * 0.97, {"achieved", "raw link"}),
        ("NVIDIA H200", 478.1 * 1.03, {"achieved", "raw link"}),
        ("NVIDIA Unknown", 478.1, {"achieved", "raw link"}),
        ("NVIDIA H100 80GB HBM3", 478.1 * 0.99, {"achieved", "raw link", "payload limit", "nominal", "copy engine"}),
    ],
)
def test_what_is_not_known_of_a_link_is_not_shown(model: Model, gpu: str, line: float | None, names: set[str]) -> None:
    assert {m.name for m in marks(model.pairs[0], node_of(gpu, line))} == names
    assert marks(dataclasses.replace(model.pairs[0], burst_gap=[], drain=[]), node_of(gpu, line)) == []


def test_a_pair_is_held_against_its_own_links(model: Model) -> None:
    """Six direct links of eighteen, and a whole pair beside them: each has its own line rate and payload limit, none the other's."""
    six, whole = 6 * 26.562, 18 * 26.562
    for pair, line, nominal in (("0>1", six, False), ("0>2", whole, True)):
        judged = node_of("NVIDIA H200", 478.1)
        judged.node = dataclasses.replace(judged.node, pair_links={"0>1": PairLink(6, six), "0>2": PairLink(18, whole)})
        found = {m.name: m.gb_per_s for m in marks(dataclasses.replace(model.pairs[0], pair=pair), judged)}
        assert found["raw link"] == pytest.approx(line)
        assert found["payload limit"] == pytest.approx(line / 1.12)
        assert ("nominal" in found) is nominal
    assert judged.node.line_rate("1>0") is None, "not known, though the node has a rate"


def test_errors_of_another_tenant_are_not_of_this_run() -> None:
    """GPU 2 is hidden from the run, and link 3 of GPU 0 leads to it: their errors are left out, those of link 4 are not."""
    links = [{"link": n, "remote_type": "gpu", "remote_pci_address": far} for n, far in ((3, "c"), (4, "b"))]
    gpus = [{"uuid": f"GPU-{a}", "pci_address": a, "index": i, "links": links} for a, i in (("a", 0), ("b", 1), ("c", None))]
    gpus[2]["clock_event_reasons"] = ["hw_slowdown"]
    bad = {"replay": 7, "recovery": None, "links": {"3": {"replay": 7}}}
    facts = {"environment_after": {"gpus": gpus}, "options": {"pairs": None}}
    assert not {"link errors", "GPU None clocks"} & set(found_by_check(sweep(), link_error_deltas={"GPU-a": bad, "GPU-c": bad}, **facts))
    mixed = {"replay": 9, "recovery": None, "links": {"3": {"replay": 7}, "4": {"replay": 2}}}
    assert "GPU-a: 2 replay during the run, links 4" in found_by_check(sweep(), link_error_deltas={"GPU-a": mixed}, **facts)["link errors"]
    hot = {"gpus": [gpus[0] | {"clock_event_reasons": ["hw_slowdown"]}]}
    assert "GPU 0 clocks" in found_by_check(sweep(), **{**facts, "environment_after": hot})
