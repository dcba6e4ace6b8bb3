"""A probe is a sweep over Schedules, one per file of ``probes/``; a user adds a folder of their own with ``--probe-path``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xstage_bench.io.loader import load_named
from xstage_bench.schedule.bursts import HOST, Schedule
from xstage_bench.schedule.device import Node

#: Where sweeps are placed before anything is measured; no number that is shown rests on them. Of the line rate, as NVLink 4 reaches; where
#: that is not known; and to host memory, by PCIe 5 with 16 lanes.
EXPECTED_SHARE, EXPECTED_GB_PER_S, EXPECTED_HOST_GB_PER_S = 0.78, 300.0, 40.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a probe is asked to make schedules for.

    Parameters
    ----------
    node : Node
    source, destination : int
        The ordered pair.
    quick : bool
        Fewer schedules, for a first look and for the simulator.
    rng : numpy Generator
        Seeded from the run's seed and the pair, the same for every process of a run.
    """

    node: Node
    source: int
    destination: int
    quick: bool
    rng: np.random.Generator

    @property
    def sm_count(self) -> int:
        """SMs of the source."""
        return self.node.gpus[self.source].sm_count

    def counts(self, wanted: Sequence[int]) -> list[int]:
        """Producer counts that this GPU has, all of its SMs always among them; ascending."""
        return sorted({k for k in wanted if k < self.sm_count} | {self.sm_count})

    def expected_gb_per_s(self) -> float:
        """A first guess of the drain rate, only to place sweeps: a share of the line rate where it is known."""
        if self.destination == HOST:
            return EXPECTED_HOST_GB_PER_S
        rate = self.node.line_rate(f"{self.source}>{self.destination}")
        return EXPECTED_SHARE * rate if rate else EXPECTED_GB_PER_S


@dataclass(frozen=True, slots=True)
class Probe:
    """One sweep.

    Parameters
    ----------
    name, title : str
    schedules : callable
        ``Sweep -> list of Schedule`` for one ordered pair.
    holdout : bool
        No fit may see its samples.
    keep_producers : bool
        Record the start and end of each producer for the first repetition of each process.
    effort : float
        Repetitions, as a fraction of the run's; sweeps of many bursts need fewer.
    exemplars : callable, optional
        ``Sweep -> list of Schedule`` to be recorded once with per-store stamps.
    by_default : bool
        Part of a run that asks for no probe by name.
    """

    name: str
    title: str
    schedules: Callable[[Sweep], list[Schedule]]
    holdout: bool = False
    keep_producers: bool = False
    effort: float = 1.0
    exemplars: Callable[[Sweep], list[Schedule]] | None = None
    by_default: bool = True


def load_probes(extra_dirs: Sequence[Path] = ()) -> dict[str, Probe]:
    """Return the probes of this installation and of the user's folders, by name (see `loader.load_named` for errors)."""
    return load_named("probes", "PROBE", Probe, extra_dirs)
