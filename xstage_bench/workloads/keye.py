"""Keye-VL-2.0 as a whole: every phase of a forward pass on one rank of a node, from its configuration and a parallel layout.

Per layer: the projections of queries, keys and values, sent to the owners of the heads (Ulysses); the indexer, whose selections go the same
way; the attention over the selected tokens, whose output returns to the owners of the tokens; the output projection, summed over TP; the
dispatch (pulled); the experts, whose rows return. Once per pass: the vision tower and the re-sharding of its tokens; with distillation
the teachers' feedback. Only what differs between layouts is told apart; norms, router and embeddings are left out.
"""

from __future__ import annotations

import math

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.workloads.gemm import IntArray, gemm_tile_ns, tile_rows, tile_tasks
from xstage_bench.workloads.keye_plan import Pass, configuration
from xstage_bench.workloads.moe import moe_tasks
from xstage_bench.workloads.phases import Phase
from xstage_bench.workloads.rates import ELEMENT_BYTES
from xstage_bench.workloads.shapes import TILE, moe_shape

FEEDBACKS = ("logits", "top_k")


def keye_phases(plan: Pass, feedback: str = "logits") -> list[Phase]:
    """Return the phases of one pass, in order.

    Parameters
    ----------
    plan : Pass
    feedback : {'logits', 'top_k'}
        Of the teachers, per token: the whole vocabulary, or a short list of entries.
    """
    if feedback not in FEEDBACKS:
        raise UsageError(f"unknown feedback '{feedback}'", f"use one of: {', '.join(FEEDBACKS)}")
    phases = [*_vision(plan), _qkv(plan), _select(plan), _attention(plan), *_output(plan), *_experts(plan)]
    if plan.mode == "distill":
        phases.append(_feedback(plan, feedback))
    return phases


def _repeats(plan: Pass) -> int:
    layers: int = configuration()["language"]["layers"]
    return layers * plan.chunks


def _reading(plan: Pass) -> float | None:
    """GB/s at which weights arrive, where they are read once for a few tokens."""
    return plan.machine.gb_per_s("hbm") if plan.mode == "decode" else None


def _qkv(plan: Pass) -> Phase:
    """One tile column is one head, so a tile goes as a whole to the ranks of that head; the indexer's one key head goes to all."""
    c, sp = configuration()["language"], plan.layout.sp
    queries, pairs = c["heads"] // plan.layout.tp, max(1, c["kv_heads"] // plan.layout.tp)  # of one TP rank's share
    rows = tile_rows(plan.tokens)
    columns = queries + 2 * pairs + math.ceil(_indexer_width() / TILE)
    tile_ns = gemm_tile_ns(plan.machine, c["hidden"], plan.dtype, _reading(plan), rows.size * columns)
    if sp == 1:
        return Phase("qkv", _repeats(plan), compute_ns=math.ceil(rows.size * columns / plan.machine.sms) * tile_ns)
    owner = np.concatenate([np.arange(queries) * sp // queries, np.tile(np.arange(pairs) * sp // pairs, 2)])
    copies = np.repeat([1, max(1, plan.layout.heads_ways // c["kv_heads"])], [queries, 2 * pairs])
    head = rows[:, None] * float(c["head_dim"] * ELEMENT_BYTES["bf16"])
    keys = rows[:, None] * float(configuration()["sparse_attention"]["indexer_dim"] * ELEMENT_BYTES["bf16"])
    kept = np.zeros((rows.size, columns - owner.size - 1))  # the indexer's queries stay here
    stored = np.concatenate([head * copies, keys * sp, kept], axis=1)
    away = np.concatenate([head * (copies - (owner == 0)), keys * (sp - 1), kept], axis=1)
    tasks = tile_tasks(plan.machine, np.full(stored.size, tile_ns), stored.ravel(), away.ravel(), phase="qkv", name=_name(plan, "qkv"))
    return Phase("qkv", _repeats(plan), tasks, note="each head's columns go to its owner, the indexer's keys to all")


def _select(plan: Pass) -> Phase:
    """The indexer scores every earlier token for each query, and the selections go to the ranks that have the heads."""
    s, sp = configuration()["sparse_attention"], plan.layout.sp
    decoding = plan.mode == "decode"
    flops = 2 * s["indexer_heads"] * s["indexer_dim"] * _mean_context(plan)
    read = plan.context * s["indexer_dim"] * ELEMENT_BYTES["bf16"] / (plan.machine.gb_per_s("hbm") / plan.machine.sms) if decoding else 0.0
    token_ns = max(flops / plan.machine.flops_per_sm(plan.dtype) * 1e9, read)
    if sp == 1:
        return Phase("select", _repeats(plan), compute_ns=plan.tokens * token_ns / plan.machine.sms, note="indexer over all earlier tokens")
    group = 1 if decoding else 16
    rows = tile_rows(plan.tokens, group)
    if decoding:  # a token's keys are shared out over all SMs, so that none is idle
        token_ns *= plan.tokens / (plan.machine.sms * math.ceil(plan.tokens / plan.machine.sms))
    entry = min(s["selected"] * 4, math.ceil(plan.context / 8))  # indices of 4 bytes, or one bit per token where that is less
    tasks = tile_tasks(
        plan.machine, rows * token_ns, rows * entry * float(sp), rows * entry * (sp - 1.0), phase="select", name=_name(plan, "select")
    )
    return Phase("select", _repeats(plan), tasks, note="selections as indices of 4 B or one bit per token, whichever is less")


def _attention(plan: Pass) -> Phase:
    """A tile is 16 tokens x the 8 query heads of one key-value head: 128 rows, which belong to one rank. Decoding: one token."""
    c, sp = configuration()["language"], plan.layout.sp
    per_pair = c["heads"] // c["kv_heads"]
    group = 1 if plan.mode == "decode" else TILE // per_pair
    pairs = max(1, c["kv_heads"] // plan.layout.heads_ways)
    share = min(1.0, c["kv_heads"] / plan.layout.heads_ways)  # of a key-value head's queries, where it is copied
    tile_ns, note = _attention_tile_ns(plan, group, share)
    rows = np.tile(tile_rows(plan.tokens * sp, group), pairs)  # every rank has all tokens of the chunk, for its share of the heads
    if sp == 1:
        return Phase("attention", _repeats(plan), compute_ns=rows.size / plan.machine.sms * tile_ns, note=note)
    width = per_pair * share * c["head_dim"] * ELEMENT_BYTES["bf16"]
    away = np.tile(_rows_of_others(plan.tokens * sp, plan.tokens, group), pairs)
    tasks = tile_tasks(
        plan.machine, np.full(rows.size, tile_ns), rows * width, away * width, phase="attention", name=_name(plan, "attention")
    )
    return Phase("attention", _repeats(plan), tasks, note=note)


def _attention_tile_ns(plan: Pass, group: int, share: float) -> tuple[float, str]:
    """Time of one tile: dense with a mask, or over the selected tokens, which each query reads for itself; the faster of the two."""
    c, selected = configuration()["language"], configuration()["sparse_attention"]["selected"]
    rate, decoding = plan.attention_flops_per_sm, plan.mode == "decode"
    kept = min(float(selected), plan.context) if decoding else _mean_selected(plan.context, selected)
    key_flops = 4 * max(64, group * share * c["heads"] // c["kv_heads"]) * c["head_dim"]  # a tensor-core tile has 64 rows at least
    read_ns = (
        group * kept * 2 * c["head_dim"] * ELEMENT_BYTES["bf16"] / (plan.machine.gb_per_s("hbm" if decoding else "l2") / plan.machine.sms)
    )
    sparse = max(key_flops * kept / rate * 1e9, read_ns)
    dense = key_flops * _mean_context(plan) / rate * 1e9
    if not decoding and dense <= sparse:
        return dense, "dense under a mask, which is faster here than reading each query's selection"
    return sparse, "each query reads its selected keys and values from local memory, which takes longer than multiplying them"


def _output(plan: Pass) -> list[Phase]:
    """Output projection; with TP its partial sums go to the owners of the tokens, and the tokens' rows come back to all."""
    c, tp = configuration()["language"], plan.layout.tp
    tokens = plan.tokens * tp
    rows, columns = tile_rows(tokens), c["hidden"] // TILE
    tile_ns = gemm_tile_ns(plan.machine, c["heads"] * c["head_dim"] // tp, plan.dtype, _reading(plan), rows.size * columns)
    if tp == 1:
        return [Phase("output", _repeats(plan), compute_ns=math.ceil(rows.size * columns / plan.machine.sms) * tile_ns)]
    width = float(TILE * ELEMENT_BYTES["bf16"])
    stored, away = (np.repeat(x * width, columns) for x in (rows, _rows_of_others(tokens, plan.tokens)))
    tasks = tile_tasks(plan.machine, np.full(stored.size, tile_ns), stored, away, phase="output", name=_name(plan, "output"))
    gathered = plan.tokens * (tp - 1) * c["hidden"] * ELEMENT_BYTES["bf16"]
    return [
        Phase("gather", _repeats(plan), pull_bytes=gathered, note="rows of the other TP ranks before the projections"),
        Phase("output", _repeats(plan), tasks, note="partial sums to the owners of the tokens"),
    ]


def _experts(plan: Pass) -> list[Phase]:
    shape, ep = moe_shape(configuration()["language"]["moe"]), plan.layout.ep
    tasks = moe_tasks(
        shape,
        tokens_per_rank=plan.tokens,
        ep=ep,
        dtype=plan.dtype,
        order="wave",
        read_gb_per_s=_reading(plan),
        name=_name(plan, "experts"),
        machine=plan.machine,
    )
    if ep == 1:
        base = float(tasks.compute_cycles.sum()) / plan.machine.sms / plan.machine.sm_clock_mhz * 1e3
        return [Phase("experts", _repeats(plan), compute_ns=base)]
    row = shape.hidden * ELEMENT_BYTES[plan.dtype]
    pulled = round(plan.tokens * (ep - 1) * shape.ranks_of_a_token(ep) / ep * row)
    return [
        Phase("dispatch", _repeats(plan), pull_bytes=pulled, note="pulled: one row for each token and rank that has an expert of it"),
        Phase("experts", _repeats(plan), tasks, note="Expert-Wave order, each block's Linear-2 waits for its Linear-1"),
    ]


def _vision(plan: Pass) -> list[Phase]:
    """The tower works on whole pictures, one rank each; its tokens then go to the ranks that have them in the sequence."""
    if plan.mode == "decode":
        return []
    v, c = configuration()["vision"], configuration()["language"]
    ways, share = plan.layout.heads_ways, configuration()["serving"]["visual_share"]
    tokens = max(1, math.ceil(plan.context * share / ways))  # pictures are dealt evenly over the ranks of a sequence
    patches = tokens * v["merge"] ** 2
    per_patch = 2 * (4 * v["width"] ** 2 + 2 * v["width"] * v["mlp"]) + 4 * min(v["image_patches"], patches) * v["width"]
    tower_ns = patches * v["layers"] * per_patch / (plan.machine.flops_per_sm("bf16") * plan.machine.sms) * 1e9
    inner = v["width"] * v["merge"] ** 2
    rows, columns = tile_rows(tokens), c["hidden"] // TILE
    first_ns = math.ceil(rows.size * math.ceil(inner / TILE) / plan.machine.sms) * gemm_tile_ns(plan.machine, inner, "bf16")
    tower = Phase("vision", 1, compute_ns=tower_ns + first_ns, per_layer=False, note="27 layers and the projector's first, bf16")
    tile_ns = gemm_tile_ns(plan.machine, inner, "bf16")
    if ways == 1:
        return [tower, Phase("reshard", 1, compute_ns=math.ceil(rows.size * columns / plan.machine.sms) * tile_ns, per_layer=False)]
    width = float(TILE * ELEMENT_BYTES["bf16"])
    stored, away = (np.repeat(x * width, columns) for x in (rows, _rows_of_others(tokens, math.ceil(tokens / ways))))
    tasks = tile_tasks(plan.machine, np.full(stored.size, tile_ns), stored, away, phase="reshard", name=_name(plan, "reshard"))
    return [
        tower,
        Phase("reshard", 1, tasks, per_layer=False, note="from whole pictures to the ranks of the sequence, in the projector's epilogue"),
    ]


def _feedback(plan: Pass, feedback: str) -> Phase:
    """The head of a teacher: every token's logits, or its best entries, go to the student's rank."""
    c, k = configuration()["language"], configuration()["serving"]["feedback_top_k"]
    rows, columns = tile_rows(plan.tokens), math.ceil(c["vocabulary"] / TILE)
    tile_ns = gemm_tile_ns(plan.machine, c["hidden"], plan.dtype)
    rows = rows[: min(rows.size, 4)]  # one schedule is 512 tokens, which are alike: more would only make it long
    size = np.repeat(rows[:, None] * float(TILE * ELEMENT_BYTES["bf16"]), columns, axis=1)
    if feedback == "top_k":  # known when a token's last tile is: an index of 4 bytes and a value of 2 each
        size[:, :-1] = 0.0
        size[:, -1] = rows * k * 6
    tasks = tile_tasks(plan.machine, np.full(size.size, tile_ns), size.ravel(), size.ravel(), phase="feedback", name=_name(plan, feedback))
    repeats = math.ceil(plan.tokens / (rows.size * TILE)) * plan.chunks
    return Phase("feedback", repeats, tasks, per_layer=False, note=f"{feedback} of every token to the student")


def _rows_of_others(tokens: int, own: int, group: int = TILE) -> IntArray:
    """Rows of each block of `group` tokens that are not among the first `own`, which stay here."""
    return tile_rows(tokens, group) - np.clip(own - np.arange(0, tokens, group), 0, tile_rows(tokens, group))


def _name(plan: Pass, phase: str) -> str:
    where = f"ep{plan.layout.ep}-sp{plan.layout.sp}-tp{plan.layout.tp}"
    return f"keye-vl-2-{phase}-{plan.mode}-{plan.context}-{plan.dtype}-{where}"


def _indexer_width() -> int:
    s = configuration()["sparse_attention"]
    width: int = (s["indexer_heads"] + s["indexer_key_heads"]) * s["indexer_dim"]
    return width


def _mean_context(plan: Pass) -> float:
    """Earlier tokens of a query, mean over the pass."""
    return float(plan.context) if plan.mode == "decode" else (plan.context + 1) / 2


def _mean_selected(context: int, selected: int) -> float:
    """Tokens that a query keeps, mean over a prefill: all earlier ones, at most `selected`."""
    few = min(context, selected)
    return (few * (few + 1) / 2 + (context - few) * selected) / context
