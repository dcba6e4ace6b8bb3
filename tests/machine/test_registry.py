"""The registry of nodes: every number has a kind and a source, what is missing is scaled by a named rule, and others may add entries."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.facts import Fact, GpuFacts
from xstage_bench.machine.gpus import REFERENCE_NODE, entries, entry_names, find_entry, find_gpu, user_folder
from xstage_bench.machine.scaling import RULES, clock_of, completed_stage
from xstage_bench.model.document import load_model
from xstage_bench.model.headline import headline_entry, headline_rate

ALL = [pytest.param(e, id=name) for name, e in entries().items()]
ASKED_FOR = {
    "h200-nv18", "h100-sxm-nv18", "h100-pcie", "h800-nv8", "a800-nv8", "h20-nv18", "a100-80gb-nv12", "gh200-nv18", "b200-nv18",
    "b300-nv18", "gb200-nvl72", "rtx-pro-6000", "l40s", "x-stage-paper",
}  # fmt: skip
MINE = 'names = ["NVIDIA X1"]\nsm_count = { value = 96, status = "datasheet", source = "its sheet" }\n'


def facts_of(part: object) -> list[Fact]:
    if isinstance(part, Fact):
        return [part]
    inner = part.values() if isinstance(part, dict) else [getattr(part, n) for n in getattr(part, "__struct_fields__", ())]
    return [fact for one in inner for fact in facts_of(one)]


def test_every_node_asked_for_has_a_name():
    assert set(entries()) >= ASKED_FOR
    assert entry_names() == sorted(entries())


@pytest.mark.parametrize("entry", ALL)
def test_every_number_says_where_it_comes_from(entry):
    for fact in facts_of(entry.facts):
        assert fact.status != "scaled", "rules scale, files do not"
        assert fact.status not in ("measured", "published") or re.search(r"20\d\d|results/", fact.source), fact
        assert fact.value is None or fact.low is None or fact.high is None or fact.low <= fact.high
    assert entry.facts.stage.drain_gb_per_s.status != "measured" or entry.model_path.is_file()


@pytest.mark.parametrize("entry", ALL)
def test_what_is_missing_is_scaled_by_a_rule_with_a_name(entry):
    stage = completed_stage(entry.facts)
    for name in ("drain_gb_per_s", "sm_gb_per_s", "sm_capacity_bytes", "capacity_bytes", "t0_ns", "units"):
        own, found = getattr(entry.facts.stage, name), getattr(stage, name)
        assert found.value > 0
        assert found is own if own.value is not None else found.status == "scaled" and found.rule in RULES, name
        if found.low is not None and found.high is not None and found.status == "scaled":
            assert found.low * 0.999 <= found.value <= found.high * 1.001, name
    assert 1000 <= clock_of(entry.facts).value <= 2700


def test_the_reference_says_what_its_recording_says():
    """Recorded again, its entry has to follow."""
    entry = find_entry(REFERENCE_NODE)
    model = load_model(entry.model_path)
    pair = model.find("0>1")
    whole, stage = headline_entry(pair), entry.facts.stage
    found = {
        "drain_gb_per_s": headline_rate(pair)[0].value,
        "sm_gb_per_s": min(pair.drain, key=lambda d: d.producers).makespan.value,
        "sm_capacity_bytes": whole.capacity_bytes_per_producer.value,
        "t0_ns": whole.t0_cycles.value * 1e3 / model.sm_clock_mhz,
        "units": len(pair.node_basis.placement.units),
    }
    assert {name: getattr(stage, name).value for name in found} == pytest.approx(found, rel=0.005)


def test_the_rules_by_hand():
    h200, h800, l40s = (find_entry(n).facts for n in (REFERENCE_NODE, "h800-nv8", "l40s"))
    assert completed_stage(h800).drain_gb_per_s.value == pytest.approx(h200.stage.drain_gb_per_s.value * 200 / 450)
    assert completed_stage(l40s).drain_gb_per_s.value == pytest.approx(h200.link.host_gb_per_s.value / 2)
    assert completed_stage(l40s).t0_ns.value == pytest.approx(h200.stage.t0_ns.value * 1980 / 2520)
    assert completed_stage(find_entry("gb200-nvl72").facts).sm_capacity_bytes.value == 30 * 1024, "the capacity of its own generation"
    assert completed_stage(GpuFacts(names=())).drain_gb_per_s.status == "unknown", "no nominal rate: nothing is guessed"
    for bad in ({"status": "scaled", "value": 1.0}, {"status": "measured", "value": 1.0, "rule": "cycles"}):
        with pytest.raises(ValueError, match="names its rule"):
            Fact(source="x", **bad)


def test_a_user_and_another_package_add_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_folder().mkdir(parents=True)
    (user_folder() / "mine.toml").write_text(MINE)
    (user_folder() / "h200-nv18.toml").write_text(MINE)
    package = tmp_path / "more_nodes"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('its code is not run')\n")
    (package / "theirs.toml").write_text(MINE.replace("X1", "X2"))
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.metadata.EntryPoint("vendor", "more_nodes", "xstage_bench.nodes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [point] if group == point.group else [])
    assert [(n, find_entry(n).origin) for n in ("mine", "theirs", "h200-nv18")] == [
        ("mine", "user"), ("theirs", "vendor"), ("h200-nv18", "package")
    ]  # fmt: skip
    assert find_gpu("NVIDIA X2").sm_count.value == 96
    (user_folder() / "mine.toml").write_text(MINE + "sm_cuont = 3\n")
    with pytest.raises(DataError, match=r"mine\.toml.*sm_cuont"):
        find_entry("mine")
    assert find_entry("h200-nv18").facts.names == ("NVIDIA H200",), "a broken file of the user costs no other node"
    (user_folder() / "mine.toml").unlink()
    with pytest.raises(UsageError, match="no node 'x'"):
        find_entry("x")
