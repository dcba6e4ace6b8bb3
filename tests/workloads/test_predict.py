"""A workload's prediction: sums over phases, advice that never costs, names and layouts refused."""

from __future__ import annotations

import json

import h200
import pytest

from xstage_bench.errors import UsageError
from xstage_bench.io.json_file import encode_json
from xstage_bench.model.document import load_model
from xstage_bench.workloads import predict_workload, workloads
from xstage_bench.workloads.predicted import COLUMNS

MODEL = load_model(h200.MODEL)


@pytest.fixture(scope="module")
def keye():
    known = {}
    found = predict_workload(MODEL, "keye-vl-2", ep=8, sp=4, context=4096, known=known)
    return found, known


def test_layer_and_pass_are_sums_over_the_phases(keye):
    found, known = keye
    assert set(known) == {p.schedule for p in found.phases if p.schedule}
    before = dict(known)
    assert predict_workload(MODEL, "keye-vl-2", ep=8, sp=4, context=4096, known=known) == found
    assert known == before, "known phases are not predicted again"
    assert found.layer_ns == pytest.approx(sum(p.total_ns for p in found.phases[2:]))
    assert found.pass_ns == pytest.approx(48 * found.layer_ns + sum(p.total_ns for p in found.phases[:2]))
    assert found.advised_pass_ns < found.pass_ns
    for p in found.phases:
        assert p.advised_ns <= p.total_ns
        assert p.total_ns == pytest.approx(p.compute_ns + p.stores_ns + (p.pull_bytes and p.link_ns))
        assert p.backpressure == (p.stalled_share > 0)
        assert (p.schedule is None) == (p.remote_bytes == 0)
    experts = next(p for p in found.phases if p.name == "experts")  # they stall, and interleaving helps
    assert experts.backpressure
    assert experts.remote_bytes == 1024 * 8 * 2048 * 2 * 7 // 8
    assert experts.burst_bytes == 28672
    assert "interleaved, lead" in experts.advice
    assert 1.08 < experts.total_ns / experts.advised_ns < 1.3


def test_the_document_is_strict_and_says_what_is_assumed(keye):
    document = json.loads(encode_json(keye[0].document()))
    assert document["status"] == "predicted"
    assert {p["name"] for p in document["phases"]} == {"vision", "reshard", "qkv", "select", "attention", "output", "dispatch", "experts"}
    assert any("assumed" in note for note in document["notes"])
    assert any("emulated" in note for note in document["notes"])
    assert all(len(row) == len(COLUMNS) for row in keye[0].rows())
    assert "EP 8 x SP 4" in keye[0].summary()


def test_one_layer_and_one_attention():
    names = workloads()
    assert len(names) == len(set(names)) > 30
    moe = predict_workload(MODEL, "dit-moe-xl", ep=4, tokens_per_rank=256)
    assert [p.name for p in moe.phases] == ["dispatch", "experts"]
    assert moe.pass_ns == pytest.approx(28 * moe.layer_ns)
    attention = predict_workload(MODEL, "flux.1-1024", sp=8)
    assert [p.name for p in attention.phases] == ["attention"]
    alone = predict_workload(MODEL, "flux.1-1024", ep=1, sp=1)
    assert alone.phases[0].remote_bytes == 0
    assert not alone.phases[0].backpressure
    assert alone.phases[0].stores_ns < 0.01 * alone.phases[0].total_ns  # issuing to local memory


def test_decoding_is_limited_by_memory():
    found = predict_workload(MODEL, "keye-vl-2", ep=8, sp=1, context=131072, mode="decode", dtype="fp8")
    assert not any(p.backpressure for p in found.phases)
    weights = 16 * 3 * 2048 * 768
    experts = next(p for p in found.phases if p.name == "experts")
    assert experts.compute_ns > weights / 4072  # no faster than its weights arrive


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "keye"}, "did you mean 'keye-vl-2'"),
        ({"workload": "gpt-2"}, "no workload 'gpt-2'"),
        ({"sp": 8}, "above the 4 key-value heads"),
        ({"ep": 5}, "EP 5 does not divide"),
        ({"context": 1 << 20}, "262144"),
        ({"workload": "wan-1.3b-480p", "sp": 8}, "does not divide the 12 heads"),
        ({"workload": "hidream-i1"}, "EP 8 does not divide the 4 experts"),
        ({"pair": "0>7"}, "no pair 0>7"),
        ({"mode": "distill", "feedback": "loss"}, "unknown feedback"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        predict_workload(MODEL, **{"workload": "keye-vl-2", **change})
