"""A run of the MoE layer: the document, kept after every row, and the orders that the model chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.environment import snapshot
from xstage_bench.fused.session import results
from xstage_bench.record.json_file import read_json, write_json

from .order import Order
from .suite import Case, run_suite

SCHEMA_VERSION = 1


class ChosenOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The order of one row, and the predicted times that led to it, ns by the order's name."""

    kind: str
    experts_per_wave: int | None
    lead: float
    predicted_ns: dict[str, float]


class Choices(msgspec.Struct, forbid_unknown_fields=True):
    """What the model chose, by `Case.key`."""

    schema_version: int
    rows: dict[str, ChosenOrder]


def read_choices(path: Path) -> dict[str, Order]:
    """Return the order of each row of a file of `Choices`."""
    return {key: Order(c.kind, c.experts_per_wave, c.lead) for key, c in read_json(path, Choices, newest=SCHEMA_VERSION).rows.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a suite is run.

    Parameters
    ----------
    devices : tuple of int
        GPUs of the first ranks.
    combines : tuple of {'bf16', 'f32'}
        What result rows consist of.
    repetitions : int
        Of each variant, after one that does not count.
    seed : int
        Of the order of execution.
    budget_s : float
        No case is begun after it.
    unfused : bool
        Time the layer by PyTorch and NCCL too, where that can be.
    """

    devices: tuple[int, ...] = (0, 1)
    combines: tuple[str, ...] = ("bf16",)
    repetitions: int = 7
    seed: int = 0
    budget_s: float = float("inf")
    unfused: bool = False


def run(
    cases: Sequence[Case],
    choices: Mapping[str, Order],
    path: Path,
    options: Options,
    *,
    resume: bool = False,
    argv: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure cases and keep the document at `path` after every row.

    Parameters
    ----------
    cases : sequence of Case
    choices : mapping of `Case.key` to Order
        By the model; without an entry a lead of 1.
    path : Path
    options : Options
    resume : bool
        Go on with the document at `path`.
    argv : sequence of str
        For the document.
    say : callable
        Is given a line for each row.

    Raises
    ------
    XStageError
        The GPUs cannot be measured, or were lost; what was measured before lies at `path`.
    """
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "backend": "cuda", "rows": [], "failed": {}, "left": {}}
    if resume:
        document |= read_json(path, dict)
        document["left"] = {}
    document |= {"argv": list(argv), "environment": snapshot()}
    done = {row["key"] for row in document["rows"]}
    job = {"cases": list(cases), "choices": dict(choices), "done": done, **asdict(options)}
    for kind, value in results(run_suite, job):
        if kind == "say":
            say(value)
        elif kind == "row":
            document["rows"].append(value)
            write_json(path, document)
        else:
            document[kind][value[0]] = value[1]
            say(f"{value[0]}: {value[1]}")
    document["environment_after"] = snapshot()
    write_json(path, document)
    return document
