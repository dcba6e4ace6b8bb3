"""Whether an attention's output is right: float32 by plain arithmetic on the GPU (``cuda/attention_check.cu``), and a census of poison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.attention import MAX_OWNERS
from xstage_bench.kernels.attention.problem import Problem

CHECK_PLAN = np.dtype(
    [(n, "<u8") for n in ("q", "k", "v")]
    + [("out", "<u8", MAX_OWNERS), ("sums", "<u8")]
    + [(n, "<u4") for n in ("seq", "heads", "keys_heads", "rows_per_owner", "heads_total", "head_first", "row_first", "row_step")]
    + [("scale", "<f4"), ("pad", "<u4")]
)
CHECK_SUMS = np.dtype([("error", "<f8"), ("reference", "<f8"), ("unwritten", "<u8"), ("worst", "<f4"), ("pad", "<u4")])

#: Relative error above which bf16 inputs with float32 accumulation are wrong.
TOLERANCE = 1e-2
#: Products of a query with a key that one check computes at most, else it takes rows evenly spread.
MAX_PRODUCTS = 1 << 29


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one rank's output compares with the reference.

    `relative_error`: norm of the difference over norm of the reference, over the rows checked; `worst`: largest absolute difference.
    `unwritten`: elements still poison in the rows checked; `rows`, `of_rows`: rows checked in each head, and all.
    """

    relative_error: float
    worst: float
    unwritten: int
    rows: int
    of_rows: int

    @property
    def ok(self) -> bool:
        """Whether every checked element was written and is right."""
        return self.unwritten == 0 and self.relative_error < TOLERANCE  # NaN is not


def check_plan(problem: Problem, rank: int, inputs: Mapping[str, int], out: Mapping[int, int], sums: int) -> tuple[NDArray[np.void], int]:
    """Return a `CHECK_PLAN` of one element and the number of rows it covers: all, or evenly spread ones of a long sequence."""
    step = -(-problem.seq * problem.seq * problem.local_heads // MAX_PRODUCTS)
    plan = np.zeros(1, CHECK_PLAN)
    for name in ("q", "k", "v"):
        plan[name] = inputs[name]
    for owner, address in out.items():
        plan["out"][0, owner] = address
    plan["sums"], plan["seq"], plan["heads"], plan["keys_heads"] = sums, problem.seq, problem.local_heads, problem.local_kv_heads
    plan["rows_per_owner"], plan["heads_total"], plan["head_first"] = problem.rows_per_owner, problem.heads, rank * problem.local_heads
    first = (problem.seq - 1) % step  # the last row is always among them
    plan["row_first"], plan["row_step"] = first, step
    plan["scale"] = 1.0 / math.sqrt(problem.head_dim)
    return plan, (problem.seq - 1 - first) // step + 1


def verdict(sums: NDArray[np.void], rows: int, of_rows: int) -> Verdict:
    """Return what `CHECK_SUMS` say."""
    s = sums[0]
    reference = float(s["reference"])
    error = math.sqrt(float(s["error"]) / reference) if reference > 0 else math.nan
    return Verdict(error, float(s["worst"]), int(s["unwritten"]), rows, of_rows)
