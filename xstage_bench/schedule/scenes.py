"""A Scene is several Schedules executed at the same time, and the company they keep; one Trace per Schedule comes out, per repetition.

Several schedules may share a source: then each has producers of its own (a source that stores to N destinations splits its SMs over
them), or the warps of one SM are divided (several producers per SM). All GPUs of a scene start together; how well is measured and reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import MAX_WARPS, Schedule, require_meeting
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.trace import Trace

CompanyKind = Literal["pull", "pull.bulk", "copy"]
COMPANY_KINDS: tuple[str, ...] = get_args(CompanyKind)
GapWork = Literal["idle", "mma"]


@dataclass(frozen=True, slots=True)
class Companion:
    """Traffic beside the schedules, from the common start for as long as the scene says; only its rate is measured.

    Parameters
    ----------
    kind : {'pull', 'pull.bulk', 'copy'}
        16-byte loads from `other`, bulk loads from `other` (sm_90 and later), or a copy within the memory of `gpu`.
    gpu, other : int
        Whose SMs work, and whose memory they read; equal for ``copy``.
    smids : tuple of int
        The SMs, ascending and distinct.
    warps : int
        Per SM; ``pull.bulk`` takes 1, of which one thread works.
    footprint_bytes : int
        Read in all before it repeats; a copy reads the first half of it and writes the second.
    """

    kind: CompanyKind
    gpu: int
    other: int
    smids: tuple[int, ...]
    warps: int = 4
    footprint_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.kind not in COMPANY_KINDS:
            raise UsageError(f"unknown company '{self.kind}'", f"use one of: {', '.join(COMPANY_KINDS)}")
        if (self.kind == "copy") != (self.gpu == self.other):
            raise UsageError(
                f"company '{self.kind}' on GPU {self.gpu} with the memory of GPU {self.other}", "a copy is local, a pull is not"
            )
        most = 1 if self.kind == "pull.bulk" else MAX_WARPS
        if not 1 <= self.warps <= most:
            raise UsageError(f"company '{self.kind}': warps is {self.warps}, must be 1 to {most}", "change 'warps'")
        if not self.smids or list(self.smids) != sorted(set(self.smids)):
            raise UsageError("the smids of a companion must be ascending, distinct and not empty", "for example (0, 2, 4)")


@dataclass(frozen=True, slots=True)
class Scene:
    """Several Schedules at the same time.

    Parameters
    ----------
    schedules : tuple of Schedule
        ``free`` or ``timed``, or ``isolated`` with one burst: only the start of a scene is common to all GPUs.
    company : tuple of Companion
    gap_work : {'idle', 'mma'}
        What producers do in the gaps of ``free`` schedules: wait, or keep the tensor cores busy for as long.
    company_ns : int
        How long companions run, from the common start.
    name : str
        For tables.
    """

    schedules: tuple[Schedule, ...]
    company: tuple[Companion, ...] = ()
    gap_work: GapWork = "idle"
    company_ns: int = 500_000
    name: str = ""

    def __post_init__(self) -> None:
        if not self.schedules and not self.company:
            raise UsageError("a scene needs a schedule or a companion", "see the patterns of xstage_bench.schedule.patterns")
        for s in self.schedules:
            require_meeting(s)
            if s.start == "isolated" and len(s.bursts) > 1:
                raise UsageError("an isolated schedule in a scene has one burst", "use start 'free', or one scene per burst")
        if not 64_000 <= self.company_ns <= 500_000_000:
            raise UsageError(f"company_ns is {self.company_ns}, must be 64 us to 0.5 s", "change 'company_ns'")

    def gpus(self) -> tuple[int, ...]:
        """GPUs whose SMs take part, ascending."""
        return tuple(sorted({s.source for s in self.schedules} | {c.gpu for c in self.company}))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Ordered pairs that bytes cross: a pull from GPU b by GPU a is traffic b>a, through the peer path a>b."""
        crossed = [(s.source, s.destination) for s in self.schedules if not s.is_local]
        crossed += [(c.gpu, c.other) for c in self.company if c.gpu != c.other]
        return tuple(dict.fromkeys(crossed))


def seats(scene: Scene, node: Node) -> dict[int, NDArray[np.int16]]:
    """Give each schedule and companion its warps on each SM.

    Returns
    -------
    dict of GPU index to ndarray, shape (smid, 16, 4)
        Stream (schedules first, then companions; -1 idle), producer, warp within the producer, first warp of the producer in the SM.

    Raises
    ------
    UsageError
        An SM would need more than 16 warps, or a GPU lacks the SM or does not exist.
    """
    used: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(0, dtype=np.int64))
    tables: dict[int, NDArray[np.int16]] = {}
    for stream, (gpu, smids, warps) in enumerate(_streams(scene, node)):
        if gpu not in tables:
            rows = max(node.gpus[gpu].smids) + 1
            tables[gpu] = np.full((rows, MAX_WARPS, 4), -1, dtype=np.int16)
            used[gpu] = np.zeros(rows, dtype=np.int64)
        for producer, smid in enumerate(smids):
            first = int(used[gpu][smid])
            if first + warps > MAX_WARPS:
                raise UsageError(
                    f"SM {smid} of GPU {gpu} would need {first + warps} warps, it has {MAX_WARPS}", "give the schedules SMs of their own"
                )
            for w in range(warps):
                tables[gpu][smid, first + w] = (stream, producer, w, first)
            used[gpu][smid] += warps
    return tables


def _streams(scene: Scene, node: Node) -> list[tuple[int, Sequence[int], int]]:
    out: list[tuple[int, Sequence[int], int]] = []
    for index in {*scene.gpus(), *(b for _, b in scene.pairs())}:
        if index >= len(node.gpus):
            raise UsageError(f"GPU {index} asked for, but there are {len(node.gpus)}", "GPU indices start at 0")
    for s in scene.schedules:
        out.append((s.source, [int(x) for x in s.smids(node.gpus[s.source].smids)], s.warps))
    for c in scene.company:
        missing = set(c.smids) - set(node.gpus[c.gpu].smids)
        if missing:
            raise UsageError(f"GPU {c.gpu} has no SM with smid {min(missing)}", f"it has {node.gpus[c.gpu].sm_count} SMs")
        out.append((c.gpu, c.smids, c.warps))
    return out


@dataclass(frozen=True, slots=True, eq=False)
class SceneTrace:
    """What one repetition of a scene cost.

    Parameters
    ----------
    scene : Scene
    traces : tuple of Trace
        In the order of the schedules. Their times zero are one instant, on each source's own %globaltimer.
    company_bytes : ndarray of float, shape (companions, slots)
        Bytes that each companion had moved by the end of each slot; slots divide `company_ns` evenly.
    start_skew_bound_ns : float
        The GPUs' times zero differ by no more than this: half the shortest round trip between them, and a timer tick. 0 for one GPU.
    offset_ns : ndarray of float, shape (gpus,)
        Each GPU's %globaltimer minus that of the first, as measured right before the start.
    gap_work_ops : ndarray of float, shape (schedules,)
        Tensor-core instructions (4096 FLOP each) that a producer's warp issued in its gaps, summed over bursts, mean over producers.
    """

    scene: Scene
    traces: tuple[Trace, ...]
    company_bytes: NDArray[np.float64]
    start_skew_bound_ns: float
    offset_ns: NDArray[np.float64]
    gap_work_ops: NDArray[np.float64]

    @property
    def status(self) -> str:
        """``ok`` when every trace is, else the first other status."""
        return next((t.status for t in self.traces if t.status != "ok"), "ok")

    def overlap(self) -> float:
        """Share of the longest schedule during which all were under way, the skew bound counted against it; 1 for a single one."""
        if len(self.traces) < 2:
            return 1.0
        first = np.array([t.start_ns.min() for t in self.traces])
        last = np.array([t.end_ns.max() for t in self.traces])
        together = last.min() - first.max() - self.start_skew_bound_ns
        return float(max(0.0, together / (last - first).max()))

    def gb_per_s(self) -> NDArray[np.float64]:
        """Bytes of each schedule over its own makespan, 10^9 bytes per second; shape (schedules,)."""
        out = []
        for t in self.traces:
            volume = sum(b.bytes for b in t.schedule.bursts) * t.schedule.producer_count
            out.append(volume / (t.end_ns.max() - t.start_ns.min()))
        return np.array(out)

    def company_gb_per_s(self) -> NDArray[np.float64]:
        """Rate of each companion while the schedules were under way (all of its time when there is none); shape (companions,)."""
        slots = self.company_bytes.shape[1]
        ends = np.arange(1, slots + 1) * (self.scene.company_ns / slots)
        begin, end = ends[3], ends[-1]
        if self.traces:
            begin = max(begin, max(float(t.start_ns.min()) for t in self.traces))
            end = min(end, min(float(t.end_ns.max()) for t in self.traces))
        if end - begin < 2 * ends[0]:
            return np.full(len(self.company_bytes), np.nan)
        return np.array([(np.interp(end, ends, b) - np.interp(begin, ends, b)) / (end - begin) for b in self.company_bytes])
