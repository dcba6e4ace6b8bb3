"""A pass of a decoder, Keye-VL-2.0 unless another is given: which layouts it can have on a node, and the chunks in which it goes."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from xstage_bench.errors import UsageError
from xstage_bench.workloads.decoder import Decoder, decoder_of
from xstage_bench.workloads.moe import check_expert_parallel
from xstage_bench.workloads.phases import MODES, Mode, PhaseLayout
from xstage_bench.workloads.rates import Machine, named_machine

MAX_WORLD = 8


@cache
def configuration() -> dict[str, dict[str, Any]]:
    """Tables of keye_vl_2.toml."""
    return tomllib.loads(Path(__file__).with_name("keye_vl_2.toml").read_text(encoding="utf-8"))


@cache
def keye() -> Decoder:
    """Keye-VL-2.0, through the reader of every other model's configuration."""
    tables = configuration()
    config = {**tables["config"], **tables["sparse_attention"], "vision_config": tables["vision_config"]}
    return decoder_of(config, "keye-vl-2", "keye_vl_2.toml")


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of one rank.

    Parameters
    ----------
    mode : {'prefill', 'decode', 'distill', 'weights'}
        distill: a prefill of the teacher, which also sends its token-level feedback to the student's rank.
        weights: no pass, but a trainer's weights to the samplers that make passes.
    layout : PhaseLayout
    context : int
        Tokens of a sequence.
    dtype : {'bf16', 'fp8'}
    tokens : int
        Of one rank in one chunk.
    chunks : int
        Such chunks in the pass; 1 when decoding.
    attention_flops_per_sm : float
        FLOP/s of the attention's tiles, always bf16.
    machine : Machine
    model : Decoder
    """

    mode: Mode
    layout: PhaseLayout
    context: int
    dtype: str
    tokens: int
    chunks: int
    attention_flops_per_sm: float
    machine: Machine
    model: Decoder

    def name(self, phase: str) -> str:
        """Return the name of a phase's schedule."""
        where = f"ep{self.layout.ep}-sp{self.layout.sp}-tp{self.layout.tp}"
        return f"{self.model.name}-{phase}-{self.mode}-{self.context}-{self.dtype}-{where}"


def plan_pass(
    mode: Mode,
    layout: PhaseLayout,
    context: int,
    dtype: str,
    tokens_per_rank: int | None = None,
    attention_flops_per_sm: float | None = None,
    machine: Machine | None = None,
    model: Decoder | None = None,
) -> Pass:
    """Check the layout and cut the pass into chunks.

    Parameters
    ----------
    mode : {'prefill', 'decode', 'distill', 'weights'}
    layout : PhaseLayout
    context : int
        At most the model's positions.
    dtype : {'bf16', 'fp8'}
    tokens_per_rank : int, optional
        Decoding: sequences of each rank; else at most this many tokens of a rank in a chunk.
    attention_flops_per_sm : float, optional
        FLOP/s; default: the machine's.
    machine : Machine, optional
        Default: the GPU of the recordings.
    model : Decoder, optional
        Default: Keye-VL-2.0. A dense one has no experts to share: its EP is 1.

    Raises
    ------
    UsageError
        Anything that cannot be: each says what would.
    """
    model, serving = model or keye(), configuration()["serving"]
    layout = layout if model.moe else replace(layout, ep=1)
    if mode not in MODES:
        raise UsageError(f"unknown mode '{mode}'", f"use one of: {', '.join(MODES)}")
    machine = machine or named_machine()
    machine.flops_per_sm(dtype)
    if not 1 <= context <= model.positions:
        raise UsageError(f"a context of {context} tokens", f"{model.name} has 1 to {model.positions}")
    check_layout(layout, model)
    if tokens_per_rank is not None and tokens_per_rank < 1:
        raise UsageError(f"{tokens_per_rank} tokens per rank", "at least one")
    rate = machine.flops_per_sm("bf16", "attention") if attention_flops_per_sm is None else attention_flops_per_sm
    if mode == "decode":
        return Pass(mode, layout, context, dtype, tokens_per_rank or serving["decode_tokens_per_rank"], 1, rate, machine, model)
    mine = math.ceil(context / layout.heads_ways)
    chunks = math.ceil(mine / (tokens_per_rank or serving["chunk_tokens"]))
    return Pass(mode, layout, context, dtype, math.ceil(mine / chunks), chunks, rate, machine, model)


def check_layout(layout: PhaseLayout, model: Decoder) -> None:
    """Refuse what this model or a node cannot be."""
    if model.moe:
        check_expert_parallel(model.moe, layout.ep)
    for word, ways in (("SP", layout.sp), ("TP", layout.tp)):
        if ways < 1:
            raise UsageError(f"{word} {ways}", "1 or more")
    ways, kv = layout.heads_ways, model.kv_heads
    if model.heads % ways:
        raise UsageError(f"SP {layout.sp} x TP {layout.tp} does not divide the {model.heads} heads", "a product of 1, 2, 4 or 8")
    if ways > kv and not model.latent and not layout.replicate_kv:
        raise UsageError(
            f"SP {layout.sp} x TP {layout.tp} is above the {kv} key-value heads", f"--replicate-kv, or a product of at most {kv}"
        )
    if layout.world > MAX_WORLD or layout.world % layout.ep or layout.world % ways:
        raise UsageError(
            f"EP {layout.ep} and SP x TP {ways} fit no node of {MAX_WORLD} GPUs together", "let one divide the other, both at most 8"
        )
