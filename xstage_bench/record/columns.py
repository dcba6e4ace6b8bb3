"""The columns of the three tables of a run folder. docs/files.md says the same in prose, and a test compares them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Column(NamedTuple):
    """One column: its name, its type (``string``, ``int16``, ``int32``, ``int64``, ``float64``) and whether null may stand in it.

    `later`: added since schema version 1 was first written; a file without it reads as if it held `missing` everywhere.
    """

    name: str
    type: str
    null: bool = False
    later: bool = False
    missing: str | None = None


_WHICH = (Column("schedule", "string"), Column("source", "int16"), Column("destination", "int16"))
_EXECUTION = (Column("process", "int16"), Column("repetition", "int16"))

#: Reduced over producers by `Trace.summary`.
MEASURED: tuple[str, ...] = (
    "issue_mean_cycles",
    "issue_min_cycles",
    "issue_max_cycles",
    "gap_mean_cycles",
    "start_mean_ns",
    "start_skew_ns",
    "makespan_ns",
    "drain_mean_cycles",
    "drain_max_cycles",
    "issued_mean_cycles",
    "reusable_mean_cycles",
    "completed_mean_cycles",
)
_LATER = ("issued_mean_cycles", "reusable_mean_cycles", "completed_mean_cycles")

SAMPLES: tuple[Column, ...] = (
    Column("schedule", "string"),
    Column("probe", "string"),
    Column("kind", "string"),
    Column("source", "int16"),
    Column("destination", "int16"),
    Column("flavour", "string"),
    Column("layout", "string"),
    Column("completion", "string", later=True, missing="fence.sys"),
    Column("start", "string"),
    Column("producers", "int16"),
    Column("producer_set", "string"),
    Column("warps", "int16"),
    Column("burst", "int16"),
    Column("bursts", "int16"),
    Column("bytes", "int64"),
    Column("gap_cycles", "int64", null=True),
    Column("start_ns", "int64", null=True),
    *_EXECUTION,
    Column("order", "int32"),
    *(Column(name, "float64", null=True, later=name in _LATER) for name in MEASURED),
    Column("sm_clock_mhz", "float64", null=True),
    Column("status", "string"),
    Column("detail", "string", null=True),
)

#: Measured per producer; the fields of `Trace` of the same name.
PER_PRODUCER: tuple[str, ...] = ("issue_cycles", "start_ns", "end_ns", "drain_cycles")

PRODUCERS: tuple[Column, ...] = (
    *_WHICH,
    *_EXECUTION,
    Column("order", "int32"),
    Column("burst", "int16"),
    Column("producer", "int16"),
    Column("smid", "int16"),
    *(Column(name, "float64", null=True) for name in PER_PRODUCER),
)

TRACES: tuple[Column, ...] = (
    *_WHICH,
    *_EXECUTION,
    Column("smid", "int16"),
    Column("warp", "int16"),
    Column("store", "int32"),
    Column("cycles", "float64", null=True),
)

#: Floats are kept to 1/1024 of their unit: far below the clock's own step, exact for whole cycles and ns, and the zeros
#: at the end of each number let the files compress to half.
_STEPS_PER_UNIT = 1024.0


def recorded_precision(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to the precision that files keep: 1/1024 of the unit; NaN stays NaN."""
    return np.round(values * _STEPS_PER_UNIT) / _STEPS_PER_UNIT


def arrow_schema(columns: tuple[Column, ...], *, dictionary: bool = True) -> Any:
    """Return the pyarrow schema of `columns`; strings dictionary-encoded unless `dictionary` is false."""
    import pyarrow as pa

    def arrow_type(column: Column) -> Any:
        if column.type != "string":
            return getattr(pa, column.type)()
        return pa.dictionary(pa.int32(), pa.string()) if dictionary else pa.string()

    return pa.schema([pa.field(c.name, arrow_type(c), nullable=c.null) for c in columns])
