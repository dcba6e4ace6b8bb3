"""One case of the suite: Expert-Wave, interleaved and what they are judged against, timed in turn in one run.

Times are from the common start of all GPUs until every rank's rows have arrived, of the slowest GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.kernels.moe.build import COMBINE_BYTES, FEWEST_STAGES, MOST_STAGES, Combine, MoeBuild, ring_stages
from xstage_bench.kernels.moe.forecast import LEADS, STORING_WARPS
from xstage_bench.kernels.moe.group import ExpertGroup, Prepared, Times
from xstage_bench.kernels.moe.layer import PADDING, ExpertRows, Layer, tiles_per_sm
from xstage_bench.kernels.moe.order import Order, usual_wave, wave_orders
from xstage_bench.kernels.spread import in_turn, spread
from xstage_bench.machine.gpus import REFERENCE_GPU, find_gpu, reference_gpu
from xstage_bench.workloads.shapes import TILE

if TYPE_CHECKING:
    from xstage_bench.model.document import Model

WARM_UP = 1
#: Up to how many tokens a rank all slots are counted: beyond, that takes longer than the measurement.
COUNTED_TOKENS = 2048
#: Of a search: half a tile too, which is never chosen.
SEARCHED_LEADS = (0.5, *LEADS)
#: Other ways to execute the chosen order: the variant's name, and what it changes in the build.
OPTIONS: dict[str, dict[str, Any]] = {"chosen fp8 rows": {"combine": "fp8"}, "chosen dispatch": {"dispatch": True}}


@dataclass(frozen=True, slots=True)
class MoeVariant:
    """One way to execute the layer; `name` is its key in the document. `local`: every row stays on its sender's GPU."""

    name: str
    order: Order
    build: MoeBuild
    local: bool = False


def case_variants(
    layer: Layer, rows: ExpertRows, chosen: Order, combine: Combine, ctas: int, *, search: bool, options: bool = False
) -> list[MoeVariant]:
    """Return what one case times, by the rows of rank 0 and the order that the model has chosen.

    `search`: every lead and the serial order too, for the regret of the choice. `options`: `OPTIONS` too, and the usual wave with dispatch:
    what of a gain is left when rows are pulled meanwhile.
    """
    build = plain_build(layer, rows, combine, ctas)
    silent = replace(build, combine="none")
    usual = Order("wave", usual_wave(layer, rows, ctas))
    out = [MoeVariant(f"wave {o.experts_per_wave}", o, build) for o in wave_orders(layer, rows, ctas)]
    out += [MoeVariant("chosen", chosen, build), MoeVariant("chosen local", chosen, build, True)]
    out += [MoeVariant("chosen alone", chosen, silent), MoeVariant("wave alone", usual, silent)]
    other = FEWEST_STAGES + MOST_STAGES - build.stages  # the ring's length was fitted on one kind of GPU
    out += [MoeVariant("chosen other ring", chosen, replace(build, stages=other))]
    if options:
        out += [MoeVariant(name, chosen, replace(build, **changes)) for name, changes in OPTIONS.items()]
        out += [MoeVariant("wave dispatch", usual, replace(build, dispatch=True))]
    if search:
        searched = (Order("serial"), *(Order("interleaved", lead=lead) for lead in SEARCHED_LEADS))
        out += [MoeVariant(f"search {o.name}", o, build) for o in searched]
    return out


def plain_build(layer: Layer, rows: ExpertRows, combine: Combine, ctas: int) -> MoeBuild:
    """Return the build that a layer is timed with where nothing else is said; `rows` are those of rank 0."""
    return MoeBuild(fp8=layer.dtype == "fp8", combine=combine, stages=ring_stages(tiles_per_sm(layer, rows, ctas)))


def prepare(group: ExpertGroup, variants: Sequence[MoeVariant], lists: Mapping[Order, Any] | None = None) -> dict[str, Prepared]:
    """Make every variant ready for `measure`, by its name; `lists` that are there already are not made again."""
    return {v.name: group.prepare(v.order, v.build, local=v.local, lists=(lists or {}).get(v.order)) for v in variants}


def measure(
    group: ExpertGroup, variants: Sequence[MoeVariant], prepared: Mapping[str, Prepared], repetitions: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Time variants in a fresh random order in every repetition, after each was checked against float32 on some blocks.

    Per variant: ``arrived_us`` and ``stored_us`` as `spread` gives them, ``sm_clock_mhz`` of each rank (median), ``remote_bytes`` of the
    rank that sends most, and ``relative_error`` of the variants that are checked: the first one, a wave, and the chosen order.
    """
    checked = (variants[0].name, "chosen", "chosen other ring", *OPTIONS)
    errors = {v.name: check(group, prepared[v.name]) for v in variants if v.name in checked}
    found: dict[str, list[tuple[Times, ...]]] = {v.name: [] for v in variants}
    for repetition, name in in_turn(list(found), repetitions + WARM_UP, rng):
        times = group.run(prepared[name])
        if repetition >= WARM_UP:
            found[name].append(times)
    out: dict[str, Any] = {}
    for name, rows in found.items():
        arrived, stored = (np.array([max(getattr(t, what) for t in times) for times in rows]) / 1e3 for what in ("arrived_ns", "stored_ns"))
        clocks = np.median([[t.sm_clock_mhz for t in times] for times in rows], axis=0).round().tolist()
        out[name] = {"arrived_us": spread(arrived), "stored_us": spread(stored), "sm_clock_mhz": clocks}
        out[name]["remote_bytes"] = sent_bytes(group, prepared[name])
        if name in errors:
            out[name]["relative_error"] = errors[name]
    return out


def check(group: ExpertGroup, prepared: Prepared, blocks: int | None = 2) -> float:
    """Execute once into poisoned slots: some blocks of each rank must be right, and of small layers every row there that should be.

    `XStageError`: a row is wrong, missing, or there although nobody was to write it.
    """
    group.poison()
    group.run(prepared)
    worst = max(group.worst_error(rank, prepared.build, blocks) for rank in range(len(group.ranks)))
    if group.layer.tokens <= COUNTED_TOKENS:
        group.check_written(prepared.build)
    return worst


def sent_bytes(group: ExpertGroup, prepared: Prepared) -> int:
    """Bytes that leave the GPU of the rank that sends most."""
    if prepared.local:
        return 0
    return max(remote_bytes(r.rows, r.rank, group.layer.shape.hidden, prepared.build.combine) for r in group.ranks)


def remote_bytes(rows: ExpertRows, rank: int, hidden: int, combine: str) -> int:
    """Bytes that a rank sends to others: a result row for each of its rows."""
    return int(((rows.owner != PADDING) & (rows.owner != rank)).sum()) * hidden * COMBINE_BYTES[combine]


def link_rate(model: Model | None, gpu: str, sms: int) -> tuple[float, str]:
    """Return the rate that the bound V/R divides by, GB/s, and where it comes from.

    R of the model; without one, what stores of this GPU reach both ways, else its nominal rate, else another GPU's rate.
    """
    from xstage_bench.model.stage import stage_at

    rate = None if model is None else stage_at(model, sms, STORING_WARPS).rate_gb_per_s
    if rate is not None:
        return rate, "R of the model"
    own, lent = find_gpu(gpu), reference_gpu().link.both_ways_gb_per_s
    for fact in (own.link.both_ways_gb_per_s, own.link.nominal_gb_per_s) if own is not None else ():
        if fact.value is not None:
            return fact.value, f"default of {gpu}, {fact.status}: {fact.source}"
    assert lent.value is not None
    return lent.value, f"default measured on {REFERENCE_GPU}, this is {gpu}: {lent.source}"


def flops(layer: Layer, rows: ExpertRows) -> int:
    """Floating-point operations of a rank's tiles, padding included: what the tensor cores execute."""
    return rows.blocks * TILE * 6 * layer.shape.hidden * layer.shape.inter
