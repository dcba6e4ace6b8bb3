"""A model of a GPU that nobody here has measured, from the three numbers that were published of it: T0, R and Q, and nothing else.

The node model has eight parameters. Three numbers leave it the paper's own law: every SM has Q/K of its own, nothing is shared but the
link, all are served alike, and what has drained is known at once. What is assumed beside them stands in the model's notes.
"""

from __future__ import annotations

from dataclasses import dataclass

from xstage_bench.model.document import SCHEMA_VERSION, Model, PairModel
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.entry import NodeBasis
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.node.placement import uniform
from xstage_bench.model.tasks.costs import STORE_WARPS, TaskCosts

#: SMs that share an equal part of the link; nothing but the speed of a prediction depends on it while all are served alike.
UNIT_SMS = 4
_WARP_STORE_BYTES = 512
_NOT_PUBLISHED = "not published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """T0, R and Q of a GPU, and where they were published.

    `producers` are all of its SMs, T0 stands at `bytes` of one of them, R and Q are of all together. The clock is assumed.
    """

    gpu: str
    producers: int
    bytes: int
    t0_ns: float
    drain_gb_per_s: float
    capacity_bytes: float
    sm_clock_mhz: float
    source: str

    @property
    def t0_cycles(self) -> float:
        """T0 in cycles of the assumed clock."""
        return self.t0_ns * self.sm_clock_mhz / 1e3


#: The GPU of the X-Stage paper.
X_STAGE = Published(
    gpu="the X-Stage paper's GPU, 148 SMs",
    producers=148,
    bytes=32 << 10,
    t0_ns=760.0,
    drain_gb_per_s=717.0,
    capacity_bytes=4.25 * (1 << 20),
    sm_clock_mhz=1965.0,
    source="X-Stage, arXiv 2607.23264",
)


def published_model(known: Published, costs: TaskCosts, service_spread: float = 0.0, *, loads_wait: bool = False) -> Model:
    """Return a model of pair 0>1 that task schedules can be predicted with.

    `costs` of another GPU say what a task costs beside its work; its stores, its rates and how well predictions with it did are left out.
    With `loads_wait` what a warp reads between two tasks waits behind its SM's stores, as in our replay. By the published law of periodic
    bursts it does not: their period would be G + V/R instead of V/R.

    Notes
    -----
    T0 is taken to be proportional to the bytes, and an SM alone to drain no faster than it issues: r = B/T0. With nothing but Q/K per SM
    outstanding, isolated bursts take max(T0, (V - Q)/R), as published.
    """
    stores = known.bytes / (STORE_WARPS * _WARP_STORE_BYTES)
    used = {
        "issue_cycles_per_store": known.t0_cycles / stores,
        "link_gb_per_s": known.drain_gb_per_s,
        "sm_bytes_per_cycle": known.bytes / known.t0_cycles,
        "sm_capacity_bytes": known.capacity_bytes / known.producers,
        "unit_capacity_bytes": 0.0,
        "credit_cycles": 0.0,
        "link_buffer_bytes": 0.0,
        "service_spread": service_spread,
    }
    published = {"issue_cycles_per_store", "link_gb_per_s", "sm_bytes_per_cycle", "sm_capacity_bytes"}
    notes = [
        f"predicted from T0, R and Q of {known.source}: nothing was measured here",
        f"assumed: {known.sm_clock_mhz:g} MHz, T0 proportional to the bytes; what a task costs beside its work is that of {costs.gpu}",
    ]
    basis = NodeBasis(
        used=used,
        placement=uniform(range(known.producers), UNIT_SMS),
        sm_clock_mhz=known.sm_clock_mhz,
        spread=None,
        issue=IssueLaw(),
        n_schedules=0,
        notes=notes,
    )
    node = {name: _plain(value, known.source) if name in published else Estimate.missing(_NOT_PUBLISHED) for name, value in used.items()}
    pair = PairModel(pair="0>1", flavour="st.v4", layout="contiguous", burst_gap=[], node=node, node_basis=basis)
    return Model(
        schema_version=SCHEMA_VERSION,
        backend="published",
        gpu=known.gpu,
        sm_clock_mhz=known.sm_clock_mhz,
        pairs=[pair],
        tasks=[_costs(known, costs, stores, loads_wait)],
        notes=notes,
    )


def _costs(known: Published, costs: TaskCosts, stores: float, loads_wait: bool) -> TaskCosts:
    left_out = ("store_cycles.", "drain_gb_per_s.", *(() if loads_wait else ("turn_cycles.single",)))
    kept = {name: e for name, e in costs.instrument.items() if not name.startswith(left_out)}
    kept |= {f"store_cycles.{n}": _plain(known.t0_cycles * n / stores, known.source) for n in (1, 64)}
    missing = Estimate.missing("nothing was measured on this GPU", "total_ns")
    return TaskCosts(gpu=costs.gpu, compute=costs.compute, sm_clock_mhz=known.sm_clock_mhz, instrument=kept, total_error=missing)


def _plain(value: float, source: str) -> Estimate:
    return Estimate(value=value, standard_error=None, low=None, high=None, statistic=f"published: {source}")
