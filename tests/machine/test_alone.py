"""Each call of NVML that the code makes fails alone: what it would have said is null with a reason, and all the rest stays."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, NVMLError

import xstage_bench.machine
from xstage_bench.cli import run as xstage
from xstage_bench.errors import WAIVED
from xstage_bench.judge.limits import GPU, NODE
from xstage_bench.judge.of_run import deltas_of_run, facts_of_run
from xstage_bench.machine.environment import link_error_deltas, snapshot
from xstage_bench.machine.topology import read_topology
from xstage_bench.record.manifest import Manifest, load_manifest, save_manifest
from xstage_bench.schedule.device import Gpu, Node
from xstage_bench.show.report_tables import gpu_table

ROOM = Path(xstage_bench.machine.__path__[0])
CALLS = sorted({name for path in ROOM.glob("*.py") for name in re.findall(r"\bnvml(?:System|Device)[A-Z]\w+", path.read_text())})
#: Without these nothing is known of any GPU.
VITAL = {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
#: Asked only where the newer call does not answer, or says what the newer one has said.
SPARE = {"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetGpuFabricInfo"}
#: What answers in its place.
REPLACED = {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkState"}


def broken(call: str, error: type[Exception]) -> FakeNvml:
    nvml = FakeNvml()
    if error is NVMLError:
        nvml.unsupported = {call}
    else:
        setattr(nvml, call, lambda *a: (_ for _ in ()).throw(error("what the binding lacks")))
    return nvml


def strict(text: str) -> Any:
    """No NaN, and none of Python's None in a key or a sentence."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    def keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert all(key not in ("null", "None", "") for key, _ in pairs), pairs
        assert not any(isinstance(value, str) and re.search(r"\bNone\b|\bnan\b", value) for _, value in pairs), pairs
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=keys)


def test_the_list_is_of_the_code_and_the_fake_knows_it() -> None:
    assert len(CALLS) >= 28
    assert [name for name in CALLS if not hasattr(FakeNvml, name)] == []


@pytest.mark.parametrize("error", [NVMLError, AttributeError])
@pytest.mark.parametrize("call", CALLS)
def test_doctor_and_topo_say_all_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str, error: type[Exception]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", broken(call, error))
    monkeypatch.setattr("xstage_bench.machine.topology.cuda_enumeration", lambda: (None, "none"))
    monkeypatch.setattr("xstage_bench.machine.doctor.find_spec", lambda name: True)

    def printed(*words: str) -> tuple[int, str]:
        return xstage(words), capsys.readouterr().out

    prose = printed("doctor")[1] + printed("topo", "--backend", "cuda")[1]
    assert not re.search(r"\bNone\b|too old", prose), prose
    (measurable, doctor), (status, topo) = printed("doctor", "--json"), printed("topo", "--backend", "cuda", "--json")
    said, shown = strict(doctor), strict(topo)
    if call in VITAL:
        assert (measurable, status) == (WAIVED, WAIVED)
        assert shown["unseen"] or shown["notes"]
        return
    assert (measurable, status) == (0, 0)
    assert shown["usable_pairs"] == [[0, 1], [1, 0]]
    lacking = [
        reason for part in (said["environment"]["nvml"], *said["environment"]["gpus"], shown) for reason in part.get("unavailable", {})
    ]
    lacking += [reason for link in said["environment"]["gpus"][0]["links"] for reason in link.get("unavailable", {})]
    assert lacking or call in SPARE | REPLACED
    if call in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType"):
        assert shown["connections"][0]["links"] is None, "not a number"
        assert shown["matrix"][0][1] == "peer"


@pytest.fixture(scope="module")
def node() -> Node:
    topology = read_topology(FakeNvml(), {}, bus=lambda: [])
    gpus = tuple(Gpu(g.index, g.name or "", tuple(range(4)), 1980.0, g.uuid, g.pci_address) for g in topology.gpus)
    return Node(gpus, topology.usable_pairs(), 32.0)


@pytest.mark.parametrize("late", [False, True], ids=["always", "after"])
@pytest.mark.parametrize("call", ["nvmlInit", *CALLS])
def test_what_was_measured_can_be_finished(node: Node, tmp_path: Path, call: str, late: bool) -> None:
    """A call fails from the start, or only when a run is over: its manifest is written and read, and judged as far as it goes."""
    nvml = broken(call, NVMLError)
    before, after = snapshot(FakeNvml() if late else nvml, {}), snapshot(nvml, {})
    known = {"environment_before": before, "environment_after": after}
    deltas = link_error_deltas(before, after)
    save_manifest(tmp_path, Manifest(backend="cuda", simulated=False, node=node, link_error_deltas=deltas, **known))
    strict((tmp_path / "manifest.json").read_text())
    manifest = load_manifest(tmp_path)
    assert len(gpu_table(manifest).rows) == 2
    for gpu in manifest.node.gpus:
        quantities = [read(manifest, gpu.uuid) for read in GPU.values()] + [read(manifest) for read in NODE.values()]
        assert all(value is not None or reason for value, _, _, reason in quantities)
    assert len(facts_of_run(manifest)) == (0 if call in ("nvmlInit", *VITAL) else 2)
    assert all(key for key in deltas_of_run(manifest))
