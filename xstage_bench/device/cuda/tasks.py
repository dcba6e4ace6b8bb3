"""A TaskSchedule to the arrays that ``cuda/tasks.cu`` reads, and what it writes to a TaskTrace. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.scene import REPETITION, STATE_DONE
from xstage_bench.device.cuda.variant import OWN_FLAVOUR
from xstage_bench.errors import UsageError
from xstage_bench.schedule.device import Compute
from xstage_bench.schedule.flavour import FLAVOURS, KINDS, Flavour
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, Form, TaskSchedule, TaskTrace

_U4, _U8 = "<u4", "<u8"
TASK = np.dtype([(n, _U4) for n in ("compute", "stores", "remote", "waits_for", "target", "signals", "uneven", "pad")])
TASK_STAMP = np.dtype([(n, _U4) for n in ("start", "computed", "stored", "signalled")])
LIST = np.dtype([(n, _U4) for n in ("first", "count", "producer", "pad")])
SEAL = np.dtype(
    [(n, _U4) for n in ("done_ns", "visible_ns")]
    + [(n, _U8) for n in ("epoch", "zero_ns", "clock", "timer_ns", "end_clock", "end_timer_ns")]
)

MAX_SM_TASKS = 3072  # lists and stamps are in shared memory
EVENT_BYTES = 32  # of one counter, see EVENT_STRIDE
WINDOW_BYTES = 256 * 1024  # of one producer on the destination, and as much on the source; longer lists wrap around in it
SHARED_BYTES = MAX_SM_TASKS * (TASK.itemsize + TASK_STAMP.itemsize) + 1024
OPERAND_BYTES = (64 + 128) * 128  # of wgmma, see cuda/tensor_work.cuh
INSTRUCTIONS = ("spin", "mma.sync", "wgmma")  # XSTAGE_COMPUTE
_SLOW_GB_PER_S = 10.0  # for watchdogs only


@dataclass(frozen=True, slots=True)
class TaskVariant:
    """What a launch is compiled for. `instruction` is one of `INSTRUCTIONS`."""

    form: str
    publish: str
    flavour: Flavour
    instruction: str

    def defines(self) -> dict[str, str]:
        """Preprocessor definitions of ``cuda/tasks.cu``."""
        return {
            "XSTAGE_ROLES": str(1 + FORMS.index(self.form)),
            "XSTAGE_PUBLISH": str(PUBLISHES.index(self.publish)),
            "XSTAGE_COMPUTE": str(INSTRUCTIONS.index(self.instruction)),
            "XSTAGE_FLAVOUR": self.flavour.function,
            "XSTAGE_KIND": str(KINDS.index(self.flavour.kind)),
            "XSTAGE_BYTES": str(self.flavour.bytes),
            "XSTAGE_SHARED_BYTES": str(self.shared_bytes),
            **({"XSTAGE_OWN_FLAVOUR": "1"} if self.flavour.source is not None else {}),
        }

    def headers(self) -> dict[str, str]:
        """Return the sources that are no file of ``cuda/``, by the names under which they are included."""
        return {} if self.flavour.source is None else {OWN_FLAVOUR: self.flavour.source}

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA; more than half of what an SM has, so that a second one cannot join it."""
        return SHARED_BYTES + (OPERAND_BYTES if self.instruction == "wgmma" else 0)

    def arch(self, arch: str) -> str:
        """Return the architecture to compile for: wgmma is in the architecture-specific set only."""
        return arch + "a" if self.instruction == "wgmma" else arch


@dataclass(frozen=True, slots=True)
class TensorRate:
    """What tensor-core work costs in SM cycles: n rounds take ``entry + (n // 4) * four + (n % 4) * one`` cycles."""

    entry_cycles: float
    four_cycles: float
    one_cycles: float

    def cycles(self, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what so many rounds take; nothing for none."""
        took = self.entry_cycles + rounds // 4 * self.four_cycles + rounds % 4 * self.one_cycles
        return np.asarray(np.where(rounds > 0, took, 0.0))

    def rounds(self, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rounds that come nearest to `cycles`: none for 0, and at least one otherwise."""
        below = np.maximum((cycles - self.entry_cycles) // self.four_cycles, 0).astype(np.int64)
        near = np.maximum(4 * below[:, None] + np.arange(5), 1)
        best = np.abs(self.cycles(near) - cycles[:, None]).argmin(axis=1)
        return np.where(cycles > 0, near[np.arange(cycles.size), best], 0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedTasks:
    """What the worker needs of one TaskSchedule; it crosses to its process, the schedule does not.

    Parameters
    ----------
    variant : TaskVariant
    destination : int
        Which GPU's memory the source stores to; the source is the first key of `lists`, and where there is a second GPU it stores back.
    tasks : ndarray of TASK
    lists : dict of GPU index to ndarray of LIST
        One entry per smid of each GPU that takes part, the source first.
    producers, events, warps : int
    smids : ndarray of int, shape (K,)
        Of the source.
    expected_s : float
        For watchdogs.
    """

    variant: TaskVariant
    destination: int
    tasks: NDArray[Any]
    lists: dict[int, NDArray[Any]]
    producers: int
    events: int
    warps: int
    smids: NDArray[np.int64]
    expected_s: float

    @property
    def source(self) -> int:
        """The first of the GPUs that take part."""
        return int(next(iter(self.lists)))

    def results(self) -> dict[str, tuple[int, np.dtype[Any]]]:
        """What each GPU writes: name to length and type."""
        return {"stamps": (len(self.tasks), TASK_STAMP), "seals": (self.producers, SEAL), "repetitions": (1, REPETITION)}


def instruction_for(compute: Compute, warps: int, arch: str) -> str:
    """Which instruction does the work: wgmma where the architecture has it and the role is whole warpgroups, else mma.sync."""
    if compute == "spin":
        return "spin"
    return "wgmma" if arch == "sm_90" and warps % 4 == 0 else "mma.sync"


def pack(schedule: TaskSchedule, smids: Mapping[int, Sequence[int]], instruction: str, rate: TensorRate | None = None) -> PackedTasks:
    """Lay a schedule out for the GPUs that execute it.

    Parameters
    ----------
    smids : mapping of GPU index to sequence of int
        Of each GPU that takes part, the source first.
    instruction : str
    rate : TensorRate, optional
        Of that instruction; without it cycles are what the kernel counts, which is right for spinning.

    Raises
    ------
    UsageError
        The device cannot execute it; the message says why.
    """
    flavour = FLAVOURS[schedule.flavour]
    if flavour.kind != "store":
        raise UsageError(f"flavour '{flavour.name}' in a task schedule", "the replay executes plain stores, for example st.v4")
    counts = np.diff(schedule.first)
    if counts.max() > MAX_SM_TASKS:
        raise UsageError(
            f"producer {int(counts.argmax())} has {counts.max()} tasks, the replay at most {MAX_SM_TASKS}", "split the schedule"
        )
    stores = schedule.bytes // (schedule.warps * schedule.warp_store_bytes)
    tasks = np.zeros(schedule.task_count, TASK)
    tasks["compute"] = schedule.compute_cycles if rate is None else rate.rounds(schedule.compute_cycles)
    tasks["stores"] = stores
    tasks["remote"] = schedule.remote_bytes // schedule.warp_store_bytes
    tasks["uneven"] = tasks["remote"] % schedule.warps
    waits = schedule.waits_for
    tasks["waits_for"] = waits.astype(np.uint32)  # -1 becomes all ones, the kernel's NONE
    tasks["signals"] = schedule.signals.astype(np.uint32)
    tasks["target"] = np.where(waits == NONE, 0, schedule.signals_of_event[waits] if schedule.event_count else 0)
    chosen = {gpu: schedule.smids(available) for gpu, available in smids.items()}
    lists = {}
    for gpu, available in smids.items():
        table = np.zeros(max(available) + 1, LIST)
        table["first"][chosen[gpu]] = schedule.first[:-1]
        table["count"][chosen[gpu]] = counts
        table["producer"][chosen[gpu]] = np.arange(schedule.producer_count)
        lists[gpu] = table
    longest = np.bincount(schedule.producer, schedule.compute_cycles, schedule.producer_count).max()
    expected_s = float(longest) / 1e9 + float(schedule.bytes.sum()) / (_SLOW_GB_PER_S * 1e9) + schedule.task_count * 2e-6 + 1e-2
    if expected_s > 1.0:
        raise UsageError(f"the schedule may take {expected_s:.1f} s; the replay's stamps hold 2 s", "split it, or give it less work")
    variant = TaskVariant(schedule.form, schedule.publish, flavour, instruction)
    size = (schedule.producer_count, schedule.event_count, schedule.warps)
    return PackedTasks(variant, schedule.destination, tasks, lists, *size, chosen[schedule.source], expected_s)


def unpack(s: TaskSchedule, packed: PackedTasks, results: dict[int, dict[str, NDArray[Any]]]) -> TaskTrace:
    """Turn what one execution wrote into a TaskTrace of the source.

    Parameters
    ----------
    s : TaskSchedule
    packed : PackedTasks
    results : dict of GPU index to dict
        ``stamps`` (tasks,), ``seals`` (producers,), ``repetitions`` (1,).
    """
    own = results[s.source]
    seals, stamps = own["seals"], own["stamps"]
    busy = np.diff(s.first) > 0  # an SM without tasks writes no seal: what is there is an earlier execution's
    elapsed_ns = np.maximum(seals["end_timer_ns"].astype(float) - seals["timer_ns"].astype(float), 1.0)
    mhz = (seals["end_clock"].astype(np.int64) - seals["clock"].astype(np.int64)) / elapsed_ns * 1e3
    clock_mhz = float(np.median(mhz[busy]))
    # Of each SM: its own rate, and where its stamps' zero lies on the common time line.
    cycle_ns = 1e3 / np.maximum(np.where(busy, mhz, clock_mhz), 1.0)
    late = seals["timer_ns"].astype(np.int64) - seals["zero_ns"].astype(np.int64)
    cycles = seals["clock"].astype(np.int64) - seals["epoch"].astype(np.int64)
    zero_ns = late - cycles * cycle_ns

    def ns(name: str, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(there, zero_ns[s.producer] + stamps[name] * cycle_ns[s.producer], np.nan)

    status, detail = _verdict(s, results)
    return TaskTrace(
        schedule=s,
        smids=packed.smids,
        start_ns=ns("start", np.ones(s.task_count, dtype=bool)),
        compute_end_ns=ns("computed", s.compute_cycles > 0),
        store_end_ns=ns("stored", s.bytes > 0),
        signal_end_ns=ns("signalled", s.signals != NONE),
        total_ns=float(seals["done_ns"][busy].max()),
        visible_ns=float(seals["visible_ns"][busy].max()),
        sm_clock_mhz=clock_mhz,
        status=status,
        detail=detail,
    )


def _verdict(s: TaskSchedule, results: dict[int, dict[str, NDArray[Any]]]) -> tuple[str, str]:
    for gpu, got in results.items():
        verdict = got["repetitions"][0]
        if verdict["state"] != STATE_DONE:
            return "timeout", f"GPU {gpu}: a wait inside the kernel ended by its time-out"
        if verdict["mismatches"]:
            who = int(verdict["pad"])
            other = s.destination if gpu == s.source else s.source
            pair = f"pair {gpu}>{other if who >> 31 else gpu}"
            return "corrupt", (
                f"{pair}: {verdict['mismatches']} wrong words, the first of producer {who >> 8 & 0x7FFFFF}, warp {who & 0xFF}, "
                f"at offset {verdict['offset']}: expected 0x{verdict['expected']:08x}, found 0x{verdict['found']:08x}"
            )
    return "ok", ""


_LENGTHS = (64, 192, 67, 195)  # rounds: whole fours, and three more


def calibration(warps: int, form: Form, producers: int, source: int) -> TaskSchedule:
    """Work of four lengths, without stores, on every SM: its trace gives the TensorRate. Its cycles are rounds: pack it without a rate."""
    lengths = np.tile(np.repeat(_LENGTHS, 2), 6)  # each length by both roles
    size = producers * lengths.size
    none, zero = np.full(size, NONE), np.zeros(size, dtype=np.int64)
    producer = np.repeat(np.arange(producers), lengths.size)
    ends: dict[str, Any] = {"source": source, "destination": source}  # nothing is stored, and there may be no second GPU
    return TaskSchedule(producers, producer, np.tile(lengths, producers), zero, zero, none, none, warps=warps, form=form, **ends)


def rate_of(packed: PackedTasks, stamps: NDArray[Any]) -> TensorRate:
    """Fit the TensorRate to the stamps of a `calibration`, by the medians of its lengths."""
    took = stamps["computed"].astype(float) - stamps["start"].astype(float)
    short, long, short3, long3 = (float(np.median(took[packed.tasks["compute"] == n])) for n in _LENGTHS)
    four = (long - short) / 32
    return TensorRate(short - 16 * four, four, (short3 - short + long3 - long) / 6)
