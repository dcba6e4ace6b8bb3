"""The registry of GPUs, and what a workload takes of it: SMs of the model first, rates with whose they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from other_gpus import OTHERS, RECORDED, write_model

from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.facts import Fact
from xstage_bench.machine.gpus import REFERENCE_GPU, Default, borrowed, find_gpu, gpus
from xstage_bench.model.document import load_model
from xstage_bench.model.sms import sms_of
from xstage_bench.workloads import workload_phases
from xstage_bench.workloads.phases import PhaseLayout
from xstage_bench.workloads.rates import machine_of, named_machine

MODEL = load_model(RECORDED)


def test_every_gpu_is_there_once_and_says_where_its_numbers_come_from():
    names = [name for facts in gpus().values() for name in facts.names]
    assert len(names) == len(set(names))
    counts = {find_gpu(name).sm_count.value for name in names}
    assert counts == {78, 108, 114, 132, 142, 148, 188}
    for value, status in ((None, "measured"), (1.0, "unknown")):
        with pytest.raises(ValueError, match="or is unknown and says why"):
            Fact(value=value, status=status, source="x")
    assert find_gpu("NVIDIA H200 (simulated)") is find_gpu(REFERENCE_GPU)
    assert find_gpu("NVIDIA H200 NVL") is None
    one = Default(name="sleep after", value=50, unit="ms", low=45, high=50, source="a probe")
    assert borrowed("NVIDIA H200 (simulated)", [one]) is None
    assert borrowed("NVIDIA H20", [one]) == "measured on NVIDIA H200; this is NVIDIA H20: sleep after 50 (45 to 50) ms"


def test_the_sms_are_those_of_the_model_then_of_the_registry_then_of_the_fit(tmp_path):
    for gpu, sms in OTHERS:
        assert sms_of(load_model(write_model(tmp_path / "m.json", gpu, sms))) == sms
    assert sms_of(load_model(write_model(tmp_path / "m.json", "NVIDIA H200", 130))) == 130, "the run's own count comes first"
    bare = [replace(p, node_basis=None) for p in MODEL.pairs]
    assert sms_of(replace(MODEL, pairs=bare, gpu="NVIDIA H20")) == 78
    assert sms_of(replace(MODEL, pairs=bare, gpu="NVIDIA X1")) == 132
    with pytest.raises(DataError, match="how many SMs NVIDIA X1"):
        sms_of(replace(MODEL, pairs=[], gpu="NVIDIA X1"))


@pytest.mark.parametrize(("gpu", "sms"), OTHERS)
@pytest.mark.parametrize("workload", ["keye-vl-2", "flux.1-1024"])
def test_tiles_are_spread_over_all_sms(tmp_path, gpu, sms, workload):
    machine = machine_of(load_model(write_model(tmp_path / "m.json", gpu, sms)))
    phases = workload_phases(workload, PhaseLayout(8, 4), context=32768, machine=machine)
    wide = [p.tasks for p in phases if p.tasks is not None and p.tasks.task_count >= sms]
    assert len(wide) >= 1
    for tasks in wide:
        assert tasks.producer_count == sms
        assert np.bincount(tasks.producer, minlength=sms).min() >= 1


def test_a_slower_gpu_computes_longer_by_its_peak():
    h200, h20 = named_machine(), machine_of(replace(MODEL, gpu="NVIDIA H20"))
    assert h200.flops_per_sm("bf16") / h20.flops_per_sm("bf16") == pytest.approx((989.5 / 132) / (148 / 78))
    assert h20.gb_per_s("hbm") == pytest.approx(4000 * 4072 / 4800)
    assert not h200.elsewhere
    assert {r.name for r in h20.elsewhere} == {r.name for r in h20.rates}
    unknown = machine_of(replace(MODEL, gpu="NVIDIA X1"))
    assert unknown.flops_per_sm("bf16") == h200.flops_per_sm("bf16")
    assert {r.status for r in unknown.rates} == {"borrowed"}
    for name in ("NVIDIA H20", "NVIDIA X1"):  # no clock, no entry: it needs a model
        with pytest.raises(UsageError, match="not known here"):
            named_machine(name)
