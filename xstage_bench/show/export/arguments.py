"""What other libraries ask of a node and keep by hand, from a node's entry and model: DeepEP, NCCL, TileLink.

Each argument has the value, the formula, and whose formula it is. A value is no better than the facts it is made of: their kinds are said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from xstage_bench.errors import DataError
from xstage_bench.machine.facts import Fact, StageFacts
from xstage_bench.model.document import Model

#: Of R, what a number of SMs must reach to count as enough.
ENOUGH = 0.97
_DEEP_EP = "deepseek-ai/DeepEP, deep_ep/buffers/elastic.py, get_theoretical_num_sms, read 2026-12"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its name as the library spells it, its value, what it follows from, and where the library says so."""

    name: str
    value: float | int
    formula: str
    source: str


def arguments(library: str, stage: StageFacts, model: Model, ranks: int) -> list[Argument]:
    """Return the arguments of a library for a node.

    Parameters
    ----------
    library : str
        A key of `LIBRARIES`.
    stage : StageFacts
        Completed.
    model : Model
    ranks : int
        GPUs that exchange.

    Raises
    ------
    DataError
        The node's link or SMs are not known.
    """
    if stage.drain_gb_per_s.value is None or stage.sm_gb_per_s.value is None:
        raise DataError("the registry knows neither a drain rate nor a nominal rate of this link", "measure one: xstage profile, nodes add")
    return LIBRARIES[library](stage, model, ranks)


def enough_sms(model: Model) -> int:
    """Return the fewest producers of a fitted count that drain at `ENOUGH` of the rate of all.

    Raises
    ------
    DataError
        No drain rate was identified.
    """
    pair = next((p for p in model.pairs if not p.is_local), None)
    rates = {d.producers: d.makespan.value or d.sustained.value for d in (pair.drain if pair else [])}
    known = {k: r for k, r in rates.items() if r}
    if not known:
        raise DataError("the model has no drain rate", "measure again: xstage profile")
    return min(k for k, r in known.items() if r >= ENOUGH * known[max(known)])


def _deep_ep(stage: StageFacts, model: Model, ranks: int) -> list[Argument]:
    link, sm = _value(stage.drain_gb_per_s), _value(stage.sm_gb_per_s)
    traffic = 1 - 1 / ranks
    count = max(4, ceil(1.25 * link / traffic / sm))
    return [
        Argument("nvlink_gbs", round(link, 1), "R, all SMs together", _DEEP_EP),
        Argument("sm_write_gbs", round(sm, 1), "the drain of one SM alone", _DEEP_EP),
        Argument("num_sms", count + count % 2, f"1.25 R / (1 - 1/{ranks}) / one SM's drain, even, at least 4; ranks of one node", _DEEP_EP),
    ]


def _nccl(stage: StageFacts, model: Model, ranks: int) -> list[Argument]:
    count = enough_sms(model)
    source = "NVIDIA/nccl, src/sym_kernels.cc: NCCL_SYM_CTAS is the user's count for symmetric kernels, read 2026-12"
    return [Argument("NCCL_SYM_CTAS", count + count % 2, f"fewest SMs at {ENOUGH:.0%} of R, even", source)]


def _tilelink(stage: StageFacts, model: Model, ranks: int) -> list[Argument]:
    source = "TileLink and ParallelKittens (num_comm_sms): SMs that communicate while the others compute, read 2026-12"
    return [Argument("num_comm_sms", enough_sms(model), f"fewest SMs at {ENOUGH:.0%} of R", source)]


def _value(fact: Fact) -> float:
    assert fact.value is not None
    return fact.value


LIBRARIES: dict[str, Callable[[StageFacts, Model, int], list[Argument]]] = {"deep_ep": _deep_ep, "nccl": _nccl, "tilelink": _tilelink}
