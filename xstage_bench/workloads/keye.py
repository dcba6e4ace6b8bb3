"""A decoder as a whole: every phase of a forward pass on one rank of a node, from its configuration and a parallel layout.

Per layer: the projections of queries, keys and values, sent to the owners of the heads (Ulysses); the indexer, whose selections go the same
way; the attention over the selected tokens, whose output returns to the owners of the tokens; the output projection, summed over TP; the
dispatch (pulled); the experts, whose rows return. With latent attention one row per token goes to all ranks instead of keys and values.
Once per pass: the vision tower and the re-sharding of its tokens; with distillation
the teachers' feedback. Only what differs between layouts is told apart; norms, router and embeddings are left out.
"""

from __future__ import annotations

import math

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.workloads.gemm import gemm_tile_ns, rows_of_others, tile_rows, tile_tasks
from xstage_bench.workloads.keye_plan import Pass
from xstage_bench.workloads.moe import moe_tasks
from xstage_bench.workloads.once import teacher, vision, weights
from xstage_bench.workloads.phases import Phase
from xstage_bench.workloads.rates import ELEMENT_BYTES
from xstage_bench.workloads.shapes import TILE

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
    if plan.mode == "weights":
        return [weights(plan)]
    attention = [_qkv(plan), *_select(plan), *_expand(plan), _attention(plan), *_output(plan)]
    phases = [*vision(plan), *attention, *_dense(plan), *_experts(plan)]
    if plan.mode == "distill":
        phases.append(teacher(plan, feedback))
    return phases


def _repeats(plan: Pass) -> int:
    return plan.model.layers * plan.chunks


def _reading(plan: Pass) -> float | None:
    """GB/s at which weights arrive, where they are read once for a few tokens."""
    return plan.machine.gb_per_s("hbm") if plan.mode == "decode" else None


def _qkv(plan: Pass) -> Phase:
    """One tile column is one head, so a tile goes as a whole to the ranks of that head; the indexer's one key head goes to all.

    So does the row of latent attention, which all ranks make their keys and values of.
    """
    c, sp = plan.model, plan.layout.sp
    queries = c.heads // plan.layout.tp  # of one TP rank's share
    pairs = 0 if c.latent else max(1, c.kv_heads // plan.layout.tp)
    shared = [c.indexer.key_heads * c.indexer.dim] if c.indexer else []  # elements that go to all ranks as they are
    local = math.ceil(c.indexer_width / TILE) - len(shared)  # the indexer's queries stay here
    inner = np.full(queries + 2 * pairs + len(shared) + local, c.hidden)
    width = np.full(inner.size, TILE)
    width[: queries + 2 * pairs] = c.head_dim
    if m := c.latent:
        shared.append(m.kv_rank + m.rope)
        down = math.ceil((m.q_rank or 0) / TILE)
        inner = np.concatenate([inner, np.full(1 + down, c.hidden)])
        width = np.concatenate([width, [m.kv_rank + m.rope], np.full(down, TILE)])
        inner[:queries] = m.q_rank or c.hidden
        local += down
    rows, columns = tile_rows(plan.tokens), inner.size
    unit_ns = np.array([gemm_tile_ns(plan.machine, k, plan.dtype, _reading(plan), rows.size * columns) for k in inner.tolist()])
    tile_ns = (unit_ns * width / TILE).astype(np.float64)
    if sp == 1:
        turns = math.ceil(rows.size * columns / plan.machine.sms)
        return Phase("qkv", _repeats(plan), compute_ns=turns * float(tile_ns.mean()))
    owner = np.concatenate([np.arange(queries) * sp // queries, np.tile(np.arange(pairs) * sp // max(pairs, 1), 2)])
    copies = np.repeat([1, max(1, plan.layout.heads_ways // c.kv_heads)], [queries, 2 * pairs])
    head = rows[:, None] * float(c.head_dim * ELEMENT_BYTES["bf16"])
    keys = rows[:, None] * np.array(shared, dtype=np.float64) * ELEMENT_BYTES["bf16"]
    kept = np.zeros((rows.size, local))
    # In the order of the columns: heads, the indexer's key head and its queries, the latent row and the way to the queries' own.
    first = 1 if c.indexer else 0
    stays = math.ceil(c.indexer_width / TILE) - first
    parts = [(head * copies, head * (copies - (owner == 0))), (keys[:, :first] * sp, keys[:, :first] * (sp - 1))]
    parts += [(kept[:, :stays],) * 2, (keys[:, first:] * sp, keys[:, first:] * (sp - 1)), (kept[:, stays:],) * 2]
    stored, away = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    times = np.tile(tile_ns, rows.size)
    tasks = tile_tasks(plan.machine, times, stored.ravel(), away.ravel(), phase="qkv", name=plan.name("qkv"))
    note = "each head's columns go to its owner, the latent row to all" if c.latent else "each head's columns go to its owner"
    return Phase("qkv", _repeats(plan), tasks, note=note + (", the indexer's keys to all" if c.indexer else ""))


def _select(plan: Pass) -> list[Phase]:
    """The indexer scores every earlier token for each query, and the selections go to the ranks that have the heads."""
    s, sp = plan.model.indexer, plan.layout.sp
    if s is None:
        return []
    decoding = plan.mode == "decode"
    flops = 2 * s.heads * s.dim * _mean_earlier(plan)
    read = plan.context * s.dim * ELEMENT_BYTES["bf16"] / (plan.machine.gb_per_s("hbm") / plan.machine.sms) if decoding else 0.0
    token_ns = max(flops / plan.machine.flops_per_sm(plan.dtype) * 1e9, read)
    if sp == 1:
        each_ns = plan.tokens * token_ns / plan.machine.sms
        return [Phase("select", _repeats(plan), compute_ns=each_ns, note="indexer over all earlier tokens")]
    group = 1 if decoding else 16
    rows = tile_rows(plan.tokens, group).astype(np.float64)
    if decoding:  # a token's keys are shared out over all SMs, so that none is idle
        token_ns *= plan.tokens / (plan.machine.sms * math.ceil(plan.tokens / plan.machine.sms))
    entry = min(s.selected * 4, math.ceil(plan.context / 8))  # indices of 4 bytes, or one bit per token where that is less
    tasks = tile_tasks(
        plan.machine, rows * token_ns, rows * entry * float(sp), rows * entry * (sp - 1.0), phase="select", name=plan.name("select")
    )
    return [Phase("select", _repeats(plan), tasks, note="selections as indices of 4 B or one bit per token, whichever is less")]


def _absorbed(plan: Pass) -> bool:
    """Whether latent attention works on the cached rows themselves, as one key-value head for all, instead of on keys made of them."""
    s = plan.model.indexer
    return plan.model.latent is not None and (plan.mode == "decode" or (s is not None and plan.context > s.selected))


def _expand(plan: Pass) -> list[Phase]:
    """Latent attention: of the heads of this rank, all tokens' keys and values; absorbed, the same weights on queries and output."""
    if (m := plan.model.latent) is None:
        return []
    heads = plan.model.heads // plan.layout.heads_ways
    tiles = tile_rows(plan.tokens * plan.layout.sp).size * math.ceil(heads * (m.nope + m.value) / TILE)
    tile_ns = gemm_tile_ns(plan.machine, m.kv_rank, plan.dtype, _reading(plan), tiles)
    how = "queries into the latent, the output out of it" if _absorbed(plan) else "keys and values out of the latent"
    return [Phase("latent", _repeats(plan), compute_ns=math.ceil(tiles / plan.machine.sms) * tile_ns, note=how)]


def _attention(plan: Pass) -> Phase:
    """A tile is 128 rows at most: the query heads of one key-value head of some tokens, which belong to one rank. Decoding: one token."""
    c, sp = plan.model, plan.layout.sp
    kv_heads = c.heads if c.latent and not _absorbed(plan) else c.kv_heads
    per_pair = c.heads // kv_heads
    share = min(1.0, kv_heads / plan.layout.heads_ways)  # of a key-value head's queries, where it is copied
    pairs = max(1, kv_heads // plan.layout.heads_ways)
    group = 1 if plan.mode == "decode" else max(1, TILE // per_pair)
    tile_ns, note = _attention_tile_ns(plan, group, per_pair * share)
    rows = np.tile(tile_rows(plan.tokens * sp, group), pairs).astype(
        np.float64
    )  # every rank has all tokens of the chunk, for its share of the heads
    if sp == 1:
        return Phase("attention", _repeats(plan), compute_ns=rows.size / plan.machine.sms * tile_ns, note=note)
    width: float = per_pair * share * c.value_dim * ELEMENT_BYTES["bf16"]
    away = np.tile(rows_of_others(plan.tokens * sp, plan.tokens, group), pairs).astype(np.float64)
    tasks = tile_tasks(
        plan.machine, np.full(rows.size, tile_ns), rows * width, away * width, phase="attention", name=plan.name("attention")
    )
    return Phase("attention", _repeats(plan), tasks, note=note)


def _attention_tile_ns(plan: Pass, group: int, heads: float) -> tuple[float, str]:
    """Time of one tile: dense with a mask, or over the selected tokens, which each query reads for itself; the faster of the two."""
    c, rate, decoding = plan.model, plan.attention_flops_per_sm, plan.mode == "decode"
    key, value, read = c.head_dim, c.value_dim, c.head_dim + c.value_dim  # elements; of a cached row, what is read
    if c.latent and _absorbed(plan):
        key, value, read = c.latent.kv_rank + c.latent.rope, c.latent.kv_rank, c.latent.kv_rank + c.latent.rope
    key_flops = 2 * (key + value) * max(64, group * heads)  # a tensor-core tile has 64 rows at least
    dense = key_flops * _mean_context(plan) / rate * 1e9
    if c.indexer is None and not decoding:
        return dense, "dense under a mask"
    limit = c.indexer.selected if c.indexer else plan.context
    kept = min(float(limit), _mean_context(plan)) if decoding else _mean_selected(plan.context, limit)
    memory = plan.machine.gb_per_s("hbm" if decoding else "l2") / plan.machine.sms
    sparse = max(key_flops * kept / rate * 1e9, group * kept * read * ELEMENT_BYTES["bf16"] / memory)
    if not decoding and dense <= sparse:
        return dense, "dense under a mask, which is faster here than reading each query's selection"
    if c.indexer is None:
        return sparse, "each query reads all earlier keys and values from local memory"
    return sparse, "each query reads its selected keys and values from local memory, which takes longer than multiplying them"


def _output(plan: Pass) -> list[Phase]:
    """Output projection; with TP its partial sums go to the owners of the tokens, and the tokens' rows come back to all."""
    return _row_parallel(plan, "output", plan.model.heads * plan.model.value_dim, _repeats(plan))


def _row_parallel(plan: Pass, name: str, inner: int, repeats: int, *, per_layer: bool = True, up: int = 0) -> list[Phase]:
    """A GEMM from `inner` elements to a token's row, after one of `up` columns; over TP each rank has its share of both."""
    c, tp = plan.model, plan.layout.tp
    tokens = plan.tokens * tp
    rows, columns = tile_rows(tokens), math.ceil(c.hidden / TILE)
    tile_ns = gemm_tile_ns(plan.machine, inner // tp, plan.dtype, _reading(plan), rows.size * columns)
    phases = []
    if tp > 1:
        gathered = plan.tokens * (tp - 1) * c.hidden * ELEMENT_BYTES["bf16"]
        before = "gather" if name == "output" else f"{name} gather"
        note = "rows of the other TP ranks before the projections"
        phases.append(Phase(before, repeats, pull_bytes=gathered, per_layer=per_layer, note=note))
    if up:
        tiles = rows.size * math.ceil(up / tp / TILE)
        up_ns = math.ceil(tiles / plan.machine.sms) * gemm_tile_ns(plan.machine, c.hidden, plan.dtype, _reading(plan), tiles)
        phases.append(Phase(f"{name} up", repeats, compute_ns=up_ns, per_layer=per_layer, note="gate and up"))
    if tp == 1:
        each_ns = math.ceil(rows.size * columns / plan.machine.sms) * tile_ns
        return [*phases, Phase(name, repeats, compute_ns=each_ns, per_layer=per_layer)]
    width = float(TILE * ELEMENT_BYTES["bf16"])
    stored, away = (np.repeat(x * width, columns) for x in (rows, rows_of_others(tokens, plan.tokens)))
    tasks = tile_tasks(plan.machine, np.full(stored.size, tile_ns), stored, away, phase=name, name=plan.name(name))
    return [*phases, Phase(name, repeats, tasks, per_layer=per_layer, note="partial sums to the owners of the tokens")]


def _dense(plan: Pass) -> list[Phase]:
    """The SwiGLU of layers without experts. In a model that has experts elsewhere these layers are counted in the pass only."""
    c = plan.model
    if not c.dense_layers:
        return []
    return _row_parallel(plan, "mlp", c.dense_inter, c.dense_layers * plan.chunks, per_layer=c.moe is None, up=2 * c.dense_inter)


def _shared(plan: Pass, width: int, repeats: int) -> Phase:
    """Experts that every token passes on its own rank."""
    rows, total = tile_rows(plan.tokens).size, 0.0
    for inner, columns in ((plan.model.hidden, 2 * width), (width, plan.model.hidden)):
        tiles = rows * math.ceil(columns / TILE)
        total += math.ceil(tiles / plan.machine.sms) * gemm_tile_ns(plan.machine, inner, plan.dtype, _reading(plan), tiles)
    return Phase("shared", repeats, compute_ns=total, note="shared experts, which store nothing")


def _experts(plan: Pass) -> list[Phase]:
    shape, ep = plan.model.moe, plan.layout.ep
    if shape is None:
        return []
    repeats = shape.layers * plan.chunks
    shared = [_shared(plan, shape.shared_width, repeats)] if shape.shared_width else []
    tasks = moe_tasks(
        shape,
        tokens_per_rank=plan.tokens,
        ep=ep,
        dtype=plan.dtype,
        order="wave",
        read_gb_per_s=_reading(plan),
        name=plan.name("experts"),
        machine=plan.machine,
    )
    if ep == 1:
        base = float(tasks.compute_cycles.sum()) / plan.machine.sms / plan.machine.sm_clock_mhz * 1e3
        return [*shared, Phase("experts", repeats, compute_ns=base)]
    row = shape.hidden * ELEMENT_BYTES[plan.dtype]
    pulled = round(plan.tokens * (ep - 1) * shape.ranks_of_a_token(ep) / ep * row)
    return [
        *shared,
        Phase("dispatch", repeats, pull_bytes=pulled, note="pulled: one row for each token and rank that has an expert of it"),
        Phase("experts", repeats, tasks, note="Expert-Wave order, each block's Linear-2 waits for its Linear-1"),
    ]


def _mean_earlier(plan: Pass) -> float:
    """Earlier tokens of a query, mean over the pass."""
    return float(plan.context) if plan.mode == "decode" else (plan.context + 1) / 2


def _mean_context(plan: Pass) -> float:
    """Those of them that it sees, mean over the layers: all, or a window's."""
    c, every = plan.model, _mean_earlier(plan)
    if not c.windowed:
        return every
    few = float(min(plan.context, c.window)) if plan.mode == "decode" else _mean_selected(plan.context, c.window)
    return ((c.layers - c.windowed) * every + c.windowed * few) / c.layers


def _mean_selected(context: int, selected: int) -> float:
    """Tokens that a query keeps, mean over a prefill: all earlier ones, at most `selected`."""
    few = min(context, selected)
    return (few * (few + 1) / 2 + (context - few) * selected) / context
