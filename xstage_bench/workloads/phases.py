"""A phase of a forward pass: what it computes and moves, and how often; the common form in which every workload is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xstage_bench.schedule.tasks import TaskSchedule

Mode = Literal["prefill", "decode", "distill", "weights"]
MODES: tuple[Mode, ...] = ("prefill", "decode", "distill", "weights")


@dataclass(frozen=True, slots=True)
class PhaseLayout:
    """How a model is spread over the GPUs of one node.

    Parameters
    ----------
    ep, sp, tp : int
        Ranks that share the experts, a sequence (Ulysses), the heads and weights of the attention.
    replicate_kv : bool
        Key-value heads may be copied to more ranks than there are heads.
    """

    ep: int = 8
    sp: int = 1
    tp: int = 1
    replicate_kv: bool = False

    @property
    def heads_ways(self) -> int:
        """Ranks over which the heads are spread."""
        return self.sp * self.tp

    @property
    def world(self) -> int:
        """GPUs in use."""
        return max(self.ep, self.heads_ways)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase on one rank.

    Parameters
    ----------
    name : str
    repeats : int
        Times in a pass: layers times chunks, or once.
    tasks : TaskSchedule or None
        Its tiles, where it stores to other ranks; None where it only computes or pulls.
    compute_ns : float
        Of one repeat, all SMs at work, without tasks. With tasks theirs counts.
    pull_bytes : int
        Loaded from other ranks in one repeat, by this rank. Pulls are no stores: they take the link's time and build no backlog.
    per_layer : bool
    note : str
        What was assumed, in a few words.
    """

    name: str
    repeats: int
    tasks: TaskSchedule | None = None
    compute_ns: float = 0.0
    pull_bytes: int = 0
    per_layer: bool = True
    note: str = ""
