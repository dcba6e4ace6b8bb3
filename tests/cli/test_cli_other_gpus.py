"""`predict` and `advise` with the model of a GPU that has not 132 SMs: all of its SMs are used, and what is borrowed is said."""

from __future__ import annotations

import pytest
from other_gpus import OTHERS, RECORDED, write_model

LAYER = ("--workload", "dit-moe-xl", "--ep", "4", "--tokens-per-rank", "64")
JOB = ("--bytes", "32768", "--tile-ns", "4200", "--tiles", "4")


@pytest.mark.parametrize(("gpu", "sms"), OTHERS)
def test_a_workload_and_a_job_take_every_sm_and_say_whose_rates_they_have(xstage, tmp_path, gpu, sms):
    model = write_model(tmp_path / "model.json", gpu, sms)
    text = xstage("predict", model, *LAYER)
    assert text.code == 0, text.err
    assert f"laid out for {gpu} with {sms} SMs" in text.out
    assert f"compute rates from NVIDIA H200, this is {gpu}" in text.out
    document = xstage("predict", model, *LAYER, "--json").document()
    assert (document["gpu"], document["sms"]) == (gpu, sms)
    rates = {r["name"]: r for r in document["rates"]}
    assert {"gemm-bf16", "l2"} <= set(document["rates_from_elsewhere"])
    assert rates["gemm-bf16"]["status"] == ("borrowed" if gpu == "NVIDIA X1" else "derived")
    assert rates["gemm-bf16"]["gpu"] == "NVIDIA H200"
    advice = xstage("advise", model, *JOB, "--json").document()
    assert advice["job"]["producers"] == sms
    fewer = xstage("advise", model, *JOB, "--producers", "16", "--json").document()
    assert fewer["job"]["producers"] == 16


def test_the_recorded_gpu_borrows_nothing(xstage):
    document = xstage("predict", RECORDED, *LAYER, "--json").document()
    assert (document["gpu"], document["sms"], document["rates_from_elsewhere"]) == ("NVIDIA H200", 132, [])
    assert not any("compute rates from" in note for note in document["notes"])


def test_a_type_that_a_gpu_has_not_is_refused(xstage, tmp_path):
    done = xstage("predict", write_model(tmp_path / "model.json", "NVIDIA A100-SXM4-40GB", 108), *LAYER, "--dtype", "fp8")
    assert done.code == 2
    assert "no tensor cores for fp8" in done.err
    assert "--dtype bf16" in done.err
