"""A Schedule says who injects what and when. It is the one input of every device, of `predict` and of the fused kernels.

A *producer* is one SM; it injects each burst with `warps` warps that issue the same number of *warp-stores* (one store
instruction executed by 32 lanes, or one bulk copy). A burst's size is given per producer, so a burst of K producers injects V = K * bytes.

Three start rules:

``isolated``
    each burst starts on a drained stage, all producers aligned on a common %globaltimer deadline;
``free``
    producers are aligned once; then burst i starts `gap_cycles` (SM clock) after the producer's own burst i-1 ended;
``timed``
    burst i starts at `start_ns` on the common %globaltimer, or at once when that is already past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.io.short_repr import short_repr
from xstage_bench.schedule.completion import DEFAULT as DEFAULT_COMPLETION
from xstage_bench.schedule.completion import completion_of
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.flavour import WARP_STORE_BYTES as WARP_STORE_BYTES
from xstage_bench.schedule.layouts import LAYOUTS as LAYOUTS

StartRule = Literal["isolated", "free", "timed"]
START_RULES: tuple[str, ...] = get_args(StartRule)

#: As a destination: pinned host memory over PCIe instead of a GPU.
HOST = -1
MAX_WARPS = 16
MAX_BURSTS_ON_DEVICE = 256
MAX_BURST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst of each producer.

    Parameters
    ----------
    bytes : int
        Bytes injected by each producer; a multiple of ``warps * warp_store_bytes``. Zero is an empty burst, which
        measures the instrument itself.
    gap_cycles : int, optional
        ``free`` only: SM cycles between the end of the producer's previous burst and this one. Ignored for the first.
    start_ns : int, optional
        ``timed`` only: deadline in ns after the schedule's time zero.
    """

    bytes: int
    gap_cycles: int = 0
    start_ns: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who injects what and when.

    Parameters
    ----------
    bursts : tuple of Burst
        At least one.
    producers : int or tuple of int
        A count K, spread evenly over the smids, or the smids themselves, ascending and distinct.
    warps : int
        Warps per producer, 1 to 16.
    source, destination : int
        GPU indices; equal for the LOCAL control. Destination `HOST` is pinned host memory.
    start : {'isolated', 'free', 'timed'}
    flavour : str
        A name of `flavour.FLAVOURS`.
    layout : str
        A name of `layouts.LAYOUTS`.
    completion : str
        What is executed after the last burst of a segment, and by whom (`completion.completion_of`).
    warps_meet : bool
        Whether a producer's warps meet between two bursts, as those of the instrument do. False describes a kernel whose warps run free: it
        can be predicted, flagged as outside what the models describe, and not executed (`require_meeting`).

    Raises
    ------
    UsageError
        Any field is out of its range; the message names the field, the burst and the nearest valid value.
    """

    __repr__ = short_repr

    bursts: tuple[Burst, ...]
    producers: int | tuple[int, ...]
    warps: int = 1
    source: int = 0
    destination: int = 1
    start: StartRule = "isolated"
    flavour: str = "st.v4"
    layout: str = "contiguous"
    completion: str = DEFAULT_COMPLETION
    warps_meet: bool = True

    def __post_init__(self) -> None:
        _check_header(self)
        _check_bursts(self)

    @property
    def producer_count(self) -> int:
        """K, the number of producers."""
        return self.producers if isinstance(self.producers, int) else len(self.producers)

    @property
    def producer_set(self) -> str:
        """``"even"`` for a count, else the smids, as written to sample files."""
        return "even" if isinstance(self.producers, int) else "smid:" + ",".join(map(str, self.producers))

    @property
    def is_local(self) -> bool:
        """True for the LOCAL control, whose stores stay in the source's own memory."""
        return self.source == self.destination

    @property
    def warp_store_bytes(self) -> int:
        """Bytes that one warp-store writes."""
        return LAYOUTS[self.layout].warp_store_bytes(FLAVOURS[self.flavour])

    def stores_per_warp(self) -> NDArray[np.int64]:
        """Warp-stores that each warp issues in each burst; shape (bursts,)."""
        size = np.array([b.bytes for b in self.bursts], dtype=np.int64)
        return size // (self.warps * self.warp_store_bytes)

    def smids(self, available: Sequence[int]) -> NDArray[np.int64]:
        """Resolve the producers to smids of the source GPU; see `resolve_smids`."""
        return resolve_smids(self.producers, self.source, available)

    def key(self) -> str:
        """Return 16 hex digits that identify what is measured: two schedules that do the same have the same key."""
        bursts = ";".join(
            f"{b.bytes},{b.gap_cycles if i and self.start == 'free' else 0},{b.start_ns if self.start == 'timed' else 0}"
            for i, b in enumerate(self.bursts)
        )
        where = f"{self.source}>{self.destination}|{self.flavour}|{self.layout}|{self.start}"
        head = f"{where}|{self.producer_set}|{self.producer_count}|{self.warps}"
        if self.completion != DEFAULT_COMPLETION:  # keys are older than completions
            head += f"|{self.completion}"
        if not self.warps_meet:  # and than warps that do not meet
            head += "|apart"
        return hashlib.blake2b(f"{head}|{bursts}".encode(), digest_size=8).hexdigest()


def resolve_smids(producers: int | tuple[int, ...], source: int, available: Sequence[int]) -> NDArray[np.int64]:
    """Resolve producers to smids.

    Parameters
    ----------
    producers : int or tuple of int
        A count K, spread evenly over `available`, or the smids themselves.
    source : int
        The GPU, for messages.
    available : sequence of int
        Its smids, ascending.

    Returns
    -------
    ndarray of int, shape (K,)

    Raises
    ------
    UsageError
        More producers than SMs, or an smid that this GPU lacks: refused before launch, never a hang.
    """
    have = np.asarray(available, dtype=np.int64)
    if isinstance(producers, int):
        if producers > have.size:
            raise UsageError(
                f"{producers} producers asked for, but GPU {source} has {have.size} SMs",
                f"use at most {have.size} producers",
            )
        return have[np.arange(producers) * have.size // producers]
    asked = np.asarray(producers, dtype=np.int64)
    missing = asked[~np.isin(asked, have)]
    if missing.size:
        raise UsageError(f"GPU {source} has no SM with smid {missing[0]}", f"its {have.size} smids run from {have[0]} to {have[-1]}")
    return asked


def require_meeting(schedule: Schedule) -> None:
    """Refuse to execute a schedule whose warps do not meet: what executes schedules lets them, and would measure another schedule.

    Raises
    ------
    UsageError
        `schedule.warps_meet` is false.
    """
    if not schedule.warps_meet:
        raise UsageError(
            "a schedule whose warps do not meet (warps_meet is false) cannot be executed: the warps of the instrument meet between bursts",
            "xstage predict takes it; to execute it with warps that meet, set warps_meet to true",
        )


def _check_header(s: Schedule) -> None:
    if s.flavour not in FLAVOURS:
        raise UsageError(f"unknown flavour '{s.flavour}'", f"use one of: {', '.join(FLAVOURS)}")
    if s.layout not in LAYOUTS:
        raise UsageError(f"unknown layout '{s.layout}'", f"use one of: {', '.join(LAYOUTS)}")
    if not LAYOUTS[s.layout].takes(FLAVOURS[s.flavour]):
        fitting = ", ".join(name for name, layout in LAYOUTS.items() if layout.takes(FLAVOURS[s.flavour]))
        raise UsageError(f"layout '{s.layout}' cannot be had with flavour '{s.flavour}'", f"use one of: {fitting}")
    by = completion_of(s.completion).who
    if s.start not in START_RULES:
        raise UsageError(f"unknown start rule '{s.start}'", f"use one of: {', '.join(START_RULES)}")
    if not 1 <= s.warps <= MAX_WARPS:
        raise UsageError(f"warps is {s.warps}, must be 1 to {MAX_WARPS}", "change 'warps'")
    if LAYOUTS[s.layout].segments != "none" and s.warps & (s.warps - 1):
        raise UsageError(f"warps is {s.warps}; layout '{s.layout}' takes a power of two", "use 1, 2, 4, 8 or 16 warps")
    if by == "warp" and s.warps == MAX_WARPS:
        raise UsageError(f"completion '{s.completion}' needs a warp that does not store", f"use at most {MAX_WARPS - 1} warps")
    if s.start == "isolated" and not s.warps_meet:
        raise UsageError("isolated bursts start with all warps together, so warps_meet cannot be false", "use start 'free' or 'timed'")
    if s.source < 0 or s.destination < HOST:
        hint = f"GPU indices start at 0; destination {HOST} is host memory"
        raise UsageError(f"source {s.source} and destination {s.destination} must not be negative", hint)
    if isinstance(s.producers, int):
        if s.producers < 1:
            raise UsageError(f"producers is {s.producers}, must be at least 1", "give a count of SMs, or a list of smids")
    elif not s.producers or any(p < 0 for p in s.producers) or list(s.producers) != sorted(set(s.producers)):
        raise UsageError("the list of producer smids must be ascending, distinct and not empty", "for example [0, 2, 4]")


def _check_bursts(s: Schedule) -> None:
    if not s.bursts:
        raise UsageError("a schedule needs at least one burst", "add a burst with its bytes")
    unit = s.warps * s.warp_store_bytes
    previous = 0
    for i, b in enumerate(s.bursts):
        if not 0 <= b.bytes <= MAX_BURST_BYTES:
            raise UsageError(f"burst {i}: bytes is {b.bytes}, must be 0 to {MAX_BURST_BYTES}", "bytes are per producer")
        if b.bytes % unit:
            raise UsageError(
                f"burst {i}: {b.bytes} bytes is not a multiple of {unit} ({s.warps} warps x {unit // s.warps} B of {s.flavour})",
                f"use {b.bytes // unit * unit} or {-(-b.bytes // unit) * unit}",
            )
        if b.gap_cycles < 0 or b.start_ns < 0:
            raise UsageError(f"burst {i}: negative gap_cycles or start_ns", "gaps and start times are 0 or more")
        if s.start == "timed" and b.start_ns < previous:
            raise UsageError(f"burst {i}: start_ns {b.start_ns} is before that of the burst before it", "sort the bursts by start_ns")
        previous = b.start_ns
