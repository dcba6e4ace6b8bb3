"""What must hold of every recording that a finding rests on, beyond the numbers and bars of claims.toml."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pytest
from alike import assert_alike
from check_claims import ROOT
from node_scores import score_node
from numpy.typing import NDArray
from onsets import onset_readings
from recordings import HERE, PATHS, Row, document
from tables import load

from xstage_bench.judge.compare import Side, compare, load_reference, load_side
from xstage_bench.measure.probe import load_probes
from xstage_bench.measure.stamps.bursts import COMPUTE, parts_of
from xstage_bench.measure.stamps.layout import read_stamps
from xstage_bench.measure.stamps.record import read_traces
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import load_model, load_validation
from xstage_bench.model.node.data import measured
from xstage_bench.model.node.entry import calibrate_node, model_of
from xstage_bench.model.node.infer import infer_placement
from xstage_bench.model.node.packed import pack
from xstage_bench.model.node.placement import adjusted_rand_index
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.predict import predict
from xstage_bench.model.run_fit import find_model, fit_run, usable_samples
from xstage_bench.model.tasks.costs import PASSED_BYTES, REACH_CYCLES
from xstage_bench.record.reader import Run, load_run
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.flavour import FLAVOURS

pytestmark = HERE
REMOTE = ("0>1", "1>0")


# A run folder


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(PATHS["profile"])


@pytest.mark.parametrize("section", ["profile", "flavours", "fences", "placement", "sleep", "host_model"])
def test_a_recorded_run_is_measured_complete_and_clean(section: str) -> None:
    m = load_run(PATHS[section]).manifest
    assert (m.backend, m.simulated, m.complete, m.failed_pairs) == ("cuda", False, True, {})
    assert m.counts["status_corrupt"] == m.counts["status_timeout"] == 0
    assert m.counts["status_throttled"] < 0.005 * m.counts["executions"]
    assert all(d["replay"] == d["recovery"] == d["crc"] == 0 for d in (m.link_error_deltas or {}).values())


def test_the_sentinel_did_not_drift(run: Run) -> None:
    samples = run.samples()
    sentinel = samples.loc[samples["kind"] == "sentinel", "issue_mean_cycles"]
    assert len(sentinel) > 100
    assert sentinel.std() / sentinel.mean() < 0.01


def test_the_fit_reproduces_the_recorded_model(run: Run) -> None:
    """Within a twentieth of every interval: whatever the CPU, numpy and scipy that it was first fitted with."""
    recorded = find_model(run.folder)
    assert {p.holdout.status for p in recorded.pairs if p.holdout is not None} == {"pass"}
    assert_alike(replace(recorded, pairs=[replace(p, holdout=None) for p in recorded.pairs]), fit_run(run))  # which judges nothing


@pytest.mark.parametrize("pair", REMOTE)
def test_onset_recovery_and_transients(run: Run, pair: str) -> None:
    """What falls short: the onset of 32 SMs, and trains close to V/R."""
    entry = entry_of(next(p for p in find_model(run.folder).pairs if p.pair == pair))
    assert entry is not None
    source, destination = (int(x) for x in pair.split(">"))
    found = onset_readings(model_of(entry), measured(run.samples(), source, destination, ["onset"]))
    recovery = [f for f in found if f.what == "recovery" and f.measured is not None]
    assert len(recovery) >= 4
    assert all(f.within for f in recovery)
    assert {f.producers for f in found if f.what == "onset" and f.within} >= {64, 132}
    trains = [f.within for f in found if f.what == "transient" and f.factor is not None and 0.74 <= f.factor <= 0.95]
    assert sum(map(bool, trains)) >= 0.8 * len(trains) > 0


def test_merging_units_costs_little_on_the_recorded_hold_out(run: Run) -> None:
    """At most 0.3 percentage points in the median of a burst's error, 1 in its p90."""
    model, samples = find_model(run.folder), run.samples()
    for source, destination in ((0, 1), (1, 0)):
        held = measured(samples, source, destination, ["holdout"])
        entry = next(e for p in model.pairs if p.pair == f"{source}>{destination}" and (e := entry_of(p)) is not None)
        found = [predict_node(model_of(entry), held.schedules, sm_clock_mhz=held.sm_clock_mhz, exact=e) for e in (True, False)]
        real = (held.issue_cycles > 0) & (pack(held.schedules).bytes > 0)
        errors = [np.abs(p.issue_cycles / held.issue_cycles - 1)[real] for p in found]
        grows = [np.quantile(errors[1], q) - np.quantile(errors[0], q) for q in (0.5, 0.9)]
        assert grows[0] < 0.003
        assert grows[1] < 0.01


def registered_map() -> NDArray[np.int64]:
    """The unit of each SM as the probe of choices has it: of the dies of 2026-11-29."""
    first, second = load_probes()["choice"].schedules.__globals__["halves"]("NVIDIA H200", range(132))
    expected = np.zeros(132, dtype=np.int64)
    for i, unit in enumerate([*first, *second]):
        expected[list(unit)] = i
    return expected


@pytest.mark.parametrize("section", ["profile", "flavours"])
@pytest.mark.parametrize("gpu", [0, 1])
def test_the_map_of_units_is_what_each_recorded_die_shows(section: str, gpu: int) -> None:
    recorded = load_run(PATHS[section])
    found = infer_placement(recorded.samples(), recorded.producers(), gpu)
    assert adjusted_rand_index(found.unit_of(np.arange(132)), registered_map()) > 0.90, "a pair or two of SMs differ on some dies"
    assert found.stability is not None
    assert found.stability > 0.99


def test_the_shipped_reference_compares_with_its_own_recording() -> None:
    done = compare(load_reference("h200-nv18"), load_side(PATHS["profile"]))
    assert done.verdict == "same"
    assert {d.change for d in done.differences} == {0.0}


def test_ten_real_runs_of_one_node_are_the_same() -> None:
    """45 comparisons of ten runs; fitted here from their samples."""
    runs = [load_run(p) for p in sorted((ROOT / "results" / "h200-x2").glob("same-node/run*"))]
    assert len(runs) == 10
    fitted = [
        Side(r.name, calibrate(usable_samples(r), backend="cuda", gpu="NVIDIA H200", sm_clock_mhz=1980.0, resamples=40), r.manifest)
        for r in runs
    ]
    found = [compare(a, b) for a, b in itertools.combinations(fitted, 2)]
    assert {c.verdict for c in found} == {"same"}
    assert {len(c.differences) for c in found} == {6}


# Flavours, fences, visibility, company


def test_the_node_model_predicts_every_flavour() -> None:
    scores = [s for s in load_validation(PATHS["flavours"] / "validation.json.gz").models if s.model == "node"]
    assert {s.flavour for s in scores} >= {"st.v4", "st.b32", "red.v4.f32", "bulk.2048", "tensor.8192"}
    missed = {s.flavour for s in scores if not 0 < (s.issue_time.median_error or 1) <= 0.05}
    assert missed <= {"tensor.16384"}, "the one that missed 5 % once, by bursts that fill a queue of copies exactly"
    assert all(0 < (s.total_time.median_error or 1) <= 0.03 for s in scores)


def test_a_flavour_can_be_fitted_again() -> None:
    run = load_run(PATHS["flavours"])
    kept = find_model(run.folder).find("0>1", "bulk.2048")
    assert kept is not None
    assert kept.node_basis is not None
    samples, smids = run.samples(), np.array(run.manifest.node.gpus[0].smids)
    entry = calibrate_node(samples, run.producers(), 0, 1, smids, flavour="bulk.2048", placement=kept.node_basis.placement)
    for name, number in kept.node_basis.used.items():
        assert entry.used[name] == pytest.approx(number, rel=0.02), name
    score = score_node(model_of(entry), entry.spread, measured(samples, 0, 1, ("flavour_holdout",), "bulk.2048"))
    assert score.median_error <= 0.05


def test_the_source_is_free_before_the_bytes_have_arrived() -> None:
    rows = [r for r in document("flavours", "arrival.json.gz")["rows"] if r["part"] == "arrival"]
    assert sum(r["wrong_words"] for r in rows) == 0
    for r in rows:
        assert (r["reusable_cycles"] is not None) == FLAVOURS[r["flavour"]].bulk
        if r["reusable_cycles"] is not None:
            assert 0 < r["completed_cycles"]["median"] - r["reusable_cycles"]["median"] < 60
            assert r["visible_cycles"]["median"] > r["reusable_cycles"]["median"]


@pytest.mark.parametrize("pair", REMOTE)
def test_every_release_pays_for_the_backlog_at_the_links_rate_and_local_stores_cost_little(pair: str) -> None:
    model = fit_run(load_run(PATHS["fences"]))
    laws = {(p.pair, r.completion): r for p in model.pairs if p.flavour == "st.v4" for r in p.release if r.producers == 128}
    for completion in ("fence.gpu", "fence.acq_rel.gpu", "red.release.gpu", "st.release.gpu", "red.release.sys@warp"):
        law = laws[pair, completion]
        assert 340 < (law.drain_gb_per_s.value or 0) < 420
        assert 15e3 < (law.held_bytes.value or 0) / 128 < 21e3, "what can be outstanding is Q"
        assert (law.median_error or 1) < 0.1
    assert laws[pair, "red.release.gpu@sm"].drain_gb_per_s.status == "not_identified"
    assert (laws["0>0", "red.release.gpu"].saturated_cycles.value or 0) < 2_500


def seen(part: str, pair: str, **where: Any) -> list[Row]:
    every = document("visibility", "visibility.json.gz")["rows"]
    found = [r for r in every if r["part"] == part and r["pair"] == pair and all(r[k] == v for k, v in where.items())]
    assert found, (part, pair, where)
    return found


@pytest.mark.parametrize("pair", REMOTE)
def test_what_is_safe_to_publish_with(pair: str) -> None:
    """Lines of 128 bytes arrive whole and the controls do not; a gpu-scope release does not reach the peer."""
    assert all(r["wrong_words"] == 0 and r["status"] != "timeout" for r in document("visibility", "visibility.json.gz")["rows"])

    def torn(**where: Any) -> int:
        return sum(int(r["torn_words"]) for r in seen("torn", pair, **where))

    assert torn(format="ll128", misaligned_bytes=0) == torn(format="ll") == 0
    assert torn(format="ll128", misaligned_bytes=64) > 100_000
    assert torn(format="ll512") > 100_000
    assert sum(r["torn_words"] for r in seen("message", pair, method="release.sys")) == 0


@pytest.mark.parametrize("pair", REMOTE)
def test_what_a_flag_waits_for(pair: str) -> None:
    """Bytes under way confirm Q, a plain flag from an idle SM overtakes the backlog, and lag is paid back cycle by cycle."""
    for r in seen("curve", pair, producers=130, warps=1, bytes=256 << 10):
        held = r["plateau_bytes"]["median"] - r["drain_gb_per_s"]["median"] * r["first_ns"]["median"]
        assert 19e3 < held / 130 < 23e3
    wait = min(r["issue_cycles"]["median"] for r in seen("flag", pair, method="release.sys", producers=130))
    assert wait > 11_000
    assert max(r["round_trip_cycles"]["median"] for r in seen("flag", pair, method="relaxed", producers=130)) < 0.6 * wait
    for r in seen("lag", pair, method="release.gpu", bytes=64 << 10):
        cost = dict(zip(r["lag_cycles"], (s["median"] for s in r["publish_cycles"]), strict=True))
        assert cost[0] - cost[8_000] == pytest.approx(8_000, rel=0.15)


def scenes() -> dict[str, Row]:
    folders = {PATHS["patterns"], PATHS["patterns"].parent / "company"}
    rows = [row for folder in sorted(folders) for row in load("scenes.py").scenes(folder)]
    assert all(set(r["left_out"]) <= {"warmup"} for r in rows)
    return {r["name"]: r for r in rows}


def test_pulls_and_pushes_share_one_egress_and_local_copies_take_nothing() -> None:
    found = scenes()

    def pushed(name: str) -> float:
        return float(found[name]["schedules"][0]["gb_per_s"]["value"])

    alone = pushed("push alone")
    for sms in (4, 8, 16, 66):
        name = f"pull by {sms} SMs of 1, same egress"
        assert pushed(name) + found[name]["company"][0]["gb_per_s"]["value"] == pytest.approx(alone, rel=0.02)
    for where, what in itertools.product(("sender", "receiver"), ("HBM", "L2")):
        assert pushed(f"copy in {what} of the {where}") == pytest.approx(alone, rel=0.01)
    for gap in (1000, 4000, 8000, 16000):
        idle, busy = (found[f"32 KiB, gap {gap}, {work}"]["schedules"][0] for work in ("idle", "mma"))
        assert busy["gb_per_s"]["value"] == pytest.approx(idle["gb_per_s"]["value"], rel=0.01)
        assert busy["sm_clock_mhz"]["value"] < 0.95 * idle["sm_clock_mhz"]["value"]


# The store queue, and constants of the predictor that rest on it


def queue_rows(sms: int, stores: int, by: str = "st.v4") -> dict[str, Row]:
    rows = document("queue", "store_queue.json")["rows"]
    assert {r["wrong_words"] for r in rows} == {0}
    return {r["after_the_stores"]: r for r in rows if (r["sms"], r["stores_per_warp"], r["by"]) == (sms, stores, by)}


def test_a_read_waits_for_the_drain_of_all_but_a_few_kilobytes() -> None:
    """And one by the copy engine for that of all but `PASSED_BYTES`, with which the predictor lets operands wait."""
    reach = REACH_CYCLES.value
    for stores in (4, 8, 16, 32):
        drained = (stores * 4 * 512 - 4600) / 25.6  # one SM alone, bytes per cycle
        assert abs(queue_rows(1, stores)["global load"]["then_cycles"] - reach - drained) < 0.02 * (drained + reach)
    for stores in (8, 16, 32):  # all SMs share 190 bytes a cycle
        cycles = queue_rows(132, stores)["global load"]["then_cycles"] - reach
        assert 4e3 < stores * 4 * 512 - cycles * 190 / 132 < 8e3
    for sms, stores in ((66, 4), (66, 8), (132, 4), (132, 8)):
        by_engine = queue_rows(sms, stores)["bulk load"]["bystander_longest_cycles"] - 714
        assert 0.99 * PASSED_BYTES.low < stores * 4 * 512 - by_engine * 190 / sms < PASSED_BYTES.high


def test_who_waits_behind_what() -> None:
    for sms, stores in itertools.product((1, 132), (16, 32)):
        rows = queue_rows(sms, stores)
        taken = rows["nothing"]["fenced_cycles"]
        assert taken - max(r["stored_cycles"] for r in rows.values()) > 500  # nine warp-stores of each of four warps, 16 cycles each
        assert all(abs(rows[then]["then_cycles"] - taken) < 0.05 * taken + 100 for then in ("shuffle", "shared load", "overwrite"))
    for sms in (33, 66):
        for then, idle in (("global load", 400), ("bulk load", 730), ("shared load", 110)):
            busy, quiet = (queue_rows(sms, stores)[then] for stores in (32, 4))
            assert busy["others_longest_cycles"] < idle
            assert abs(busy["others_longest_cycles"] - quiet["others_longest_cycles"]) < 20
    plain, bulk = queue_rows(132, 32), queue_rows(132, 32, "bulk")
    assert bulk["global load"]["bystander_longest_cycles"] < 0.4 * plain["global load"]["bystander_longest_cycles"]
    assert bulk["bulk load"]["then_cycles"] > bulk["nothing"]["fenced_cycles"]


def test_a_recorded_kernel_is_predicted_from_its_tiles() -> None:
    """18 bursts of 32 KB on 132 SMs, by the model of other dies, from the compute of the tiles when nothing holds it back."""
    path = Path(h200.__file__).parent / "data" / "tiles.npz"
    (trace,) = read_traces([path])
    parts = parts_of(read_stamps(path))
    free = [int(min((p.end_clock - p.start_clock)[p.kind == COMPUTE][kind::3].min() for p in parts)) for kind in range(3)]
    found = predict(load_model(h200.MODEL), Schedule(tuple(Burst(32768, free[i % 3] if i else 0) for i in range(18)), 132, 4, start="free"))
    took = trace.end_ns[-1].mean() - trace.start_ns[0].mean()
    assert abs((found.total_ns - found.start_ns[0]) / took - 1) < 0.05
