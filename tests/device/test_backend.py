"""``--backend``: what each word means on machines with working, broken and no GPUs."""

from __future__ import annotations

import pytest

from xstage_bench.device.backend import BackendChoice, open_device, resolve_backend
from xstage_bench.errors import DataError, UsageError, WaivedError
from xstage_bench.machine.topology import read_topology
from xstage_bench.schedule.bursts import HOST


def never():
    raise AssertionError("the topology is not needed for this backend")


def test_auto_measures_a_usable_pair(fake_nvml):
    choice = resolve_backend("auto", topology=lambda: read_topology(fake_nvml(), {}), has_cupy=lambda: True)
    assert choice == BackendChoice("cuda", "2 usable pairs of GPUs", False)


def test_auto_simulates_only_without_any_gpu(fake_nvml):
    choice = resolve_backend("auto", topology=lambda: read_topology(fake_nvml(library=False), {}, bus=lambda: []))
    assert choice.spec == "sim:h200-nv18-x2"
    assert choice.simulated
    assert "NVML" in choice.reason


WORDS = {"dead links": "0 of 18", "one GPU": "only one GPU", "hidden": "CUDA shows none", "no driver": "PCI bus", "lost": "GPU is lost"}


def broken(fake_nvml, fault):
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
    elif fault == "MIG":
        nvml.gpus[0]["mig"] = nvml.gpus[1]["mig"] = [1, 1]
    else:
        for gpu in nvml.gpus:
            gpu["lost"] = True
    return read_topology(nvml, environ, bus=lambda: bus)


@pytest.mark.parametrize("spec", ["auto", "cuda"])
@pytest.mark.parametrize("fault", ["dead links", "one GPU"])
def test_gpus_without_a_usable_pair_store_to_host_memory_and_say_why(fake_nvml, spec, fault):
    choice = resolve_backend(spec, topology=lambda: broken(fake_nvml, fault), has_cupy=lambda: True)
    assert (choice.spec, choice.peer, choice.simulated) == ("cuda", "host", False)
    assert WORDS[fault] in choice.reason
    assert "host memory is the destination" in choice.reason
    with pytest.raises(WaivedError, match=WORDS[fault]):
        resolve_backend(spec, "gpu", topology=lambda: broken(fake_nvml, fault), has_cupy=lambda: True)


@pytest.mark.parametrize("peer", ["auto", "host", "gpu"])
@pytest.mark.parametrize("spec", ["auto", "cuda"])
@pytest.mark.parametrize("fault", ["hidden", "no driver", "lost"])
def test_gpus_that_do_not_answer_are_waived_with_the_reason_and_never_simulated(fake_nvml, spec, fault, peer):
    with pytest.raises(WaivedError, match=WORDS[fault]) as error:
        resolve_backend(spec, peer, topology=lambda: broken(fake_nvml, fault), has_cupy=lambda: True)
    assert error.value.hint


@pytest.mark.parametrize("peer", ["auto", "host"])
def test_what_refuses_a_gpu_as_a_whole_refuses_host_memory_too(fake_nvml, peer):
    with pytest.raises(WaivedError, match="MIG is on"):
        resolve_backend("auto", peer, topology=lambda: broken(fake_nvml, "MIG"), has_cupy=lambda: True)


def test_host_memory_can_be_asked_for(fake_nvml):
    choice = resolve_backend("auto", "host", topology=lambda: read_topology(fake_nvml(), {}), has_cupy=lambda: True)
    assert choice == BackendChoice("cuda", "asked for", False, "host")
    device = open_device(resolve_backend("sim", "host", topology=never))
    assert device.node().pairs == ((0, HOST), (1, HOST))
    with pytest.raises(UsageError, match="--peer"):
        resolve_backend("replay:h200-clean", "host", topology=never)


def test_cuda_without_any_gpu_is_waived(fake_nvml):
    with pytest.raises(WaivedError, match="no GPU is visible"):
        resolve_backend("cuda", topology=lambda: read_topology(fake_nvml(library=False), {}, bus=lambda: []))


def test_missing_cupy_is_named(fake_nvml):
    with pytest.raises(WaivedError, match=r"only one GPU.*CuPy is not installed"):
        resolve_backend("auto", topology=lambda: broken(fake_nvml, "one GPU"), has_cupy=lambda: False)
    with pytest.raises(WaivedError, match="CuPy is not installed"):
        resolve_backend("auto", topology=lambda: read_topology(fake_nvml(), {}), has_cupy=lambda: False)


def test_the_simulator_is_taken_at_its_word():
    assert resolve_backend("sim", topology=never) == BackendChoice("sim:h200-nv18-x2", "asked for", True)
    assert resolve_backend("sim:other", topology=never).spec == "sim:other"


@pytest.mark.parametrize("spec", ["", "gpu", "cuda:0", "auto:", "sim:", "replay", "replay:", "replay:no/such/run"])
def test_other_words_are_usage_errors(spec):
    with pytest.raises(UsageError) as error:
        resolve_backend(spec, topology=never)
    assert error.value.hint


def test_a_replay_of_what_is_no_run_is_a_data_error(tmp_path):
    with pytest.raises(DataError):
        resolve_backend(f"replay:{tmp_path}", topology=never)


def test_an_unknown_preset_is_a_usage_error():
    with pytest.raises(UsageError, match="nonesuch"):
        open_device(BackendChoice("sim:nonesuch", "asked for", True))


def test_the_simulator_opens_and_describes_two_gpus():
    device = open_device(resolve_backend("sim", topology=never), seed=3, process=1)
    try:
        assert device.backend == "sim:h200-nv18-x2"
        assert device.node().pairs == ((0, 1), (1, 0))
    finally:
        device.close()
