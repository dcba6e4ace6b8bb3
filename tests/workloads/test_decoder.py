"""Models by their own config.json: size against their cards, phases and bytes, and what is refused by the field that is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xstage_bench.errors import DataError, UsageError
from xstage_bench.workloads import workload_phases
from xstage_bench.workloads.decoder import Decoder, decoder_of
from xstage_bench.workloads.keye_plan import keye
from xstage_bench.workloads.phases import MODES, Phase, PhaseLayout

#: Facts of the models' public configurations, and 10^9 parameters as their cards say; ``like``: all else as that model.
CARDS = json.loads(Path(__file__).with_name("configs.json").read_text())


def config(name: str, **change: object) -> dict[str, object]:
    like = CARDS[name].get("like")
    return {**(CARDS[like]["config"] if like else {}), **CARDS[name]["config"], **change}


def model(name: str) -> Decoder:
    return decoder_of(config(name), name, "config.json")


def phases(name: str, layout: PhaseLayout, mode: str = "prefill", context: int = 4096) -> dict[str, Phase]:
    return {p.name: p for p in workload_phases(model(name), layout, mode=mode, context=context, tokens_per_rank=512)}


@pytest.mark.parametrize("name", CARDS)
def test_size_is_that_of_the_card_and_every_mode_has_its_phases(name):
    assert model(name).parameters * 1e-9 == pytest.approx(CARDS[name]["card"], rel=0.02)
    assert name in model(name).words()
    for mode in MODES[:3]:
        found = phases(name, PhaseLayout(8, 2, 2), mode, 1024)
        assert {"qkv", "attention", "output"} <= set(found)
        assert ("experts" in found) == (model(name).moe is not None)
        assert all(p.tasks is not None or p.compute_ns > 0 or p.pull_bytes > 0 for p in found.values())


def test_keye_is_read_as_qwen3_with_an_indexer():
    assert keye().moe == decoder_of(config("Qwen3-30B-A3B"), "keye-vl-2", "keye_vl_2.toml").moe
    assert 30.5 < keye().parameters * 1e-9 < 31.1  # the card's 31.1 have the vision tower


def test_latent_attention_sends_one_row_to_all_and_queries_to_the_owners_of_the_heads():
    dense, sparse = (phases(name, PhaseLayout(8, 4)) for name in ("DeepSeek-V3", "DeepSeek-V3.2-Exp"))
    tokens = 512
    queries = 128 * 192 * 2 * 3 // 4
    assert dense["qkv"].tasks.volume_bytes == tokens * (queries + 576 * 2 * 3)
    assert sparse["qkv"].tasks.volume_bytes == tokens * (queries + 576 * 2 * 3 + 128 * 2 * 3)  # and the indexer's key
    for found in (dense, sparse):  # a quarter of the heads of all four ranks' tokens, three quarters of them others'
        assert found["attention"].tasks.volume_bytes == 4 * tokens * 32 * 128 * 2 * 3 // 4
        assert (found["mlp"].repeats, found["experts"].repeats, found["shared"].repeats) == (3 * 2, 58 * 2, 58 * 2)
        assert not found["mlp"].per_layer
    assert "select" not in dense
    assert sparse["select"].tasks.volume_bytes == tokens * 4096 // 8 * 3
    assert "latent" in dense["qkv"].note


def test_weights_go_from_even_shards_to_every_owner():
    """All ranks' pieces together are what all samplers hold, but for what each trainer's rank keeps."""
    for name, layout in (
        ("Qwen3-30B-A3B", PhaseLayout(8, 1)),
        ("Qwen3-30B-A3B", PhaseLayout(2, 1, 4)),
        ("Llama-3.1-70B", PhaseLayout(1, 1, 8)),
    ):
        c, world = model(name), layout.world
        routed = c.moe.layers * c.moe.experts * 3 * c.hidden * c.moe.inter if c.moe else 0
        held = 2 * world * (routed / layout.ep + (c.parameters - routed) / layout.tp)
        (phase,) = phases(name, layout, "weights").values()
        assert world * phase.repeats * phase.tasks.bytes.sum() == pytest.approx(held, rel=0.01)
        assert phase.tasks.volume_bytes == pytest.approx(phase.tasks.bytes.sum() * (world - 1) / world, rel=1e-6)
        assert phase.tasks.task_count <= 4097
    assert phases("Llama-3.1-70B", PhaseLayout(1, 1), "weights")["weights"].compute_ns > 0


def test_dense_models_and_windows():
    found = phases("Llama-3.1-70B", PhaseLayout(8, 1, 4))  # no experts: EP is not asked for
    assert list(found) == ["qkv", "attention", "gather", "output", "mlp gather", "mlp up", "mlp"]
    assert found["mlp"].tasks.volume_bytes == found["output"].tasks.volume_bytes == 512 * 3 * 8192 * 2
    assert found["mlp up"].compute_ns > 3 * found["qkv"].compute_ns
    windowed, full = (
        workload_phases(decoder_of(config("gpt-oss-120b", **change), "g", "g"), PhaseLayout(8, 1), context=65536)
        for change in ({}, {"layer_types": ["full_attention"] * 36})
    )
    narrow, wide = (next(p.compute_ns for p in found if p.name == "attention") for found in (windowed, full))
    assert narrow / wide == pytest.approx(0.5, abs=0.01)  # half of the layers see 128 tokens


GONE = object()


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("Llama-3.1-70B", "model_type", GONE, "'model_type' is missing"),
        ("Llama-3.1-70B", "model_type", "mamba2", "'mamba2' is not known"),
        ("Llama-3.1-70B", "hidden_size", GONE, "'hidden_size' is missing"),
        ("Llama-3.1-70B", "hidden_size", "wide", "'hidden_size' is 'wide'"),
        ("Llama-3.1-70B", "intermediate_size", 0, "'intermediate_size' is 0"),
        ("Llama-3.1-70B", "num_key_value_heads", 5, "64 heads for 5"),
        ("Llama-3.1-70B", "text_config", [1], "'text_config'"),
        ("Llama-3.1-70B", "vision_config", {"depth": 2}, "vision_config: field 'hidden_size' is missing"),
        ("Qwen3-30B-A3B", "num_experts", GONE, "'num_experts' is missing"),
        ("Qwen3-30B-A3B", "num_experts_per_tok", 129, "of 128 experts"),
        ("Qwen3-30B-A3B", "mlp_only_layers", 3, "'mlp_only_layers' is 3"),
        ("DeepSeek-V3", "kv_lora_rank", GONE, "'kv_lora_rank' is missing"),
        ("Kimi-K2", "kv_lora_rank", GONE, "'kv_lora_rank' is missing"),
        ("DeepSeek-V3.2-Exp", "index_topk", GONE, "'index_topk' is missing"),
        ("gpt-oss-120b", "layer_types", ["linear_attention"], "'linear_attention'"),
    ],
)
def test_a_field_that_is_missing_or_cannot_be_is_named(name, field, value, message):
    changed = config(name, **{field: value})
    with pytest.raises(DataError, match=message):
        decoder_of({k: v for k, v in changed.items() if v is not GONE}, name, "config.json")
    with pytest.raises(UsageError, match="has 1 to"):
        phases(name, PhaseLayout(8), context=10**7)
