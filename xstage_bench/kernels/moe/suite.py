"""Many cases in one run: shapes x types x routings x tokens x width of a result row, each with the order that the model chose.

ExpertRows and task lists are made by other processes while the GPUs measure.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.errors import DeviceLostError, WaivedError, XStageError
from xstage_bench.kernels.moe.build import Combine
from xstage_bench.kernels.moe.forecast import Choice, MoeTileTimes, choose_order, tile_times
from xstage_bench.kernels.moe.group import ExpertGroup, Gpus
from xstage_bench.kernels.moe.layer import DTYPES, ExpertRows, Layer, rows_of
from xstage_bench.kernels.moe.measure import SEARCHED_LEADS, case_variants, flops, link_rate, measure, plain_build, prepare, remote_bytes
from xstage_bench.kernels.moe.order import Order, TaskLists, task_lists, usual_wave, wave_orders
from xstage_bench.kernels.moe.stalls import measure_stalls, predicted
from xstage_bench.kernels.moe.unfused import unfused_us
from xstage_bench.kernels.spread import spread
from xstage_bench.workloads.moe import MAX_EP
from xstage_bench.workloads.shapes import moe_shape

if TYPE_CHECKING:
    from xstage_bench.model.document import Model

#: The seven of the paper by name, and Keye-VL-2.0.
SHAPES = ("keye-vl-2", "qwen3.5", "hy3", "dsv4-flash", "glm-5.2", "mimo-v2.5", "dit-moe", "dsv4-pro")
ROUTINGS = ("balanced", "skewed")
TOKENS = (512, 2048, 8192)
COMBINES: tuple[Combine, ...] = ("bf16", "f32")
#: Of execution before tile times are read: under load the clock falls.
WARM_UP_NS = 30e6
#: Where every order is measured.
SEARCHED_SHAPES, SEARCHED_TOKENS = ("keye-vl-2", "qwen3.5", "dsv4-flash"), 2048
#: Where FP8 result rows and pulls are measured, beside bf16 rows.
OPTIONS_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class MoeCase:
    """One layer of the suite; both widths of a result row are measured on it."""

    shape: str
    dtype: str
    routing: str
    tokens: int
    ep: int = MAX_EP

    @property
    def layer(self) -> Layer:
        """The layer."""
        return Layer(moe_shape(self.shape), self.tokens, self.ep, self.dtype, self.routing)

    @property
    def searched(self) -> bool:
        """Whether every order is measured: the regret of the model's choice."""
        return self.tokens == SEARCHED_TOKENS and self.shape in SEARCHED_SHAPES

    @property
    def name(self) -> str:
        """For the document."""
        return "|".join((self.shape, self.dtype, self.routing, str(self.tokens)))

    def key(self, combine: str) -> str:
        """Name of one row of the document."""
        return f"{self.name}|{combine}"


def suite_cases(
    shapes: Sequence[str] = SHAPES, tokens: Sequence[int] = TOKENS, dtypes: Sequence[str] = DTYPES, routings: Sequence[str] = ROUTINGS,
    ep: int = MAX_EP,
) -> list[MoeCase]:  # fmt: skip
    """Return the cases, those of one shape and type together: they share weights.

    `UsageError`, before anything is measured: no such shape, or one that the ranks do not divide.
    """
    cases = [MoeCase(s, d, r, t, ep) for s, d, t, r in itertools.product(shapes, dtypes, tokens, routings)]
    for case in cases:
        _ = case.layer
    return cases


def run_suite(job: Mapping[str, Any], put: Callable[[str, Any], None]) -> None:
    """Measure cases; runs in the process that owns the GPUs (`session.results`).

    `job` has the fields of `run.SuiteOptions` and ``cases``, ``gpu`` (its name) and ``done`` (keys that need no measurement). `put` is
    given ``row`` for each row, ``failed`` and ``left`` (a key and why), ``tiles`` (name and tile times) and ``say`` (a line).
    """
    begin, combines = time.monotonic(), job["combines"]
    todo = [c for c in job["cases"] if any(c.key(x) not in job["done"] for x in combines)]
    gpus, rng = Gpus(job["devices"]), np.random.default_rng(job["seed"])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(28, (os.cpu_count() or 2) - 3)), mp_context=context) as pool:
        made = {c: pool.submit(_make, c, len(job["devices"]), gpus.sms) for c in todo}
        chosen = {}
        for case in todo if job["model"] is not None else []:
            times = _tile_times(case, made[case].result(), gpus)
            put("tiles", (case.name, asdict(times)))
            chosen[case] = pool.submit(_choose, case, combines, job["model"], times, made[case].result().rows, gpus.sms)
        for case in todo:
            if time.monotonic() - begin > job["budget_s"]:
                for future in (made.pop(case), chosen.pop(case, None)):
                    if future is not None:
                        future.cancel()
                for combine in combines:
                    put("left", (case.key(combine), "the budget was spent"))
                continue
            try:
                choices = chosen.pop(case).result() if case in chosen else {x: (Choice(Order("interleaved"), {}), {}) for x in combines}
                for row in _measure_case(case, made.pop(case).result(), choices, gpus, job, rng):
                    put("row", row)
                    put("say", _line(row))
            except DeviceLostError:
                raise
            except XStageError as error:
                put("failed", (case.key(combines[0]), error.message))


@dataclass(frozen=True, slots=True)
class _Made:
    """What other processes have made for a case: rows of each rank, and lists of each order."""

    rows: list[ExpertRows]
    lists: dict[Order, list[TaskLists]]


#: Of each width of a row: the order that the model chose, and the stalls that it predicts for it and for the usual waves.
_Choices = dict[str, tuple[Choice, dict[str, dict[str, Any]]]]


def _make(case: MoeCase, ranks: int, ctas: int) -> _Made:
    layer = case.layer
    rows = [rows_of(layer, rank) for rank in range(ranks)]
    orders = {*wave_orders(layer, rows[0], ctas), *(Order("interleaved", lead=lead) for lead in SEARCHED_LEADS)}
    if case.searched:
        orders.add(Order("serial"))
    return _Made(rows, {order: [task_lists(layer, one, order, ctas) for one in rows] for order in orders})


def _tile_times(case: MoeCase, made: _Made, gpus: Gpus) -> MoeTileTimes:
    """Measure what the tiles of a case take: an execution with local destinations, stamped, after some that warm up.

    Of each case, since a tile of weights that serves few rows is waited for; and under load, since the clock falls when power limits it.
    """
    order = Order("interleaved", lead=2.0)
    group = ExpertGroup(case.layer, gpus, made.rows)
    build = replace(plain_build(case.layer, made.rows[0], "bf16", gpus.sms), stamps=True)
    prepared = group.prepare(order, build, local=True, lists=made.lists[order])
    loaded_ns = 0.0
    while loaded_ns < WARM_UP_NS:
        loaded_ns += max(times.arrived_ns for times in group.run(prepared))
    group.run(prepared)
    return tile_times(group.stamps(prepared, 0), prepared.lists[0])


def _choose(case: MoeCase, combines: Sequence[str], path: Path, times: MoeTileTimes, rows: list[ExpertRows], ctas: int) -> _Choices:
    layer, model, out = case.layer, _model(path), {}
    for combine in combines:
        choice = choose_order(model, layer, rows, times, combine, ctas)
        both = {"wave": Order("wave", usual_wave(layer, rows[0], ctas)), "chosen": choice.order}
        out[combine] = choice, {which: predicted(model, layer, rows[0], times, combine, ctas, order) for which, order in both.items()}
    return out


@cache
def _model(path: Path) -> Model:
    from xstage_bench.model.run_fit import find_model

    return find_model(path)


def _measure_case(
    case: MoeCase, made: _Made, choices: _Choices, gpus: Gpus, job: Mapping[str, Any], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    layer, rows = case.layer, made.rows
    group = ExpertGroup(layer, gpus, rows)
    link_gb_per_s, link_source = link_rate(None if job["model"] is None else _model(job["model"]), job["gpu"], gpus.sms)
    for combine, (choice, stalls) in choices.items():
        chosen, options = choice.order, case.tokens == OPTIONS_TOKENS and combine == "bf16"
        variants = case_variants(layer, rows[0], chosen, combine, gpus.sms, search=case.searched, options=options)  # type: ignore[arg-type]
        prepared = prepare(group, variants, made.lists)
        found = measure(group, variants, prepared, job["repetitions"], rng)
        if chosen.kind == "wave":  # the same order twice: one reading of it counts
            found["chosen"] |= found[f"wave {chosen.experts_per_wave}"] | {"relative_error": found["chosen"]["relative_error"]}
        volume = max(remote_bytes(one, rank, layer.shape.hidden, combine) for rank, one in enumerate(rows))
        row = {
            "key": case.key(combine), "shape": case.shape, "dtype": case.dtype, "combine": combine, "routing": case.routing,
            "tokens_per_rank": case.tokens, "ep": case.ep, "emulated": group.emulated,
            "rows_of_rank": [int(one.block_rows.sum()) for one in rows], "busiest_expert": _busiest(rows[0], layer.local_experts),
            "chosen": chosen.name, "stages": prepared["chosen"].build.stages, "predicted_ns": choice.predicted_ns,
            "predicted_gain": _predicted_gain(choice), "remote_bytes": volume, "drain_us": volume / link_gb_per_s / 1e3,
            "link_gb_per_s": link_gb_per_s, "link_source": link_source, "flops": max(flops(layer, one) for one in rows), "variants": found,
            "stalls": measure_stalls(group, prepared, stalls), "unfused_us": None,
        }  # fmt: skip
        if job["unfused"] and combine == "bf16" and case.routing == "balanced":
            try:
                row["unfused_us"] = spread(np.array(unfused_us(group, job["repetitions"])))
            except WaivedError as error:
                row["unfused_reason"] = error.message
        yield row


def _predicted_gain(choice: Choice) -> float | None:
    """Over the Expert-Wave order that is predicted to be the fastest."""
    ns = choice.predicted_ns
    return min(one for name, one in ns.items() if name.startswith("wave")) / ns[choice.order.name] if ns else None


def arrived_us(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the time of each variant of a row, until all rows have arrived, us."""
    return {name: float(v["arrived_us"]["value"]) for name, v in row["variants"].items()}


def best_wave(row: Mapping[str, Any]) -> str:
    """Return the fastest Expert-Wave variant of a row: its own best number of experts a wave."""
    us = arrived_us(row)
    return min(filter(is_wave, us), key=us.__getitem__)


def is_wave(name: str) -> bool:
    """Whether a variant is Expert-Wave in its usual form, with so many experts a wave."""
    return name.startswith("wave ") and name.removeprefix("wave ").isdigit()


def _line(row: Mapping[str, Any]) -> str:
    us = arrived_us(row)
    wave = best_wave(row)
    gain = us[wave] / us["chosen"]
    return (
        f"{row['key']}: {wave} {us[wave]:.0f} us, {row['chosen']} {us['chosen']:.0f} us, alone {us['chosen alone']:.0f} us, gain {gain:.3f}"
    )


def _busiest(rows: ExpertRows, experts: int) -> float:
    """ExpertRows of the busiest local expert over the mean."""
    mine = np.bincount(rows.block_expert, weights=rows.block_rows, minlength=experts)
    return round(float(mine.max() / mine.mean()), 3) if mine.any() else 1.0
