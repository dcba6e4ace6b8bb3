"""A TaskSchedule to the arrays that ``cuda/tasks.cu`` reads, and what it writes to a TaskTrace. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device import Compute
from xstage_bench.device.cuda.scene import REPETITION, STATE_DONE
from xstage_bench.errors import UsageError
from xstage_bench.flavour import FLAVOURS, KINDS, Flavour
from xstage_bench.task_schedule import FORMS, NONE, PUBLISHES, TaskSchedule, TaskTrace

_U4, _U8 = "<u4", "<u8"
TASK = np.dtype([(n, _U4) for n in ("compute", "stores", "remote", "waits_for", "target", "signals")])
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

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA; more than half of what an SM has, so that a second one cannot join it."""
        return SHARED_BYTES + (OPERAND_BYTES if self.instruction == "wgmma" else 0)

    def arch(self, arch: str) -> str:
        """Return the architecture to compile for: wgmma is in the architecture-specific set only."""
        return arch + "a" if self.instruction == "wgmma" else arch


@dataclass(frozen=True, slots=True)
class Rate:
    """What tensor-core work costs in SM cycles: a task of n rounds takes ``entry_cycles + n * round_cycles`` (docs/replay.md)."""

    entry_cycles: float
    round_cycles: float

    def rounds(self, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rounds that take `cycles`, to the nearest; none for 0 cycles and at least one otherwise."""
        n = np.rint((cycles - self.entry_cycles) / self.round_cycles).astype(np.int64)
        return np.where(cycles > 0, np.maximum(n, 1), 0)


#: Spinning: the loop ends at a clock value, so its length is what was asked for.
SPIN = Rate(0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedTasks:
    """One TaskSchedule as every GPU that takes part reads it. `lists` has one entry per smid of each GPU, the source first."""

    schedule: TaskSchedule
    variant: TaskVariant
    tasks: NDArray[Any]
    lists: dict[int, NDArray[Any]]
    smids: NDArray[np.int64]
    expected_s: float


def instruction_for(compute: Compute, warps: int, arch: str) -> str:
    """Which instruction does the work: wgmma where the architecture has it and the role is whole warpgroups, else mma.sync."""
    if compute == "spin":
        return "spin"
    return "wgmma" if arch == "sm_90" and warps % 4 == 0 else "mma.sync"


def pack(schedule: TaskSchedule, smids: dict[int, Sequence[int]], instruction: str, rate: Rate) -> PackedTasks:
    """Lay a schedule out for the GPUs that execute it.

    Parameters
    ----------
    smids : dict of GPU index to sequence of int
        Of each GPU that takes part, the source first.
    instruction : str
    rate : Rate
        Of that instruction.

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
    tasks["compute"] = rate.rounds(schedule.compute_cycles)
    tasks["stores"] = stores
    tasks["remote"] = schedule.remote_bytes // schedule.warp_store_bytes
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
    variant = TaskVariant(schedule.form, schedule.publish, flavour, instruction)
    return PackedTasks(schedule, variant, tasks, lists, chosen[schedule.source], expected_s)


def unpack(packed: PackedTasks, results: dict[int, dict[str, NDArray[Any]]]) -> TaskTrace:
    """Turn what one execution wrote into a TaskTrace of the source.

    Parameters
    ----------
    results : dict of GPU index to dict
        ``stamps`` (tasks,), ``seals`` (producers,), ``repetitions`` (1,).
    """
    s = packed.schedule
    own = results[s.source]
    seals, stamps = own["seals"], own["stamps"]
    busy = np.diff(s.first) > 0
    elapsed = seals["end_timer_ns"][busy].astype(float) - seals["timer_ns"][busy].astype(float)
    clock_mhz = float(np.median((seals["end_clock"][busy] - seals["clock"][busy]) / np.maximum(elapsed, 1.0))) * 1e3
    # Of each SM: where its stamps' zero lies on the common time line.
    late = seals["timer_ns"].astype(np.int64) - seals["zero_ns"].astype(np.int64)
    cycles = seals["clock"].astype(np.int64) - seals["epoch"].astype(np.int64)
    zero_ns = (late - cycles / max(clock_mhz, 1.0) * 1e3)[s.producer]

    def ns(name: str, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(there, zero_ns + stamps[name] / max(clock_mhz, 1.0) * 1e3, np.nan)

    status, detail = _verdict(packed, results)
    return TaskTrace(
        schedule=s,
        smids=packed.smids,
        start_ns=ns("start", np.ones(s.task_count, dtype=bool)),
        compute_end_ns=ns("computed", s.compute_cycles > 0),
        store_end_ns=ns("stored", s.bytes > 0),
        signal_end_ns=ns("signalled", s.signals != NONE),
        total_ns=float(seals["done_ns"].max()),
        visible_ns=float(seals["visible_ns"].max()),
        sm_clock_mhz=clock_mhz,
        status=status,
        detail=detail,
    )


def _verdict(packed: PackedTasks, results: dict[int, dict[str, NDArray[Any]]]) -> tuple[str, str]:
    s = packed.schedule
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


def result_shapes(packed: PackedTasks) -> dict[str, tuple[int, np.dtype[Any]]]:
    """What each GPU writes: name to length and type."""
    return {
        "stamps": (packed.schedule.task_count, TASK_STAMP),
        "seals": (packed.schedule.producer_count, SEAL),
        "repetitions": (1, REPETITION),
    }


def calibration(warps: int, form: str, producers: int, source: int) -> TaskSchedule:
    """Work of two lengths, without stores, on every SM: its trace gives the Rate. Cycles are rounds here (pack it with `SPIN`)."""
    lengths = np.tile([64, 192], 24)
    size = producers * lengths.size
    none = np.full(size, NONE)
    zero = np.zeros(size, dtype=np.int64)
    return TaskSchedule(
        producers, np.repeat(np.arange(producers), lengths.size), np.tile(lengths, producers), zero, zero, none, none,
        warps=warps, form="single" if form == "single" else "ping_pong", publish="relaxed", source=source,
    )  # fmt: skip


def rate_of(packed: PackedTasks, stamps: NDArray[Any]) -> Rate:
    """Fit the Rate to the stamps of a `calibration`: the medians of its two lengths give the line."""
    took = stamps["computed"].astype(float) - stamps["start"].astype(float)
    rounds = packed.tasks["compute"]
    short, long = (np.median(took[rounds == n]) for n in (64, 192))
    per_round = float(long - short) / 128
    return Rate(float(short) - 64 * per_round, per_round)
