"""One case of the suite: Expert-Wave, interleaved and what they are judged against, timed in turn in one run.

Times are from the common start of all GPUs until every rank's rows have arrived, of the slowest GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.kernels.moe.build import COMBINE_BYTES, FEWEST_STAGES, MOST_STAGES, Build, Combine, Publish, ring_stages
from xstage_bench.kernels.moe.forecast import LEADS, STORING_WARPS, TileTimes
from xstage_bench.kernels.moe.group import Group, Prepared, Times
from xstage_bench.kernels.moe.layer import PADDING, Layer, Rows, Slots, tiles_per_sm
from xstage_bench.kernels.moe.order import Order, usual_wave, wave_orders
from xstage_bench.kernels.spread import spread
from xstage_bench.machine.gpus import REFERENCE_GPU, find_gpu, reference_gpu
from xstage_bench.workloads.shapes import TILE

if TYPE_CHECKING:
    from xstage_bench.model.document import Model
    from xstage_bench.model.stage import Stage

WARM_UP = 1
#: Up to how many tokens a rank all slots are counted: beyond, that takes longer than the measurement.
COUNTED_TOKENS = 2048
#: Of a search: half a tile too, which is never chosen.
SEARCHED_LEADS = (0.5, *LEADS)
#: How Linear-1 tiles are published where nothing else is said: by a little the fastest of those measured that do not race (docs/moe.md).
PUBLISH: Publish = "elsewhere"
#: Other ways to execute the chosen order: the variant's name, and what it changes in the build.
OPTIONS: dict[str, dict[str, Any]] = {
    "chosen bulk rows": {"row_store": "bulk"},
    "chosen fp8 rows": {"combine": "fp8"},
    "chosen presum": {"presum": True},
    "chosen dispatch": {"dispatch": True},
    "chosen publish release": {"publish": "release"},
    "chosen publish bulk": {"publish": "bulk"},
    "dynamic": {"claim": "dynamic"},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to execute the layer.

    Parameters
    ----------
    name : str
        Its key in the document.
    order : Order
    build : Build
    local : bool
        Every row stays on its sender's GPU.
    stagger_ns : int
        By which the last CTA begins after the first one.
    stage : Stage, optional
        What the pacer believes.
    slots : {'expert', 'token'}
        How owners number their result slots.
    """

    name: str
    order: Order
    build: Build
    local: bool = False
    stagger_ns: int = 0
    stage: Stage | None = None
    slots: Slots = "expert"


def case_variants(
    layer: Layer,
    rows: Rows,
    chosen: Order,
    combine: Combine,
    ctas: int,
    *,
    search: bool,
    options: bool = False,
    times: TileTimes | None = None,
    stage: Stage | None = None,
) -> list[Variant]:
    """Return what one case times.

    Parameters
    ----------
    layer : Layer
    rows : Rows
        Of rank 0.
    chosen : Order
        By the model.
    combine : {'bf16', 'f32', 'fp8'}
    ctas : int
    search : bool
        Every lead and the serial order too, for the regret of the choice.
    options : bool
        `OPTIONS` too, and the usual wave with dispatch: what of a gain is left when rows are pulled meanwhile; tasks chosen by the pacer,
        which needs `stage`; CTAs begun one after another over the time of a Linear-1 and a Linear-2 tile, which needs `times`.
    times : TileTimes, optional
    stage : Stage, optional
        Of all SMs, four warps each.
    """
    build = plain_build(layer, rows, combine, ctas)
    silent = replace(build, combine="none")
    waves = wave_orders(layer, rows, ctas)
    out = [Variant(f"wave {o.experts_per_wave}", o, build) for o in waves]
    out += [Variant("chosen", chosen, build), Variant("chosen alone", chosen, silent), Variant("chosen local", chosen, build, True)]
    usual = Order("wave", usual_wave(layer, rows, ctas))
    out += [Variant("wave alone", usual, silent), Variant("chosen other ring", chosen, _other_ring(build))]
    out += [Variant("chosen alone other ring", chosen, _other_ring(silent))]
    if options:
        out += [Variant("chosen slots by token", chosen, build, slots="token")]
        out += [Variant(name, chosen, replace(build, **changes)) for name, changes in OPTIONS.items()]
        out += [Variant("wave dispatch", usual, replace(build, dispatch=True))]
    if search:
        out += [Variant(f"search {o.name}", o, build) for o in (Order("serial"), *(Order("interleaved", lead=x) for x in SEARCHED_LEADS))]
    if options:
        if stage is not None:
            out.append(Variant("paced", chosen, replace(build, claim="paced"), stage=stage))
        if times is not None:
            out.append(Variant("chosen staggered", chosen, build, stagger_ns=round(times.linear1_ns + times.linear2_ns)))
    return out


def plain_build(layer: Layer, rows: Rows, combine: Combine, ctas: int) -> Build:
    """Return the build that a layer is timed with where nothing else is said; `rows` are those of rank 0."""
    return Build(fp8=layer.dtype == "fp8", combine=combine, publish=PUBLISH, stages=ring_stages(tiles_per_sm(layer, rows, ctas)))


def _other_ring(build: Build) -> Build:
    return replace(build, stages=FEWEST_STAGES + MOST_STAGES - build.stages)


def prepare(group: Group, variants: Sequence[Variant], lists: Mapping[Order, Any] | None = None) -> dict[str, Prepared]:
    """Make every variant ready for `measure`, by its name; `lists` that are there already are not made again."""
    out = {}
    for v in variants:
        made = (lists or {}).get(v.order) if v.build.claim == "static" else None
        out[v.name] = group.prepare(v.order, v.build, local=v.local, lists=made, stagger_ns=v.stagger_ns, stage=v.stage, slots=v.slots)
    return out


def measure(
    group: Group, variants: Sequence[Variant], prepared: Mapping[str, Prepared], repetitions: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Time variants in a fresh random order in every repetition, after each was checked against float32 on some blocks.

    Returns
    -------
    dict
        Per variant ``arrived_us`` and ``stored_us`` as `spread` gives them, ``sm_clock_mhz`` of each rank (median), ``remote_bytes`` of
        the rank that sends most, and ``relative_error`` of the variants that are checked.
    """
    checked = ("chosen", "chosen other ring", "chosen slots by token", *OPTIONS, "paced", "chosen staggered")
    checked += (variants[0].name,)  # a wave order
    errors = {v.name: check(group, prepared[v.name]) for v in variants if v.name in checked}
    found: dict[str, list[tuple[Times, ...]]] = {v.name: [] for v in variants}
    for repetition in range(repetitions + WARM_UP):
        for i in rng.permutation(len(variants)):
            times = group.run(prepared[variants[i].name])
            if repetition >= WARM_UP:
                found[variants[i].name].append(times)
    out: dict[str, Any] = {}
    for name, rows in found.items():
        arrived = np.array([max(t.arrived_ns for t in times) for times in rows]) / 1e3
        stored = np.array([max(t.stored_ns for t in times) for times in rows]) / 1e3
        clocks = np.median([[t.sm_clock_mhz for t in times] for times in rows], axis=0).round().tolist()
        out[name] = {"arrived_us": spread(arrived), "stored_us": spread(stored), "sm_clock_mhz": clocks}
        out[name]["remote_bytes"] = sent_bytes(group, prepared[name])
        if name in errors:
            out[name]["relative_error"] = errors[name]
    return out


def check(group: Group, prepared: Prepared, blocks: int = 2) -> float:
    """Execute once into poisoned slots: some blocks of each rank must be right, and of small layers every row there that should be.

    Raises
    ------
    XStageError
        A row is wrong, missing, or there although nobody was to write it.
    """
    from xstage_bench.errors import XStageError

    group.poison()
    group.run(prepared)
    worst = max(group.worst_error(rank, prepared.build, blocks, slots=prepared.slots) for rank in range(len(group.ranks)))
    if group.layer.tokens > COUNTED_TOKENS:
        return worst
    have, want = group.written(prepared.build)
    if have != want:
        raise XStageError(f"{have} result rows were written, {want} should be", "the kernel is wrong here: please report it")
    return worst


def sent_bytes(group: Group, prepared: Prepared) -> int:
    """Bytes that leave the GPU of the rank that sends most."""
    build = prepared.build
    if prepared.local:
        return 0
    return max(remote_bytes(r.rows, r.rank, group.layer.shape.hidden, build.combine, presum=build.presum) for r in group.ranks)


def remote_bytes(rows: Rows, rank: int, hidden: int, combine: str, *, presum: bool = False) -> int:
    """Bytes that a rank sends to others: a row for each of its rows, or, summed before sending, for each token it has rows of."""
    away = (rows.owner != PADDING) & (rows.owner != rank)
    count = np.unique(rows.owner[away] << 32 | rows.token[away]).size if presum else int(away.sum())
    return count * hidden * COMBINE_BYTES[combine]


def link_rate(model: Model | None, gpu: str, sms: int) -> tuple[float, str]:
    """Return the rate that the bound V/R divides by, GB/s, and where it comes from.

    Parameters
    ----------
    model : Model, optional
        Its R comes first.
    gpu : str
        Without a model, or one that has no R: what stores of this GPU reach both ways, else its nominal rate, else another GPU's rate.
    sms : int
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


def flops(layer: Layer, rows: Rows) -> int:
    """Floating-point operations of a rank's tiles, padding included: what the tensor cores execute."""
    return rows.blocks * TILE * 6 * layer.shape.hidden * layer.shape.inter
