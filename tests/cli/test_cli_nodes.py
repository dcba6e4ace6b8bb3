"""The real command line on nodes that this machine is not: NVML answers from a recorded node, put in pynvml's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
A, B = "GPU-11111111-aaaa-4aaa-8aaa-000000000001", "GPU-22222222-bbbb-4bbb-8bbb-000000000002"
DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import fake_nvml
nvml = fake_nvml.FakeNvml()
sys.modules["cuda"] = None  # no CUDA driver of this machine's own
{change}
sys.modules["pynvml"] = nvml
from xstage_bench.cli import main
main(sys.argv[2:])
"""
WITH_CUPY = """
import importlib.machinery, types
sys.modules["cupy"] = types.ModuleType("cupy")
sys.modules["cupy"].__spec__ = importlib.machinery.ModuleSpec("cupy", None)
"""
DEAD = "for gpu in nvml.gpus: gpu['links']['down'] = list(range(18))"


@pytest.fixture
def on_node(python_c):
    """Call ``xstage`` on the recorded node after `change` was made to it."""
    return lambda change, *words, **variables: python_c(DRIVER.format(change=change), TESTS, *words, **variables)


def test_topo_shows_the_matrix_and_why_a_pair_cannot_be_measured(on_node):
    done = on_node("", "topo")
    assert done.returncode == 0
    assert "NV18" in done.stdout
    assert "478.1" in done.stdout
    assert "SIMULATED" not in done.stdout + done.stderr
    dead = on_node(DEAD, "topo")
    assert dead.returncode == 3
    assert "0/18" in dead.stdout
    assert "0>1 cannot be measured: GPU 0: 0 of 18 NVLinks are up" in dead.stdout
    meant = on_node(DEAD, "topo", "--expect-links", "0")
    assert (meant.returncode, "PCIe" in meant.stdout) == (0, True)


@pytest.mark.parametrize(
    ("wanted", "uuids"), [("1,0", [B, A]), (f"{B},{A}", [B, A]), ("1", [B]), ("GPU-1111", [A])], ids=["order", "uuid", "one", "prefix"]
)
def test_gpu_numbers_are_cudas(on_node, wanted, uuids):
    done = on_node("", "topo", "--json", CUDA_VISIBLE_DEVICES=wanted)
    document = json.loads(done.stdout)
    assert [(g["index"], g["uuid"]) for g in document["gpus"]] == list(enumerate(uuids))
    assert (done.returncode, len(document["usable_pairs"])) == ((0, 2) if len(uuids) == 2 else (3, 0))


@pytest.mark.parametrize("verb", ["plan", "run", "profile"])
@pytest.mark.parametrize(
    ("change", "variables", "words"),
    [
        (DEAD, {}, "0 of 18 NVLinks are up"),
        ("del nvml.gpus[1]", {}, "only one GPU is visible"),
        ("", {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA shows none"),
        ("nvml.gpus[0]['mig'] = [1, 1]", {}, "MIG is on"),
        ("nvml.gpus[0]['fabric_state'] = 1", {}, "fabric manager has not started"),
        ("nvml.node['confidential_computing'] = 1", {}, "confidential-computing"),
    ],
    ids=["dead links", "one GPU", "hidden", "MIG", "fabric", "confidential"],
)
def test_broken_gpus_exit_3_with_the_reason_and_never_simulate(on_node, tmp_path, verb, change, variables, words):
    out = tmp_path / "run"
    done = on_node(change, verb, *(() if verb == "plan" else ("--out", out)), **variables)
    assert done.returncode == 3
    assert words in done.stderr
    assert "SIMULATED" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_doctor_judges_the_node(on_node):
    done = on_node(WITH_CUPY, "doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, document["findings"]
    assert document["measurable"] is True
    assert document["environment"]["nvml"]["driver"] == "580.159"
    dead = on_node(WITH_CUPY + "\n" + DEAD, "doctor")
    assert dead.returncode == 3
    assert "0 of 18" in dead.stdout


def test_doctor_without_gpus_is_waived(xstage):
    done = xstage("doctor", "--json")
    document = done.document()
    if document["environment"]["gpus"]:
        pytest.skip("this machine has GPUs")
    assert done.code == 3
    assert [f["status"] for f in document["findings"] if f["check"] != "disk"] == ["waived"]
