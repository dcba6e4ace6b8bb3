"""What is done once in a pass: the vision tower with the re-sharding of its tokens, the teachers' feedback, and weights to samplers."""

from __future__ import annotations

import math

import numpy as np

from xstage_bench.workloads.gemm import gemm_tile_ns, rows_of_others, tile_rows, tile_tasks
from xstage_bench.workloads.keye_plan import Pass, configuration
from xstage_bench.workloads.phases import Phase
from xstage_bench.workloads.rates import ELEMENT_BYTES
from xstage_bench.workloads.shapes import TILE

#: Bytes that one task of a transfer of weights stores to each owner, and most tasks of one schedule: the rest is more of the same.
PIECE_BYTES, PIECES = 32768, 4096


def vision(plan: Pass) -> list[Phase]:
    """The tower works on whole pictures, one rank each; its tokens then go to the ranks that have them in the sequence."""
    v, c = plan.model.vision, plan.model
    if v is None or plan.mode == "decode":
        return []
    ways, serving = plan.layout.heads_ways, configuration()["serving"]
    tokens = max(1, math.ceil(plan.context * serving["visual_share"] / ways))  # pictures are dealt evenly over the ranks of a sequence
    patches = tokens * v["spatial_merge_size"] ** 2
    per_patch = 2 * (4 * v["hidden_size"] ** 2 + 2 * v["hidden_size"] * v["intermediate_size"])
    per_patch += 4 * min(serving["image_patches"], patches) * v["hidden_size"]
    tower_ns = patches * v["depth"] * per_patch / (plan.machine.flops_per_sm("bf16") * plan.machine.sms) * 1e9
    inner = v["hidden_size"] * v["spatial_merge_size"] ** 2
    rows, columns = tile_rows(tokens), math.ceil(c.hidden / TILE)
    first_ns = math.ceil(rows.size * math.ceil(inner / TILE) / plan.machine.sms) * gemm_tile_ns(plan.machine, inner, "bf16")
    tower = Phase("vision", 1, compute_ns=tower_ns + first_ns, per_layer=False, note=f"{v['depth']} layers and the projector's first, bf16")
    tile_ns = gemm_tile_ns(plan.machine, inner, "bf16")
    if ways == 1:
        return [tower, Phase("reshard", 1, compute_ns=math.ceil(rows.size * columns / plan.machine.sms) * tile_ns, per_layer=False)]
    width = float(TILE * ELEMENT_BYTES["bf16"])
    stored, away = (np.repeat(x * width, columns) for x in (rows, rows_of_others(tokens, math.ceil(tokens / ways))))
    tasks = tile_tasks(plan.machine, np.full(stored.size, tile_ns), stored, away, phase="reshard", name=plan.name("reshard"))
    return [
        tower,
        Phase("reshard", 1, tasks, per_layer=False, note="from whole pictures to the ranks of the sequence, in the projector's epilogue"),
    ]


def teacher(plan: Pass, feedback: str) -> Phase:
    """The head of a teacher: every token's logits, or its best entries, go to the student's rank."""
    c, k = plan.model, configuration()["serving"]["feedback_top_k"]
    rows, columns = tile_rows(plan.tokens), math.ceil(c.vocabulary / TILE)
    tile_ns = gemm_tile_ns(plan.machine, c.hidden, plan.dtype)
    rows = rows[: min(rows.size, 4)]  # one schedule is 512 tokens, which are alike: more would only make it long
    size = np.repeat(rows[:, None] * float(TILE * ELEMENT_BYTES["bf16"]), columns, axis=1)
    if feedback == "top_k":  # known when a token's last tile is: an index of 4 bytes and a value of 2 each
        size[:, :-1] = 0.0
        size[:, -1] = rows * k * 6
    tasks = tile_tasks(plan.machine, np.full(size.size, tile_ns), size.ravel(), size.ravel(), phase="feedback", name=plan.name(feedback))
    repeats = math.ceil(plan.tokens / (rows.size * TILE)) * plan.chunks
    return Phase("feedback", repeats, tasks, per_layer=False, note=f"{feedback} of every token to the student")


def weights(plan: Pass) -> Phase:
    """Weights from a trainer's rank to the samplers that have this layout.

    The trainer has an even share of every tensor, as FSDP shards it. An expert goes to the one rank of EP that has it, all others to
    each group of TP, which shares them: a piece is read once and stored to every owner. The trainer's rank is one of the owners.
    """
    c, world, tp = plan.model, plan.layout.world, plan.layout.tp
    routed = 3 * c.hidden * c.moe.inter * c.moe.experts * c.moe.layers if c.moe else 0
    element = ELEMENT_BYTES[plan.dtype]
    # A piece of an expert has one owner of each of the world / EP copies of the experts; any other one of each of the world / TP copies.
    parts = [(routed * element / world, world // plan.layout.ep), ((c.parameters - routed) * element / world, world // tp)]
    pieces = [math.ceil(size / PIECE_BYTES) for size, _ in parts]
    shown = [n if sum(pieces) <= PIECES else round(n / sum(pieces) * PIECES) for n in pieces]
    copies = np.repeat([float(owners) for _, owners in parts], shown)
    read_ns = PIECE_BYTES / (plan.machine.gb_per_s("hbm") / plan.machine.sms)
    repeats = math.ceil(sum(pieces) / max(1, copies.size))
    note = "even shards of a trainer to the owners in this layout; one of world pieces stays"
    if world == 1:
        return Phase("weights", repeats, compute_ns=copies.size / plan.machine.sms * read_ns, per_layer=False, note=note)
    stored = copies * PIECE_BYTES
    tasks = tile_tasks(
        plan.machine,
        np.full(copies.size, read_ns),
        stored,
        stored * (1 - 1 / world),
        phase="weights",
        both_ways=False,
        name=plan.name("weights"),
    )
    return Phase("weights", repeats, tasks, per_layer=False, note=note)
