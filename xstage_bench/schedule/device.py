"""The seam between schedules and hardware: a Device executes Schedules and returns Traces.

Three devices implement it: ``cuda`` (real GPUs, in a worker process), ``sim`` (a queueing model, always labelled simulated) and
``replay`` (a recorded run). An open device is one process with its own allocations; the runner opens several in turn, because
part of the spread of a measurement lies between processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from xstage_bench.io.identity import Kernel
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace
from xstage_bench.schedule.trace import Trace

Kind = Literal["measure", "sentinel", "warmup"]
#: How a task's compute is executed: tensor-core instructions, or waiting for as many cycles.
Compute = Literal["mma", "spin"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the device sees it. `smids` are ascending; `uuid` and `pci_address` are null for a simulated GPU."""

    index: int
    name: str
    smids: tuple[int, ...]
    sm_clock_mhz: float
    uuid: str | None = None
    pci_address: str | None = None

    @property
    def sm_count(self) -> int:
        """Number of SMs."""
        return len(self.smids)


@dataclass(frozen=True, slots=True)
class PairLink:
    """What carries the stores of one pair: its NVLinks, and their rate on the wire in one direction; null where not known."""

    links: int | None = None
    line_rate_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """The GPUs of a node, the ordered pairs that stores can cross, the %globaltimer tick and what is known of the links.

    `line_rate_gb_per_s` is that of most pairs, and null where it is not known; `pair_links` has the links of each pair by
    "source>destination", and is null where all pairs are alike. `unusable` maps "source>destination" to the reason. `flavours`,
    `layouts` and `completions` are what the device can execute: a simulator and a recording know the plain ones, unless they say more.
    """

    gpus: tuple[Gpu, ...]
    pairs: tuple[tuple[int, int], ...]
    timer_tick_ns: float
    line_rate_gb_per_s: float | None = None
    unusable: dict[str, str] | None = None
    flavours: tuple[str, ...] = ("st.v4",)
    layouts: tuple[str, ...] = ("contiguous",)
    completions: tuple[str, ...] = ("fence.sys",)
    pair_links: dict[str, PairLink] | None = None

    def line_rate(self, pair: str) -> float | None:
        """Return what the links of one pair ("source>destination") carry on the wire in one direction; None where that is not known."""
        if self.pair_links is None:
            return self.line_rate_gb_per_s
        known = self.pair_links.get(pair)
        return None if known is None else known.line_rate_gb_per_s

    def cannot(self, schedule: Schedule) -> str | None:
        """Say which part of a schedule this device does not know; None when it can execute it."""
        for what, name, known in (
            ("flavour", schedule.flavour, self.flavours),
            ("layout", schedule.layout, self.layouts),
            ("completion", schedule.completion, self.completions),
        ):
            if name not in known:
                return f"{what} {name}"
        return None


@dataclass(frozen=True, slots=True)
class Execution:
    """One repetition of one schedule, as asked for by the runner.

    `timeline` asks for per-store stamps (exemplars only); a warm-up is executed like any other and marked in its Trace.
    """

    schedule: Schedule
    repetition: int = 0
    kind: Kind = "measure"
    timeline: bool = False


class Device(Protocol):
    """What a device must do. All methods may raise `PairError`; after `DeviceLostError` the next call starts afresh."""

    @property
    def backend(self) -> str:
        """``cuda``, ``sim:PRESET`` or ``replay:NAME``: written in every artefact."""
        ...

    def node(self) -> Node:
        """Describe the node; cheap after the first call."""
        ...

    def verify(self, source: int, destination: int) -> None:
        """Poison the destination, store a known pattern, check every byte, stray writes included.

        Raises
        ------
        PairError
            Naming pair, offset, expected and found.
        """
        ...

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        """Execute in the order given and yield one Trace each, in that order.

        All executions of one call have the same source and destination.
        """
        ...

    def close(self) -> None:
        """Release the process and its memory. May be called twice."""
        ...


@runtime_checkable
class TaskDevice(Device, Protocol):
    """A device that executes TaskSchedules too: ``cuda`` and ``sim``; a recorded run holds none."""

    def execute_tasks(self, schedules: Sequence[TaskSchedule], *, repetitions: int, compute: Compute) -> Iterator[TaskTrace]:
        """Execute all schedules once, in the order given, then again, until each has been executed `repetitions` times.

        Yields one TaskTrace per execution, in that order. All have the same source and destination. What is not to be counted is marked
        in its `status`.
        """
        ...


@runtime_checkable
class CompilingDevice(Protocol):
    """A device whose numbers come out of compiled kernels: ``cuda``, and ``replay`` of what was measured by it."""

    def kernels(self) -> list[Kernel]:
        """Return every kernel that was loaded so far, whether or not it has run."""
        ...


def kernels_of(device: object) -> list[Kernel]:
    """Return the kernels of a device; a simulator has none."""
    return device.kernels() if isinstance(device, CompilingDevice) else []
