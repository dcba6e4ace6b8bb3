"""What a workload's prediction holds: its phases, one layer and the whole pass; as rows, as a line and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from xstage_bench.workloads.phases import PhaseLayout
from xstage_bench.workloads.rates import Machine

#: Columns of `WorkloadPrediction.rows`, for a table.
COLUMNS = (
    "phase",
    "repeats",
    "remote_mb",
    "pull_mb",
    "bursts",
    "burst_kib",
    "compute_us",
    "v_over_r_us",
    "stores_us",
    "stalled",
    "total_us",
    "advised_us",
    "advice",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrediction:
    """One phase of one rank; times and bytes are of one repeat.

    Parameters
    ----------
    name : str
    repeats : int
        Times in a pass.
    per_layer : bool
    schedule, advised_schedule : str or None
        Keys of its task schedules; None: it stores nothing to other ranks.
    remote_bytes, pull_bytes : int
        Stored to and loaded from other ranks.
    bursts : int
        Storing tasks, and `burst_bytes` the mean of what each sends.
    compute_ns : float
        Time with nothing stored: tensor cores or local memory, and waits for each other.
    link_ns : float
        V/R of the stores, and of the pulls.
    stores_ns : float
        What the stores add.
    backpressure : bool
        Whether any store is predicted to take more than 1.1 T0.
    stalled_share : float
        Of the storing tasks.
    total_ns, advised_ns : float
    advice : str
    note : str
    """

    name: str
    repeats: int
    per_layer: bool
    schedule: str | None
    advised_schedule: str | None
    remote_bytes: int
    pull_bytes: int
    bursts: int
    burst_bytes: float
    compute_ns: float
    link_ns: float
    stores_ns: float
    backpressure: bool
    stalled_share: float
    total_ns: float
    advised_ns: float
    advice: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrediction:
    """A workload under one layout: predicted, nothing of it measured.

    Parameters
    ----------
    workload : str
    layout : PhaseLayout
    mode, dtype : str
    context : int
    tokens_per_rank : int or None
        As asked; None: the default.
    phases : tuple of PhasePrediction
    machine : Machine
        The GPU that it is laid out for, and whose rates its compute has.
    notes : tuple of str
        What the numbers stand on.
    """

    workload: str
    layout: PhaseLayout
    mode: str
    dtype: str
    context: int
    tokens_per_rank: int | None
    phases: tuple[PhasePrediction, ...]
    machine: Machine
    notes: tuple[str, ...]

    @property
    def layer_ns(self) -> float:
        """One layer, one chunk."""
        return sum(p.total_ns for p in self.phases if p.per_layer)

    @property
    def advised_layer_ns(self) -> float:
        """The same with every advice taken."""
        return sum(p.advised_ns for p in self.phases if p.per_layer)

    @property
    def pass_ns(self) -> float:
        """All layers and chunks, and what is done once."""
        return sum(p.total_ns * p.repeats for p in self.phases)

    @property
    def advised_pass_ns(self) -> float:
        """The same with every advice taken."""
        return sum(p.advised_ns * p.repeats for p in self.phases)

    def rows(self) -> list[list[Any]]:
        """Return one row per phase in the order of `COLUMNS`; times of one repeat."""
        return [
            [
                p.name,
                p.repeats,
                p.remote_bytes * 1e-6,
                p.pull_bytes * 1e-6,
                p.bursts,
                p.burst_bytes / 1024,
                p.compute_ns * 1e-3,
                p.link_ns * 1e-3,
                p.stores_ns * 1e-3,
                f"{p.stalled_share:.0%}" if p.backpressure else "no",
                p.total_ns * 1e-3,
                p.advised_ns * 1e-3,
                p.advice,
            ]
            for p in self.phases
        ]

    def summary(self) -> str:
        """Say layout, layer and pass in one line."""
        where = f"EP {self.layout.ep} x SP {self.layout.sp} x TP {self.layout.tp}, {self.mode}, {self.context} tokens, {self.dtype}"
        layer = f"layer {self.layer_ns * 1e-3:.1f} us, advised {self.advised_layer_ns * 1e-3:.1f} us"
        whole = f"pass {self.pass_ns * 1e-6:.2f} ms, advised {self.advised_pass_ns * 1e-6:.2f} ms"
        return f"{self.workload}, {where}: {layer}; {whole} (predicted)"

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "workload": self.workload,
            **asdict(self.layout),
            "mode": self.mode,
            "dtype": self.dtype,
            "context": self.context,
            "tokens_per_rank": self.tokens_per_rank,
            **self.machine.document(),
            "status": "predicted",
            "layer_ns": self.layer_ns,
            "advised_layer_ns": self.advised_layer_ns,
            "pass_ns": self.pass_ns,
            "advised_pass_ns": self.advised_pass_ns,
            "phases": [asdict(p) for p in self.phases],
            "notes": list(self.notes),
        }
