"""``--backend``: what each word means on machines with working, broken and no GPUs."""

from __future__ import annotations

import pytest

from xstage_bench.device.backend import BackendChoice, open_device, resolve_backend
from xstage_bench.errors import DataError, UsageError, WaivedError
from xstage_bench.machine.topology import read_topology
from xstage_bench.schedule.bursts import HOST


def never():
    raise AssertionError("the topology is not needed for this backend")


def broken(fake_nvml, fault=None):
    """The topology of a node of two GPUs after `fault` befell it."""
    nvml, environ, bus = fake_nvml(), {}, []
    if fault == "dead links":
        nvml.gpus[0]["links"]["down"] = list(range(18))
    elif fault == "one GPU":
        del nvml.gpus[1]
    elif fault == "hidden":
        environ = {"CUDA_VISIBLE_DEVICES": "-1"}
    elif fault == "no driver":
        nvml, bus = fake_nvml(library=False), ["0000:18:00.0"]
    elif fault == "no GPU":
        nvml = fake_nvml(library=False)
    elif fault == "MIG":
        nvml.gpus[0]["mig"] = nvml.gpus[1]["mig"] = [1, 1]
    elif fault == "lost":
        for gpu in nvml.gpus:
            gpu["lost"] = True
    return read_topology(nvml, environ, bus=lambda: bus)


def resolved(fake_nvml, spec, peer="auto", fault=None, has_cupy=True):
    return resolve_backend(spec, peer, topology=lambda: broken(fake_nvml, fault), has_cupy=lambda: has_cupy)


def test_what_each_word_means(fake_nvml):
    assert resolved(fake_nvml, "auto") == BackendChoice("cuda", "2 usable pairs of GPUs", False)
    assert resolved(fake_nvml, "auto", "host") == BackendChoice("cuda", "asked for", False, "host")
    none = resolved(fake_nvml, "auto", fault="no GPU")
    assert (none.spec, none.simulated) == ("sim:h200-nv18-x2", True), "only without any GPU"
    assert "NVML" in none.reason
    assert resolve_backend("sim", topology=never) == BackendChoice("sim:h200-nv18-x2", "asked for", True)
    assert resolve_backend("sim:other", topology=never).spec == "sim:other"


@pytest.mark.parametrize("spec", ["auto", "cuda"])
@pytest.mark.parametrize(("fault", "words"), [("dead links", "0 of 18"), ("one GPU", "only one GPU")])
def test_gpus_without_a_usable_pair_store_to_host_memory_and_say_why(fake_nvml, spec, fault, words):
    choice = resolved(fake_nvml, spec, fault=fault)
    assert (choice.spec, choice.peer, choice.simulated) == ("cuda", "host", False)
    assert words in choice.reason
    assert "host memory is the destination" in choice.reason
    with pytest.raises(WaivedError, match=words):
        resolved(fake_nvml, spec, "gpu", fault)


@pytest.mark.parametrize("spec", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("fault", "words"), [("hidden", "CUDA shows none"), ("no driver", "PCI bus"), ("lost", "GPU is lost"), ("MIG", "MIG is on")]
)
def test_gpus_that_do_not_answer_are_waived_with_the_reason_and_never_simulated(fake_nvml, spec, fault, words):
    for peer in ("auto", "host") if fault == "MIG" else ("auto", "host", "gpu"):
        with pytest.raises(WaivedError, match=words) as error:
            resolved(fake_nvml, spec, peer, fault)
        assert error.value.hint


@pytest.mark.parametrize(
    ("spec", "fault", "words"),
    [
        ("cuda", "no GPU", "no GPU is visible"),
        ("auto", "one GPU", "only one GPU.*CuPy is not installed"),
        ("auto", None, "CuPy is not installed"),
    ],
)
def test_what_is_missing_is_named(fake_nvml, spec, fault, words):
    with pytest.raises(WaivedError, match=words):
        resolved(fake_nvml, spec, fault=fault, has_cupy=False)


@pytest.mark.parametrize("spec", ["", "gpu", "cuda:0", "auto:", "sim:", "replay", "replay:", "replay:no/such/run"])
def test_other_words_are_usage_errors(spec):
    with pytest.raises(UsageError) as error:
        resolve_backend(spec, topology=never)
    assert error.value.hint


def test_what_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(DataError):
        resolve_backend(f"replay:{tmp_path}", topology=never)
    with pytest.raises(UsageError, match="nonesuch"):
        open_device(BackendChoice("sim:nonesuch", "asked for", True))
    with pytest.raises(UsageError, match="--peer"):
        resolve_backend("replay:h200-clean", "host", topology=never)


@pytest.mark.parametrize(("peer", "pairs"), [("auto", ((0, 1), (1, 0))), ("host", ((0, HOST), (1, HOST)))])
def test_the_simulator_opens_with_two_gpus(peer, pairs):
    device = open_device(resolve_backend("sim", peer, topology=never), seed=3, process=1)
    assert device.backend == "sim:h200-nv18-x2"
    assert device.node().pairs == pairs
    device.close()
